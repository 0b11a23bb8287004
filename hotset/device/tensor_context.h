// Contexts of ggml, in which tensors and graphs are described; their data lies elsewhere.
// ggml ends the process where it finds no memory for a context, so it is given that memory.
// Thread-safe.
#ifndef HOTSET_DEVICE_TENSOR_CONTEXT_H_
#define HOTSET_DEVICE_TENSOR_CONTEXT_H_

#include <ggml.h>

#include <cstddef>
#include <memory>

#include "hotset/base/error.h"

namespace hotset::device {

// Frees the context and its memory.
struct TensorContextDelete {
  void operator()(ggml_context* context) const;
};
using TensorContext = std::unique_ptr<ggml_context, TensorContextDelete>;

// A context for the descriptions of so many tensors and of `n_graphs` graphs of so many nodes each.
// Errors: kOutOfMemory.
Result<TensorContext> new_tensor_context(size_t n_tensors, size_t n_graph_nodes = 0,
                                         size_t n_graphs = 1);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_TENSOR_CONTEXT_H_
