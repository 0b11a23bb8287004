#include "hotset/device/backend.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "hotset/base/memory_limits.h"
#include "hotset/device/ggml_runtime.h"

namespace hotset::device {
namespace {

constexpr int kMaxThreads = 512;  // GGML_MAX_N_THREADS, above which ggml aborts

// Host memory is promised by the system whether it is there or not, and the process ends when it
// turns out not to be: so what is not there is not asked for.
Status check_available(ggml_backend_buffer_type_t type, Bytes needed, std::string_view what) {
  if (!ggml_backend_buft_is_host(type)) return {};
  const Bytes available = available_host_memory();
  if (needed <= available) return {};
  return make_error(ErrorCode::kOutOfMemory, "{}: needs {}, the machine has {} available", what,
                    to_string(needed), to_string(available));
}

}  // namespace

Result<Backend> Backend::cpu(int n_threads) {
  HOTSET_RETURN_IF_ERROR(check_threads(n_threads));
  HOTSET_RETURN_IF_ERROR(init_ggml());
  Backend backend(ggml_backend_ptr(ggml_backend_dev_init(cpu_device(), nullptr)));
  if (!backend.backend_) return make_error(ErrorCode::kDevice, "the CPU backend does not start");
  HOTSET_RETURN_IF_ERROR(backend.set_threads(n_threads));
  return backend;
}

Status Backend::check_threads(int n_threads) {
  if (n_threads >= 1 && n_threads <= kMaxThreads) return {};
  return make_error(ErrorCode::kInvalidArgument, "threads: found {}, expected 1 to {}", n_threads,
                    kMaxThreads);
}

Status Backend::set_threads(int n_threads) {
  HOTSET_RETURN_IF_ERROR(check_threads(n_threads));
  const auto set_n_threads =
      proc_address<ggml_backend_set_n_threads_t>(cpu_device(), "ggml_backend_set_n_threads");
  if (set_n_threads == nullptr) {
    return make_error(
        ErrorCode::kDevice,
        "the CPU backend has no ggml_backend_set_n_threads, expected ggml 0.27 or newer");
  }
  set_n_threads(backend_.get(), n_threads);
  return {};
}

std::vector<ggml_backend_buffer_type_t> Backend::extra_buffer_types() const {
  std::vector<ggml_backend_buffer_type_t> types;
  const auto get = proc_address<ggml_backend_dev_get_extra_bufts_t>(
      device(), "ggml_backend_dev_get_extra_bufts");
  if (get == nullptr) return types;
  for (ggml_backend_buffer_type_t* type = get(device()); type != nullptr && *type != nullptr;
       ++type) {
    types.push_back(*type);
  }
  return types;
}

Status Backend::compute(ggml_cgraph* graph) {
  switch (ggml_backend_graph_compute(backend_.get(), graph)) {
    case GGML_STATUS_SUCCESS:
      return {};
    case GGML_STATUS_ABORTED:
      return make_error(ErrorCode::kCancelled, "{}: the computation was cancelled",
                        ggml_backend_name(backend_.get()));
    case GGML_STATUS_ALLOC_FAILED:
      return make_error(ErrorCode::kOutOfMemory, "{}: out of memory while computing",
                        ggml_backend_name(backend_.get()));
    case GGML_STATUS_FAILED:
      break;
  }
  return make_error(ErrorCode::kDevice, "{}: the computation failed",
                    ggml_backend_name(backend_.get()));
}

Bytes ComputeBuffer::measure(ggml_cgraph* graph) const {
  size_t n_bytes = 0;
  ggml_gallocr_reserve_n_size(allocator_.get(), graph, nullptr, nullptr, &n_bytes);
  return {static_cast<int64_t>(n_bytes)};
}

Bytes ComputeBuffer::with_margin(Bytes needs) {
  // A multiple of every device's alignment, so that nothing else moves.
  constexpr int64_t kPage = 4096;
  return needs + align_up({needs.count / 16 + 1}, kPage);
}

Status ComputeBuffer::reserve(ggml_cgraph* graph) {
  if (reserved_.count > 0) {
    return make_error(ErrorCode::kInternal, "the compute buffer was already reserved at {}",
                      to_string(reserved_));
  }
  const Bytes needs = measure(graph);
  const Bytes needed = with_margin(needs);
  HOTSET_RETURN_IF_ERROR(check_available(type_, needed, "compute buffer (-c, -ub)"));
  // The margin is a tensor of its own in a copy of the graph.
  const auto n_nodes = static_cast<size_t>(ggml_graph_size(graph)) + 1;
  const ggml_context_ptr context(
      ggml_init({.mem_size = ggml_tensor_overhead() + ggml_graph_overhead_custom(n_nodes, false),
                 .mem_buffer = nullptr,
                 .no_alloc = true}));
  ggml_cgraph* padded = ggml_new_graph_custom(context.get(), n_nodes, false);
  ggml_graph_cpy(graph, padded);
  ggml_tensor* margin = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, needed.count - needs.count);
  ggml_set_input(margin);
  ggml_set_output(margin);
  ggml_build_forward_expand(padded, margin);
  if (!ggml_gallocr_reserve(allocator_.get(), padded)) {
    return make_error(ErrorCode::kOutOfMemory, "compute buffer: {} were refused",
                      to_string(needed));
  }
  reserved_ = {static_cast<int64_t>(ggml_gallocr_get_buffer_size(allocator_.get(), 0))};
  return {};
}

Status ComputeBuffer::allocate(ggml_cgraph* graph) {
  const Bytes needed = measure(graph);
  if (needed > reserved_) {
    return make_error(ErrorCode::kInternal, "compute buffer: a graph needs {}, reserved were {}",
                      to_string(needed), to_string(reserved_));
  }
  if (!ggml_gallocr_alloc_graph(allocator_.get(), graph)) {
    return make_error(ErrorCode::kInternal, "compute buffer: a graph could not be placed");
  }
  const Bytes now{static_cast<int64_t>(ggml_gallocr_get_buffer_size(allocator_.get(), 0))};
  if (now != reserved_) {
    return make_error(ErrorCode::kInternal, "compute buffer: it moved from {} to {}",
                      to_string(reserved_), to_string(now));
  }
  return {};
}

Result<ggml_backend_buffer_ptr> allocate_tensors(ggml_context* context,
                                                 ggml_backend_buffer_type_t type,
                                                 std::string_view what) {
  const Bytes needed{
      static_cast<int64_t>(ggml_backend_alloc_ctx_tensors_from_buft_size(context, type))};
  HOTSET_RETURN_IF_ERROR(check_available(type, needed, what));
  ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
  if (!buffer) {
    return make_error(ErrorCode::kOutOfMemory, "{}: {} were refused by {}", what, to_string(needed),
                      ggml_backend_buft_name(type));
  }
  return buffer;
}

std::string ggml_build() {
  const std::string commit = ggml_commit();
  if (commit.empty() || commit == "unknown") return ggml_version();
  return fmt::format("{} ({})", ggml_version(), commit);
}

Bytes available_host_memory() {
  const Bytes allowed = memory_left_by_limits();
  std::ifstream info("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (info >> key >> kib >> unit) {
    if (key == "MemAvailable:") return std::min(allowed, Bytes{kib * 1024});
  }
  return allowed;
}

}  // namespace hotset::device
