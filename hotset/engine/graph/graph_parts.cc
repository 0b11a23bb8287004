#include "hotset/engine/graph/graph_parts.h"

#include "hotset/base/error.h"
#include "hotset/engine/experts/lookup_graphs.h"

namespace hotset::engine {

std::vector<int32_t> measured_sizes(int32_t n_ubatch) {
  std::vector<int32_t> sizes = {n_ubatch};
  for (int32_t n = n_ubatch - 1; n > 0; --n) {
    if (pair_bucket(n) == n) sizes.push_back(n);
  }
  return sizes;
}

Result<KeptGraph> new_kept_graph(size_t n_nodes) {
  KeptGraph kept;
  HOTSET_TRY(kept.context, device::new_tensor_context(n_nodes, n_nodes));
  kept.graph = ggml_new_graph_custom(kept.context.get(), n_nodes, false);
  return kept;
}

ggml_tensor* part_of(ggml_context* context, ggml_tensor* where, int64_t ne0, int64_t ne1,
                     int64_t ne2, size_t offset) {
  ggml_tensor* part = ggml_new_tensor_3d(context, where->type, ne0, ne1, ne2);
  HOTSET_CHECK(offset + ggml_nbytes(part) <= ggml_nbytes(where));
  HOTSET_CHECK(
      ggml_backend_tensor_alloc(where->buffer, part, static_cast<uint8_t*>(where->data) + offset) ==
      GGML_STATUS_SUCCESS);
  return part;
}

void place(GraphBuilder& g, ggml_tensor* result, ggml_tensor* where) {
  ggml_tensor* root = result;
  while (root->view_src != nullptr && root->view_offs == 0 &&
         ggml_nbytes(root->view_src) <= ggml_nbytes(where) && ggml_is_contiguous(root)) {
    root = root->view_src;
  }
  if (root->view_src != nullptr || root->buffer != nullptr || root->op == GGML_OP_NONE) {
    root = ggml_cont(g.context(), result);
    result = root;
  }
  HOTSET_CHECK(root->type == where->type && ggml_nbytes(root) <= ggml_nbytes(where));
  HOTSET_CHECK(ggml_backend_tensor_alloc(where->buffer, root, where->data) == GGML_STATUS_SUCCESS);
  ggml_build_forward_expand(g.graph(), result);
}

}  // namespace hotset::engine
