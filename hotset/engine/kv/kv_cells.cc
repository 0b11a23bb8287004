#include "hotset/engine/kv/kv_cells.h"

#include <algorithm>

namespace hotset::engine {
namespace {

constexpr uint64_t bit(SequenceId sequence) { return uint64_t{1} << sequence; }

void check_sequence(SequenceId sequence) {
  HOTSET_CHECK(sequence >= 0 && sequence < kMaxSequences);
}

}  // namespace

KvCells::KvCells(int32_t n_cells) : cells_(n_cells) {
  HOTSET_CHECK(n_cells > 0);
  last_positions_.fill(-1);
  last_cells_.fill(-1);
}

Status KvCells::find_free(std::span<int32_t> out) const {
  size_t n = 0;
  for (int32_t cell = first_free_; cell < n_cells() && n < out.size(); ++cell) {
    if (cells_[cell].sequences == 0) out[n++] = cell;
  }
  if (n == out.size()) return {};
  return make_error(ErrorCode::kOutOfMemory,
                    "the context is full: {} of {} positions are used, {} more were needed (raise "
                    "-c)",
                    n_used_, n_cells(), out.size());
}

Result<int32_t> KvCells::find_next(SequenceId sequence) const {
  check_sequence(sequence);
  const auto is_free = [](const Cell& cell) { return cell.sequences == 0; };
  const int32_t begin = std::max(first_free_, last_cells_[sequence] + 1);
  auto found = std::find_if(cells_.begin() + std::min(begin, n_cells()), cells_.end(), is_free);
  if (found == cells_.end()) {
    found = std::find_if(cells_.begin() + std::min(first_free_, n_cells()), cells_.end(), is_free);
  }
  if (found != cells_.end()) return static_cast<int32_t>(found - cells_.begin());
  return make_error(ErrorCode::kOutOfMemory,
                    "the context is full: all {} positions are used (raise -c)", n_cells());
}

void KvCells::occupy(int32_t cell, int32_t position, SequenceId sequence) {
  HOTSET_CHECK(cell >= 0 && cell < n_cells() && position >= 0);
  check_sequence(sequence);
  Cell& c = cells_[cell];
  HOTSET_CHECK(c.sequences == 0);
  c = {.position = position, .sequences = bit(sequence)};
  ++n_used_;
  used_end_ = std::max(used_end_, cell + 1);
  if (cell == first_free_) ++first_free_;
  int32_t& last = last_positions_[sequence];
  last = std::max(last, position);
  int32_t& last_cell = last_cells_[sequence];
  last_cell = std::max(last_cell, cell);
}

void KvCells::free(int32_t cell) {
  HOTSET_CHECK(cell >= 0 && cell < used_end_ && sequences(cell) != 0);
  cells_[cell] = {};
  --n_used_;
  first_free_ = std::min(first_free_, cell);
  while (used_end_ > 0 && sequences(used_end_ - 1) == 0) --used_end_;
}

int32_t KvCells::count(SequenceId sequence, int32_t begin, int32_t end) const {
  check_sequence(sequence);
  int32_t n = 0;
  for (int32_t cell = 0; cell < used_end_; ++cell) {
    if (belongs_to(cell, sequence) && position(cell) >= begin && position(cell) < end) ++n;
  }
  return n;
}

void KvCells::remove(SequenceId sequence, int32_t begin, int32_t end) {
  check_sequence(sequence);
  for (int32_t cell = 0; cell < used_end_; ++cell) {
    Cell& c = cells_[cell];
    if ((c.sequences & bit(sequence)) == 0 || c.position < begin || c.position >= end) continue;
    c.sequences &= ~bit(sequence);
    if (c.sequences == 0) {
      c.position = -1;
      --n_used_;
      first_free_ = std::min(first_free_, cell);
    }
  }
  while (used_end_ > 0 && cells_[static_cast<size_t>(used_end_) - 1].sequences == 0) --used_end_;
  update_last(sequence);
}

void KvCells::copy(SequenceId from, SequenceId to, int32_t begin, int32_t end) {
  check_sequence(from);
  check_sequence(to);
  for (Cell& c : cells_) {
    if ((c.sequences & bit(from)) != 0 && c.position >= begin && c.position < end) {
      c.sequences |= bit(to);
    }
  }
  update_last(to);
}

void KvCells::update_last(SequenceId sequence) {
  int32_t last = -1;
  int32_t last_cell = -1;
  for (int32_t cell = 0; cell < used_end_; ++cell) {
    if (!belongs_to(cell, sequence)) continue;
    last = std::max(last, position(cell));
    last_cell = cell;
  }
  last_positions_[sequence] = last;
  last_cells_[sequence] = last_cell;
}

std::vector<int32_t> KvCells::cells_of(SequenceId sequence) const {
  std::vector<int32_t> found;
  for (int32_t cell = 0; cell < n_cells(); ++cell) {
    if (belongs_to(cell, sequence)) found.push_back(cell);
  }
  std::ranges::sort(found, {}, [&](int32_t cell) { return position(cell); });
  return found;
}

}  // namespace hotset::engine
