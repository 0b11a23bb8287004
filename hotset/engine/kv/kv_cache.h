// The KV memory of a model on one device: keys and values of every layer, one row per cell, and
// the bookkeeping of which cell holds what (KvCells).
//
// Layouts, with R = n_head_kv * head_dim:
//   keys    [n_cells, R_k]   a row per cell
//   values  [n_cells, R_v]   a row per cell with flash attention, else transposed, [R_v, n_cells],
//                            because the product with the attention weights runs over the cells
// Where a key holds its value as well (AttentionSpec::values_in_keys), there are no values.
// Graphs read the first n_kv cells, n_kv a multiple of kCellBucket, and mask what a query may not
// see. Rows are written by set_rows, so graphs do not depend on where a token goes.
//
// Layers that see only a window of positions may have cells of their own, as many as the windows of
// all sequences and one ubatch need. A position that has left the window of its sequences gives its
// cell to another one when that is needed, the oldest first; so a sequence that is cut back further
// than its cells reach loses all of it (forget()), and never computes with less than it should see.
// Thread-compatible.
#ifndef HOTSET_ENGINE_KV_KV_CACHE_H_
#define HOTSET_ENGINE_KV_KV_CACHE_H_

#include <ggml-cpp.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/device.h"
#include "hotset/device/tensor_context.h"
#include "hotset/device/zeroed_buffer.h"
#include "hotset/engine/kv/context_options.h"
#include "hotset/engine/kv/kv_cells.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/placement.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

// Graphs are kept per n_kv; steps of 256 keep them few.
inline constexpr int32_t kCellBucket = 256;
inline constexpr int32_t kMaxContext = 1 << 28;

// The cells that windowed layers need for ubatches of `n_ubatch` tokens and so many sequences,
// rounded up to a bucket; 0 if there are no such layers, or if that is no less than a full context.
int32_t window_cells(const model::ModelSpec& spec, int32_t n_ctx, int32_t n_ubatch,
                     int32_t n_sequences);

class KvCache {
 public:
  // `options` as kv_context() gives them: n_ctx at least 1; n_window_cells 0 where windowed layers
  // have as many cells as the others; flash attention unless it is off.
  // Errors: kInvalidArgument (types that do not go together, naming both), kOutOfMemory.
  // The layers of `placement` live in the memory of `device` (null: none), the others in buffers of
  // `cpu_type`.
  static Result<KvCache> create(const model::ModelSpec& spec, const ContextOptions& options,
                                ggml_backend_buffer_type_t cpu_type,
                                device::DeviceMemory* memory = nullptr, Placement placement = {});

  const ContextOptions& options() const { return options_; }
  bool values_transposed() const { return !flash_attention() && !values_in_keys_; }
  bool flash_attention() const { return options_.flash_attention != FlashAttention::kOff; }
  const KvCells& cells() const { return cells_; }
  // Whether windowed layers have cells of their own.
  bool has_window_cells() const { return window_cells_.has_value(); }
  // Those of windowed layers.
  const KvCells& window_cells() const { return window_cells_ ? *window_cells_ : cells_; }
  // Cells that each token takes: 1, or 2 where windowed layers have their own.
  int32_t n_cell_kinds() const { return has_window_cells() ? 2 : 1; }

  // Gives each token of a ubatch its cells, marked as occupied: `cells [n_cell_kinds, n_tokens]`,
  // those of windowed layers last. Requires: positions follow on those of their sequence.
  // Errors: kOutOfMemory, nothing is changed then.
  Status assign(std::span<const BatchToken> ubatch, std::vector<int32_t>& cells);
  // Gives a sequence, which is empty, cells for `positions`, and for `window_positions`, the last
  // of these, cells of windowed layers: `window_cells`, which are some of `cells` where these
  // layers have none of their own. Requires: both ascending; if windowed layers have no cells of
  // their own, both the same, or no windows. Errors: kOutOfMemory, nothing is changed then.
  Status assign_restored(SequenceId sequence, std::span<const int32_t> positions,
                         std::span<const int32_t> window_positions, std::vector<int32_t>& cells,
                         std::vector<int32_t>& window_cells);
  // Takes positions [begin, end) away from a sequence, and all others as well if a windowed layer
  // no longer has what the next position would see: ask cells().last_position().
  void forget(SequenceId sequence, int32_t begin, int32_t end);
  // Lets `to`, which is empty, share positions [0, end) of `from`; none if windowed layers no
  // longer have what position `end` would see.
  void share(SequenceId from, SequenceId to, int32_t end);
  const model::AttentionSpec& attention() const { return attention_; }
  int64_t n_layer() const { return std::ssize(keys_); }
  // Copies bytes of a tensor of the KV memory from or to the host's, and waits for it.
  // Errors: kDevice.
  Status read(const ggml_tensor* tensor, size_t offset, void* to, size_t n_bytes) const;
  Status write(ggml_tensor* tensor, size_t offset, const void* from, size_t n_bytes) const;
  ggml_tensor* keys(int64_t layer) const { return keys_[layer]; }
  // Requires: the values are not in the keys.
  ggml_tensor* values(int64_t layer) const { return values_[layer]; }
  Bytes n_bytes() const;

  // Cells that a graph must read so that all used ones are among them: used_end() rounded up to a
  // bucket, at least one bucket, at most all cells.
  int32_t n_kv() const;
  // The same for windowed layers; 0 if the model has none.
  int32_t n_kv_window() const { return has_windows_ ? n_read(window_cells()) : 0; }
  int32_t max_n_kv_window() const { return has_windows_ ? window_cells().n_cells() : 0; }
  // Memory that does not grow with the context, on device and CPU.
  Bytes window_bytes(bool on_device) const;

  // Forgets everything.
  void clear();

 private:
  KvCache(const ContextOptions& options, const model::AttentionSpec& attention)
      : options_(options),
        values_in_keys_(attention.values_in_keys),
        has_windows_(attention.window > 0),
        attention_(attention),
        cells_(1) {}

  static int32_t n_read(const KvCells& cells);
  // Frees cells that no sequence's next position can see, until `n` are free or none is left.
  void make_room(int32_t n);
  void drop_unless_whole(SequenceId sequence);

  ContextOptions options_;
  bool values_in_keys_;
  bool has_windows_;
  model::AttentionSpec attention_;
  KvCells cells_;
  std::optional<KvCells> window_cells_;
  struct CellCandidate {
    int32_t surplus = 0;  // positions that it is too old by
    int32_t cell = 0;
  };
  std::vector<CellCandidate> candidates_;
  device::Device* device_ = nullptr;
  device::TensorContext context_;         // layers of the CPU
  device::TensorContext device_context_;  // layers of the device
  device::ZeroedBuffer buffer_;           // null without such layers, as the next one
  device::DeviceBuffer device_buffer_;
  std::vector<ggml_tensor*> keys_;
  std::vector<ggml_tensor*> values_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_KV_KV_CACHE_H_
