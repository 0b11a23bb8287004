#include "hotset/device/backend.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <new>
#include <string>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/base/memory_limits.h"
#include "hotset/device/ggml_runtime.h"
#include "hotset/device/kernel_threads.h"
#include "hotset/device/tensor_context.h"

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

Result<ggml_backend_ptr> start_cpu() {
  constexpr std::string_view kWhat = "the CPU backend";
  HOTSET_RETURN_IF_ERROR(expect_memory(kWhat));
  return catching_refusal(kWhat, [&]() -> Result<ggml_backend_ptr> {
    ggml_backend_ptr started(ggml_backend_dev_init(cpu_device(), nullptr));
    if (!started) return make_error(ErrorCode::kDevice, "{} does not start", kWhat);
    return started;
  });
}

}  // namespace

Result<Backend> Backend::cpu(int n_threads) {
  HOTSET_RETURN_IF_ERROR(check_threads(n_threads));
  HOTSET_RETURN_IF_ERROR(catching_refusal("ggml", init_ggml));
  HOTSET_TRY(ggml_backend_ptr started, start_cpu());
  Backend backend(std::move(started));
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
  n_threads_ = n_threads;
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

Status Backend::restart() {
  HOTSET_TRY(backend_, start_cpu());
  return set_threads(n_threads_);
}

Status Backend::compute(ggml_cgraph* graph) {
  if (!backend_) HOTSET_RETURN_IF_ERROR(restart());
  HOTSET_RETURN_IF_ERROR(expect_kernel_threads(n_threads_));
  HOTSET_RETURN_IF_ERROR(expect_memory("computing a graph"));
  ggml_status computed = GGML_STATUS_FAILED;
  try {
    computed = ggml_backend_graph_compute(backend_.get(), graph);
  } catch (const std::bad_alloc&) {
    // It threw between freeing its working memory and having other: it must not be freed again.
    [[maybe_unused]] const auto* left = backend_.release();
    return memory_refused("working memory of the CPU backend");
  }
  switch (computed) {
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

Status ComputeBuffer::expect_lists(ggml_cgraph* graph) {
  // ggml ends the process where it finds no memory for what it notes of each node and its sources.
  constexpr int64_t kNodeBytes = 1024;
  constexpr std::string_view kWhat = "compute buffer";
  HOTSET_RETURN_IF_ERROR(
      expect_memory(kWhat, kSmallAllocations + Bytes{kNodeBytes * ggml_graph_n_nodes(graph)}));
  if (allocator_) return {};
  return catching_refusal(kWhat, [&]() -> Status {
    allocator_.reset(ggml_gallocr_new(type_));
    return {};
  });
}

Result<Bytes> ComputeBuffer::measure(ggml_cgraph* graph) {
  HOTSET_RETURN_IF_ERROR(expect_lists(graph));
  size_t n_bytes = 0;
  ggml_gallocr_reserve_n_size(allocator_.get(), graph, nullptr, nullptr, &n_bytes);
  return Bytes{static_cast<int64_t>(n_bytes)};
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
  HOTSET_TRY(const Bytes needs, measure(graph));
  const Bytes needed = with_margin(needs);
  HOTSET_RETURN_IF_ERROR(check_available(type_, needed, "compute buffer (-c, -ub)"));
  // The margin is a tensor of its own in a copy of the graph.
  const auto n_nodes = static_cast<size_t>(ggml_graph_size(graph)) + 1;
  HOTSET_TRY(const TensorContext context, new_tensor_context(1, n_nodes));
  ggml_cgraph* padded = ggml_new_graph_custom(context.get(), n_nodes, false);
  ggml_graph_cpy(graph, padded);
  ggml_tensor* margin = ggml_new_tensor_1d(context.get(), GGML_TYPE_I8, needed.count - needs.count);
  ggml_set_input(margin);
  ggml_set_output(margin);
  ggml_build_forward_expand(padded, margin);
  HOTSET_RETURN_IF_ERROR(expect_lists(padded));
  HOTSET_TRY(const bool reserved, catching_refusal("compute buffer", [&] {
               return Result<bool>(ggml_gallocr_reserve(allocator_.get(), padded));
             }));
  if (!reserved) {
    return make_error(ErrorCode::kOutOfMemory, "compute buffer: {} were refused",
                      to_string(needed));
  }
  reserved_ = {static_cast<int64_t>(ggml_gallocr_get_buffer_size(allocator_.get(), 0))};
  return {};
}

Status ComputeBuffer::allocate(ggml_cgraph* graph) {
  HOTSET_TRY(const Bytes needed, measure(graph));
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

Result<ggml_backend_buffer_ptr> allocate_buffer(ggml_backend_buffer_type_t type, Bytes n_bytes,
                                                std::string_view what) {
  HOTSET_RETURN_IF_ERROR(expect_memory(what));
  return catching_refusal(what, [&]() -> Result<ggml_backend_buffer_ptr> {
    ggml_backend_buffer_ptr buffer(
        ggml_backend_buft_alloc_buffer(type, static_cast<size_t>(n_bytes.count)));
    if (buffer) return buffer;
    return make_error(ErrorCode::kOutOfMemory, "{}: {} were refused by {}", what,
                      to_string(n_bytes), ggml_backend_buft_name(type));
  });
}

Result<ggml_backend_buffer_ptr> wrap_host_memory(std::string_view what, void* begin,
                                                 size_t n_bytes) {
  HOTSET_RETURN_IF_ERROR(expect_memory(what));
  return catching_refusal(what, [&] {
    return Result<ggml_backend_buffer_ptr>(ggml_backend_cpu_buffer_from_ptr(begin, n_bytes));
  });
}

Result<ggml_backend_buffer_ptr> allocate_tensors(ggml_context* context,
                                                 ggml_backend_buffer_type_t type,
                                                 std::string_view what) {
  const Bytes needed{
      static_cast<int64_t>(ggml_backend_alloc_ctx_tensors_from_buft_size(context, type))};
  HOTSET_RETURN_IF_ERROR(check_available(type, needed, what));
  HOTSET_RETURN_IF_ERROR(expect_memory(what));
  return catching_refusal(what, [&]() -> Result<ggml_backend_buffer_ptr> {
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(context, type));
    if (buffer) return buffer;
    return make_error(ErrorCode::kOutOfMemory, "{}: {} were refused by {}", what, to_string(needed),
                      ggml_backend_buft_name(type));
  });
}

namespace {

// Whether this is one of the CPU's own layouts, and no plain memory. These set `extra` of a tensor,
// which says how to compute with it; where there is nothing to say, it stays null.
bool is_cpu_layout(ggml_backend_buffer_type_t type) {
  ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
  return device != nullptr && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU &&
         !ggml_backend_buft_is_host(type);
}

}  // namespace

Status set_tensor(ggml_tensor* tensor, std::span<const uint8_t> bytes) {
  HOTSET_CHECK(tensor->buffer != nullptr && bytes.size() <= ggml_nbytes(tensor));
  ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(tensor->buffer);
  if (is_cpu_layout(type) && tensor->extra == nullptr) {
    return make_error(ErrorCode::kInternal,
                      "tensor '{}': the layout {} does not take {} of {} x {} x {}", tensor->name,
                      ggml_backend_buft_name(type), ggml_type_name(tensor->type), tensor->ne[2],
                      tensor->ne[1], tensor->ne[0]);
  }
  ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
  return {};
}

bool layout_takes(ggml_backend_buffer_type_t layout, ggml_tensor* tensor) {
  if (!is_cpu_layout(layout)) return false;
  // Not of no bytes: such a buffer has no layout.
  const ggml_backend_buffer_ptr buffer(
      ggml_backend_buft_alloc_buffer(layout, ggml_backend_buft_get_alignment(layout)));
  if (!buffer) return false;
  tensor->buffer = buffer.get();
  const bool takes = ggml_backend_buffer_init_tensor(buffer.get(), tensor) == GGML_STATUS_SUCCESS &&
                     tensor->extra != nullptr;
  tensor->buffer = nullptr;
  tensor->extra = nullptr;
  return takes;
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
