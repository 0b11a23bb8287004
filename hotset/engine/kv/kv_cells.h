// Which cell of the KV memory holds which position of which sequences. Bookkeeping only: the keys
// and values themselves are tensors with one row per cell (kv_cache.h).
//
// A cell may belong to several sequences at once: a shared prefix is stored once. Every function
// requires 0 <= cell < n_cells() and 0 <= sequence < kMaxSequences.
// Thread-compatible.
#ifndef HOTSET_ENGINE_KV_KV_CELLS_H_
#define HOTSET_ENGINE_KV_KV_CELLS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::engine {

using SequenceId = int32_t;
inline constexpr SequenceId kMaxSequences = 64;

class KvCells {
 public:
  // Requires: n_cells > 0.
  explicit KvCells(int32_t n_cells);

  int32_t n_cells() const { return static_cast<int32_t>(cells_.size()); }
  int32_t n_used() const { return n_used_; }
  // One past the highest used cell; 0 if none is used.
  int32_t used_end() const { return used_end_; }

  // The `out.size()` lowest free cells, ascending; nothing is marked as used.
  // Errors: kOutOfMemory if fewer are free.
  Status find_free(std::span<int32_t> out) const;

  // The free cell for the next token of `sequence`: the lowest one behind all of its cells, so that
  // they are in the order of their positions and attention adds up in that order, whoever else has
  // cells between; only where none is free there, the lowest one.
  // Errors: kOutOfMemory if none is free.
  Result<int32_t> find_next(SequenceId sequence) const;

  // Requires: the cell is free, position >= 0.
  void occupy(int32_t cell, int32_t position, SequenceId sequence);

  // Takes the cell away from all its sequences. Requires: it is used, and not the last position of
  // a sequence.
  void free(int32_t cell);

  // Takes positions [begin, end) away from `sequence`; cells without a sequence become free.
  void remove(SequenceId sequence, int32_t begin, int32_t end);
  // Lets `to` share the cells of positions [begin, end) of `from`.
  void copy(SequenceId from, SequenceId to, int32_t begin, int32_t end);

  // The highest position of a sequence; -1 if it has none.
  int32_t last_position(SequenceId sequence) const { return last_positions_[sequence]; }
  // Cells of a sequence ordered by position.
  std::vector<int32_t> cells_of(SequenceId sequence) const;

  // How many positions [begin, end) of a sequence there are.
  int32_t count(SequenceId sequence, int32_t begin, int32_t end) const;
  // Bit s: the cell belongs to sequence s.
  uint64_t sequences(int32_t cell) const { return cells_[cell].sequences; }

  int32_t position(int32_t cell) const { return cells_[cell].position; }
  bool belongs_to(int32_t cell, SequenceId sequence) const {
    return (cells_[cell].sequences >> sequence & 1) != 0;
  }
  // Whether a query of `sequence` at `position` may attend to `cell`: same sequence, not later.
  bool visible(int32_t cell, SequenceId sequence, int32_t position) const {
    const Cell& c = cells_[cell];
    return (c.sequences >> sequence & 1) != 0 && c.position <= position;
  }

 private:
  struct Cell {
    int32_t position = -1;
    uint64_t sequences = 0;  // bit s: belongs to sequence s
  };

  void update_last(SequenceId sequence);

  std::vector<Cell> cells_;
  // Kept up to date, because every decode step asks for them and contexts are long.
  std::array<int32_t, kMaxSequences> last_positions_;
  std::array<int32_t, kMaxSequences> last_cells_;  // highest ones, -1 for none
  int32_t n_used_ = 0;
  int32_t used_end_ = 0;
  int32_t first_free_ = 0;  // no cell below it is free
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_KV_KV_CELLS_H_
