// What graphs are told about a ubatch, as host arrays: computed once, copied to whoever needs it.
// Keeps its memory, so that nothing is allocated in steady state.
// Thread-compatible.
#ifndef HOTSET_ENGINE_GRAPH_UBATCH_INPUTS_H_
#define HOTSET_ENGINE_GRAPH_UBATCH_INPUTS_H_

#include <ggml.h>

#include <cstdint>
#include <span>
#include <vector>

#include "hotset/engine/graph/graph_builder.h"
#include "hotset/engine/kv/kv_cache.h"
#include "hotset/engine/run/executor.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

// The fields are those of GraphInputs.
struct UbatchInputs {
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int64_t> key_rows;
  std::vector<int64_t> value_rows;
  std::vector<ggml_fp16_t> mask;
  std::vector<int32_t> output_rows;

  // The shape that a graph for the ubatch must have.
  static GraphShape shape_of(std::span<const BatchToken> ubatch, const KvCache& kv);

  // `cells` as from KvCache::assign().
  void fill(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
            const model::ModelSpec& spec, const KvCache& kv);

 private:
  void fill_masks(std::span<const BatchToken> ubatch, const model::ModelSpec& spec,
                  const KvCache& kv);
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_GRAPH_UBATCH_INPUTS_H_
