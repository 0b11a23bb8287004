// Cells of the KV memory that hold what is no number: NaN or infinite. What a query may not see is
// multiplied by zero, and zero times NaN is NaN: where a backend does not skip masked cells, one
// such cell spoils every sequence that is computed with it in reach.
// Thread-compatible.
#ifndef HOTSET_ENGINE_KV_KV_FAULTS_H_
#define HOTSET_ENGINE_KV_KV_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/kv/kv_cache.h"

namespace hotset::engine {

// Whether all of `n_rows` rows side by side, as the KV memory stores them, are finite numbers.
// Requires: F32, F16 or Q8_0; row_bytes is of whole blocks.
bool rows_are_finite(ggml_type type, std::span<const uint8_t> rows);

class KvFaults {
 public:
  // Reads all cells that graphs read. Errors: kDevice.
  static Result<KvFaults> find(const KvCache& kv);

  // The first layer in which a cell has a fault; `n_layer` of the model if none has.
  int64_t first_layer() const { return first_layer_; }
  // Bit s: a cell of sequence s has one in that layer.
  uint64_t sequences() const { return sequences_; }

  // Makes zeros of what cells hold that have faults and belong to one of `sequences` (bits) or to
  // nobody. Errors: kDevice.
  Status clear(const KvCache& kv, uint64_t sequences) const;

 private:
  struct Found {
    int64_t layer;
    bool in_values;
    std::vector<int32_t> cells;  // ascending
  };

  std::vector<Found> found_;
  int64_t first_layer_ = 0;
  uint64_t sequences_ = 0;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_KV_KV_FAULTS_H_
