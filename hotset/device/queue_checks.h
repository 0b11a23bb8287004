// Checks of what is queued on a device before ggml sees it: ggml aborts on a wrong request.
// Thread-compatible: plain values.
#ifndef HOTSET_DEVICE_QUEUE_CHECKS_H_
#define HOTSET_DEVICE_QUEUE_CHECKS_H_

#include <ggml-backend.h>

#include <cstddef>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/device/device.h"

namespace hotset::device {

struct CopyRange {
  ggml_tensor* tensor = nullptr;  // never a view: the tensor that owns the memory
  size_t offset = 0;              // in bytes, from its start
};

// What a caller asks for: `n_bytes` from `offset` on of `tensor`, from or to `host`.
struct CopyRequest {
  const ggml_tensor* tensor = nullptr;
  size_t offset = 0;
  const void* host = nullptr;
  size_t n_bytes = 0;
};

// Where in the memory of a device (tensors of buffer type `memory`) the request lies.
// Errors: kInvalidArgument, naming the device, the label and the tensor.
Result<CopyRange> check_copy(const CopyRequest& request, ggml_backend_buffer_type_t memory,
                             std::string_view device, Label label);

// Errors: kInvalidArgument for a null graph.
Status check_graph(const ggml_cgraph* graph, std::string_view device, Label label);

// "copy 'experts' (layer 3)" for messages.
std::string describe(std::string_view verb, Label label);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_QUEUE_CHECKS_H_
