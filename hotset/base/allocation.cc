#include "hotset/base/allocation.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

namespace hotset {
namespace {

std::atomic<bool> g_has_gate = false;
AllocationGate g_gate;  // as set_allocation_gate() says

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

}  // namespace

void set_allocation_gate(AllocationGate gate) {
  g_gate = std::move(gate);
  g_has_gate = static_cast<bool>(g_gate);
}

std::unexpected<Error> memory_refused(std::string_view what) {
  return make_error(ErrorCode::kOutOfMemory, "{}: the system refused memory", what);
}

Status expect_memory(std::string_view what, Bytes n_bytes) {
  if (g_has_gate && !g_gate(what)) return memory_refused(what);
  const auto too_much = [&] {
    return make_error(ErrorCode::kOutOfMemory, "{}: the system refused {} of memory", what,
                      to_string(n_bytes));
  };
  if (n_bytes > kSmallAllocations) {
    // Not by malloc: sizes that it has mapped and freed once it takes from its heaps from then on,
    // and gives back later.
    const auto n = static_cast<size_t>(n_bytes.count);
    void* mapped = mmap(nullptr, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return too_much();
    munmap(mapped, n);
  }
  // Through a volatile pointer: a compiler may leave out what is allocated and freed for nothing.
  void* volatile memory =
      std::malloc(static_cast<size_t>(std::min(n_bytes.count, kSmallAllocations.count)));
  const std::unique_ptr<void, Free> owned(memory);
  if (owned == nullptr) return too_much();
  return {};
}

}  // namespace hotset
