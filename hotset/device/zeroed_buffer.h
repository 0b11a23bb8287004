// Host memory for tensors that is zero. Of much of it a page is taken only when something is stored
// in it, so memory that is meant for a long context costs what is used of it.
// Thread-compatible. Move-only.
#ifndef HOTSET_DEVICE_ZEROED_BUFFER_H_
#define HOTSET_DEVICE_ZEROED_BUFFER_H_

#include <ggml-cpp.h>

#include <cstddef>
#include <memory>
#include <string_view>

#include "hotset/base/error.h"

namespace hotset::device {

struct UnmapPages {
  size_t n_bytes = 0;
  void operator()(void* pages) const;
};

class ZeroedBuffer {
 public:
  ZeroedBuffer() = default;

  // For all tensors of `context`, which have no address yet. `type`: the host's plain memory.
  // Errors: kOutOfMemory, naming `what` and its size.
  static Result<ZeroedBuffer> allocate(ggml_context* context, ggml_backend_buffer_type_t type,
                                       std::string_view what);

  ggml_backend_buffer_t get() const { return buffer_.get(); }
  explicit operator bool() const { return buffer_ != nullptr; }

 private:
  std::unique_ptr<void, UnmapPages> pages_;  // outlives the buffer
  ggml_backend_buffer_ptr buffer_;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_ZEROED_BUFFER_H_
