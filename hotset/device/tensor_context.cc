#include "hotset/device/tensor_context.h"

#include <cstdlib>

#include "hotset/base/allocation.h"

namespace hotset::device {

void TensorContextDelete::operator()(ggml_context* context) const {
  void* memory = ggml_get_mem_buffer(context);
  ggml_free(context);
  std::free(memory);
}

Result<TensorContext> new_tensor_context(size_t n_tensors, size_t n_graph_nodes, size_t n_graphs) {
  const size_t graph_bytes =
      n_graph_nodes > 0 ? ggml_graph_overhead_custom(n_graph_nodes, false) : 0;
  // ggml takes no size of zero, and rounds a size up, but not that of memory it was given.
  const size_t n_bytes =
      (ggml_tensor_overhead() * (n_tensors + 1) + graph_bytes * n_graphs + GGML_MEM_ALIGN - 1) /
      GGML_MEM_ALIGN * GGML_MEM_ALIGN;
  // For ggml's own part of it.
  HOTSET_RETURN_IF_ERROR(expect_memory("descriptions of tensors"));
  void* memory = std::aligned_alloc(GGML_MEM_ALIGN, n_bytes);
  if (memory == nullptr) return memory_refused("descriptions of tensors");
  return TensorContext(ggml_init({.mem_size = n_bytes, .mem_buffer = memory, .no_alloc = true}));
}

}  // namespace hotset::device
