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
// Thread-compatible.
#ifndef HOTSET_ENGINE_KV_CACHE_H_
#define HOTSET_ENGINE_KV_CACHE_H_

#include <ggml-cpp.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/device.h"
#include "hotset/engine/kv_cells.h"
#include "hotset/engine/placement.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

// Graphs are kept per n_kv; steps of 256 keep them few.
inline constexpr int32_t kCellBucket = 256;

struct KvCacheOptions {
  int32_t n_ctx = 4096;                // positions over all sequences, at least 1
  ggml_type key_type = GGML_TYPE_F16;  // F32, F16 or Q8_0
  // F32, F16 or, with flash attention, Q8_0. Without effect where the values are in the keys.
  ggml_type value_type = GGML_TYPE_F16;
  bool flash_attention = true;
};

class KvCache {
 public:
  // Errors: kInvalidArgument (types that do not go together, naming both), kOutOfMemory.
  // The layers of `placement` live in the memory of `device` (null: none), the others in buffers of
  // `cpu_type`.
  static Result<KvCache> create(const model::ModelSpec& spec, const KvCacheOptions& options,
                                ggml_backend_buffer_type_t cpu_type,
                                device::Device* device = nullptr, Placement placement = {});

  const KvCacheOptions& options() const { return options_; }
  bool values_transposed() const { return !options_.flash_attention && !values_in_keys_; }
  KvCells& cells() { return cells_; }
  const KvCells& cells() const { return cells_; }
  ggml_tensor* keys(int64_t layer) const { return keys_[static_cast<size_t>(layer)]; }
  // Requires: the values are not in the keys.
  ggml_tensor* values(int64_t layer) const { return values_[static_cast<size_t>(layer)]; }
  Bytes n_bytes() const;

  // Cells that a graph must read so that all used ones are among them: used_end() rounded up to a
  // bucket, at least one bucket, at most all cells.
  int32_t n_kv() const;

  // Forgets everything.
  void clear();

 private:
  KvCache(const KvCacheOptions& options, bool values_in_keys)
      : options_(options), values_in_keys_(values_in_keys), cells_(1) {}

  KvCacheOptions options_;
  bool values_in_keys_;
  KvCells cells_;
  ggml_context_ptr context_;         // layers of the CPU
  ggml_context_ptr device_context_;  // layers of the device
  ggml_backend_buffer_ptr buffer_;   // null without such layers, as the next one
  device::DeviceBuffer device_buffer_;
  std::vector<ggml_tensor*> keys_;
  std::vector<ggml_tensor*> values_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_KV_CACHE_H_
