// Memory that may be refused. Libraries below answer a refusal in their own ways: C++ throws,
// ggml's larger allocations return null, and its small ones end the process. So hotset asks before
// it lets a library allocate (expect_memory), and what is thrown all the same becomes an Error
// where a call enters a folder (catching_refusal); docs/adr/0008 says which calls those are.
// Thread-safe.
#ifndef HOTSET_BASE_ALLOCATION_H_
#define HOTSET_BASE_ALLOCATION_H_

#include <fmt/core.h>

#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset {

// What the small pieces of one call of a library take together: descriptions, lists, hash tables.
inline constexpr Bytes kSmallAllocations{64 << 10};

// That the process can have `n_bytes` now, and that no gate refuses them. They are taken and given
// back at once, so that the allocations behind this call find them. Cheap enough for every graph
// that is computed, up to kSmallAllocations. Errors: kOutOfMemory, naming `what`.
Status expect_memory(std::string_view what, Bytes n_bytes = kSmallAllocations);

// The error of an allocation of `what` that was refused.
std::unexpected<Error> memory_refused(std::string_view what);

// Decides about every allocation that goes through here or through hotset/device; false refuses it,
// as if there were no memory. An empty function: everything is allowed. For tests; set it while
// nothing else runs.
using AllocationGate = std::function<bool(std::string_view what)>;
void set_allocation_gate(AllocationGate gate);

// The result of `call()`, or kOutOfMemory naming `what` where the system refused memory or a thread
// in it and somebody threw that.
template <typename Call>
std::invoke_result_t<Call> catching_refusal(std::string_view what, Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::bad_alloc&) {
    return memory_refused(what);
  } catch (const std::length_error&) {  // a container that cannot become so large
    return memory_refused(what);
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again &&
        error.code() != std::errc::not_enough_memory) {
      throw;
    }
    return memory_refused(what);
  }
}

}  // namespace hotset

#endif  // HOTSET_BASE_ALLOCATION_H_
