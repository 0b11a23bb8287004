// ggml's process-wide state: its log, and the backends that it finds on this machine.
//
// Shapes: hotset writes shapes outermost dimension first, `x [n_tokens, n_embd]`; ggml's `ne` lists
// the same dimensions innermost first, ne = {n_embd, n_tokens, 1, 1}. This is the one place where
// that is said.
// Thread-safe.
#ifndef HOTSET_DEVICE_GGML_RUNTIME_H_
#define HOTSET_DEVICE_GGML_RUNTIME_H_

#include <ggml-backend.h>

#include <filesystem>
#include <string>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::device {

// The environment variable that names the build of the CPU backend to use, for diagnosis and tests:
// without it ggml takes the best one that the machine can execute.
inline constexpr const char* kCpuVariantVariable = "HOTSET_CPU_VARIANT";

// Sends ggml's log to hotset's and loads all backends, once per process. Sets the environment
// variable GGML_VK_ASYNC_USE_TRANSFER_QUEUE where it is not set; call it before other threads read
// the environment.
// Errors: kDevice if not even a CPU backend is found; kInvalidArgument if kCpuVariantVariable names
// none that this machine can execute.
Status init_ggml();

// One build of ggml's CPU backend, for processors with certain instructions. Which one computes
// decides about kernels, layouts of weights and rounding.
struct CpuVariant {
  std::string name;  // "haswell", as in libggml-cpu-haswell.so
  int score = 0;     // by which ggml ranks them: more for more instructions
  std::filesystem::path path = {};
};

// The builds that this machine can execute, best first; none where ggml was built for one kind of
// processor only. Requires: init_ggml() succeeded.
std::vector<CpuVariant> cpu_variants();

// The name of the one in use; empty where ggml was built for one kind of processor only.
// Requires: init_ggml() succeeded.
std::string cpu_variant();

// The CPU device. Requires: init_ggml() succeeded.
ggml_backend_dev_t cpu_device();

// A function of a backend by its name, or null. `Function` is its pointer type.
template <typename Function>
Function proc_address(ggml_backend_dev_t device, const char* name) {
  return reinterpret_cast<Function>(
      ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), name));
}

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_GGML_RUNTIME_H_
