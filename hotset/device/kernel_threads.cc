#include "hotset/device/kernel_threads.h"

#include <ggml-backend.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "hotset/base/allocation.h"
#include "hotset/device/backend.h"

namespace hotset::device {
namespace {

// What OpenMP starts where nobody says how many.
int default_team() {
  const char* const asked = std::getenv("OMP_NUM_THREADS");
  const int n_asked = asked == nullptr ? 0 : std::atoi(asked);
  return std::max(n_asked, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace

Status expect_kernel_threads(int n_threads) {
  thread_local int n_started = 1;
  if (n_threads <= n_started) return {};
  constexpr std::string_view kWhat = "kernel threads";
  HOTSET_RETURN_IF_ERROR(expect_memory(kWhat));
  pthread_attr_t attributes;
  size_t stack_bytes = 0;
  if (pthread_getattr_default_np(&attributes) == 0) {
    pthread_attr_getstacksize(&attributes, &stack_bytes);
    pthread_attr_destroy(&attributes);
  }
  // With its guard page and what the libraries note of it.
  stack_bytes += static_cast<size_t>(kSmallAllocations.count);
  const size_t n_bytes = stack_bytes * static_cast<size_t>(n_threads - n_started);
  void* addresses =
      mmap(nullptr, n_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (addresses == MAP_FAILED) return memory_refused(kWhat);
  munmap(addresses, n_bytes);
  n_started = n_threads;
  return {};
}

Status set_weight(ggml_tensor* tensor, std::span<const uint8_t> bytes) {
  constexpr std::string_view kWhat = "weights";
  if (!ggml_backend_buffer_is_host(tensor->buffer)) {
    HOTSET_RETURN_IF_ERROR(expect_kernel_threads(default_team()));
    HOTSET_RETURN_IF_ERROR(expect_memory(kWhat));
  }
  return catching_refusal(kWhat, [&] { return set_tensor(tensor, bytes); });
}

}  // namespace hotset::device
