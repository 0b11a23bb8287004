// Small pieces of graphs whose inputs and results lie in persistent buffers.
// Thread-compatible.
#ifndef HOTSET_ENGINE_GRAPH_GRAPH_PARTS_H_
#define HOTSET_ENGINE_GRAPH_GRAPH_PARTS_H_

#include <ggml-cpp.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/tensor_context.h"
#include "hotset/engine/graph/graph_builder.h"

namespace hotset::engine {

// A graph that is built once and run many times, its tensors' addresses fixed.
struct KeptGraph {
  device::TensorContext context;
  ggml_cgraph* graph = nullptr;
  Bytes reads;  // of weights and KV memory
};

// The sizes of ubatch up to `n_ubatch` at which the need of compute buffers is measured: all up to
// 8, then 8 steps per doubling, and `n_ubatch` itself first.
std::vector<int32_t> measured_sizes(int32_t n_ubatch);

// An empty graph for so many nodes. Errors: kOutOfMemory.
Result<KeptGraph> new_kept_graph(size_t n_nodes);

// A tensor of the given shape at byte `offset` of `where`'s memory.
ggml_tensor* part_of(ggml_context* context, ggml_tensor* where, int64_t ne0, int64_t ne1 = 1,
                     int64_t ne2 = 1, size_t offset = 0);

// Lets `result` be computed right into `where`. A result that only reshapes another tensor, or is
// the beginning of one for which there is room, is placed by placing that one; what already lies
// elsewhere, or is another part of something, is copied.
void place(GraphBuilder& g, ggml_tensor* result, ggml_tensor* where);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_GRAPH_GRAPH_PARTS_H_
