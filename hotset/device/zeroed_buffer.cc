#include "hotset/device/zeroed_buffer.h"

#include <ggml-alloc.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "hotset/base/units.h"
#include "hotset/device/backend.h"

namespace hotset::device {
namespace {

// So much is taken at once: a page that comes only when it is needed costs a moment in the middle
// of a reply, and a small context should not make a server's memory grow.
constexpr Bytes kTakenAtOnce = mib(64);

}  // namespace

void UnmapPages::operator()(void* pages) const { munmap(pages, n_bytes); }

Result<ZeroedBuffer> ZeroedBuffer::allocate(ggml_context* context, ggml_backend_buffer_type_t type,
                                            std::string_view what) {
  const size_t n_bytes = ggml_backend_alloc_ctx_tensors_from_buft_size(context, type);
  const Bytes needed{static_cast<int64_t>(n_bytes)};
  // Pages are promised whether they are there or not, and the process ends when they are not.
  if (const Bytes available = available_host_memory(); needed > available) {
    return make_error(ErrorCode::kOutOfMemory, "{}: needs {}, the machine has {} available", what,
                      to_string(needed), to_string(available));
  }
  ZeroedBuffer result;
  void* pages = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    return make_error(ErrorCode::kOutOfMemory, "{}: {} were refused: {}", what, to_string(needed),
                      std::strerror(errno));
  }
  result.pages_ = std::unique_ptr<void, UnmapPages>(pages, UnmapPages{n_bytes});
  HOTSET_TRY(result.buffer_, wrap_host_memory(what, pages, n_bytes));
  if (needed <= kTakenAtOnce) ggml_backend_buffer_clear(result.buffer_.get(), 0);
  ggml_tallocr place = ggml_tallocr_new(result.buffer_.get());
  for (ggml_tensor* t = ggml_get_first_tensor(context); t != nullptr;
       t = ggml_get_next_tensor(context, t)) {
    if (ggml_tallocr_alloc(&place, t) != GGML_STATUS_SUCCESS) {
      return make_error(ErrorCode::kInternal, "{}: tensor '{}' could not be placed", what, t->name);
    }
  }
  return result;
}

}  // namespace hotset::device
