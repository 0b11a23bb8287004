#include "hotset/device/queue_checks.h"

#include <string>

namespace hotset::device {

std::string describe(std::string_view verb, Label label) {
  if (*label.name == 0) return std::string(verb);
  if (label.layer < 0) return fmt::format("{} '{}'", verb, label.name);
  return fmt::format("{} '{}' (layer {})", verb, label.name, label.layer);
}

Result<CopyRange> check_copy(const CopyRequest& request, ggml_backend_buffer_type_t memory,
                             std::string_view device, Label label) {
  const ggml_tensor* tensor = request.tensor;
  if (tensor == nullptr || request.host == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {}: found a null {}, expected an address",
                      device, describe("copy", label),
                      tensor == nullptr ? "tensor" : "host pointer");
  }
  const size_t n_tensor_bytes = ggml_nbytes(tensor);
  if (request.offset > n_tensor_bytes || request.n_bytes > n_tensor_bytes - request.offset) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: {}: found bytes {} + {} of tensor '{}', expected at most {}", device,
                      describe("copy", label), request.offset, request.n_bytes, tensor->name,
                      n_tensor_bytes);
  }
  CopyRange range{const_cast<ggml_tensor*>(tensor), request.offset};
  if (tensor->view_src != nullptr) range = {tensor->view_src, request.offset + tensor->view_offs};
  const ggml_tensor* owner = range.tensor;
  if (owner->buffer == nullptr || owner->data == nullptr ||
      ggml_backend_buffer_get_type(owner->buffer) != memory) {
    return make_error(
        ErrorCode::kInvalidArgument, "{}: {}: found tensor '{}' in {}, expected it in {}", device,
        describe("copy", label), tensor->name,
        owner->buffer == nullptr ? "no memory" : ggml_backend_buffer_name(owner->buffer),
        ggml_backend_buft_name(memory));
  }
  return range;
}

Status check_graph(const ggml_cgraph* graph, std::string_view device, Label label) {
  if (graph != nullptr) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: {}: found no graph, expected one", device,
                    describe("graph", label));
}

}  // namespace hotset::device
