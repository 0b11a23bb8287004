// One stream of work on a device: graphs are queued on it and run in order.
#ifndef HOTSET_DEVICE_BACKEND_H_
#define HOTSET_DEVICE_BACKEND_H_

#include <ggml-cpp.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::device {

// Owns a ggml backend. Thread-compatible: one thread drives it.
class Backend {
 public:
  // The CPU with `n_threads` kernel threads (1 to 512).
  // Errors: kInvalidArgument, kDevice, kOutOfMemory.
  static Result<Backend> cpu(int n_threads);

  // That there can be so many kernel threads, 1 to 512. Errors: kInvalidArgument.
  static Status check_threads(int n_threads);
  // Another number of kernel threads, for the graphs computed from now on.
  // Errors: as cpu(). Requires: the CPU's backend.
  Status set_threads(int n_threads);

  ggml_backend_t get() const { return backend_.get(); }
  ggml_backend_dev_t device() const { return ggml_backend_get_device(backend_.get()); }
  ggml_backend_buffer_type_t buffer_type() const {
    return ggml_backend_get_default_buffer_type(backend_.get());
  }
  // Layouts that the device keeps for itself (repacked weights on the CPU), best first.
  std::vector<ggml_backend_buffer_type_t> extra_buffer_types() const;

  // Whether the device can compute `op` as it stands, with its sources' buffer types.
  bool supports(const ggml_tensor* op) const { return ggml_backend_dev_supports_op(device(), op); }

  // Computes the graph and waits for it. Errors: kDevice, kOutOfMemory, kCancelled; after each of
  // them the backend may be used again.
  Status compute(ggml_cgraph* graph);

 private:
  explicit Backend(ggml_backend_ptr backend) : backend_(std::move(backend)) {}
  Status restart();

  ggml_backend_ptr backend_;
  int n_threads_ = 1;
};

// The compute buffer that all graphs of one backend share, one at a time.
// A graph that was allocated here keeps its addresses for as long as this object lives: the buffer
// is reserved once at its maximum and never moves.
// Thread-compatible.
class ComputeBuffer {
 public:
  explicit ComputeBuffer(ggml_backend_buffer_type_t type) : type_(type) {}

  // What `graph` needs. Leaves the graph's tensors without addresses. Errors: kOutOfMemory.
  Result<Bytes> measure(ggml_cgraph* graph);
  // What reserve() takes for a graph that needs so much: how the allocator packs is not monotone,
  // so a smaller graph than the largest of those that were measured can need a little more.
  static Bytes with_margin(Bytes needs);
  // Allocates the buffer for `graph`, the largest one, and a margin. Errors: kOutOfMemory;
  // kInternal if it was already reserved.
  Status reserve(ggml_cgraph* graph);
  // Gives the tensors of `graph` their addresses. Errors: kOutOfMemory; kInternal if it needs more
  // than reserved.
  Status allocate(ggml_cgraph* graph);

  Bytes reserved() const { return reserved_; }

 private:
  Status expect_lists(ggml_cgraph* graph);

  ggml_backend_buffer_type_t type_;
  ggml_gallocr_ptr allocator_;  // from the first use on
  Bytes reserved_;
};

// A buffer of `type`, also one of no bytes. Errors: kOutOfMemory, naming `what` and its size.
Result<ggml_backend_buffer_ptr> allocate_buffer(ggml_backend_buffer_type_t type, Bytes n_bytes,
                                                std::string_view what);

// A buffer over memory that somebody else owns. Errors: kOutOfMemory, naming `what`.
Result<ggml_backend_buffer_ptr> wrap_host_memory(std::string_view what, void* begin,
                                                 size_t n_bytes);

// Allocates all tensors of `context` that have no address yet in one new buffer of `type`.
// Errors: kOutOfMemory, naming `what` and its size.
Result<ggml_backend_buffer_ptr> allocate_tensors(ggml_context* context,
                                                 ggml_backend_buffer_type_t type,
                                                 std::string_view what);

// Copies `bytes` into a tensor that has a buffer. Layouts of the CPU's own mark the tensors that
// they can rearrange when these are placed; writing another one there would end the process.
// Errors: kInternal if the layout of the buffer does not take the tensor.
Status set_tensor(ggml_tensor* tensor, std::span<const uint8_t> bytes);

// Whether `layout`, one of extra_buffer_types(), rearranges a tensor of this type and shape.
// `tensor` has no buffer yet, and none afterwards.
bool layout_takes(ggml_backend_buffer_type_t layout, ggml_tensor* tensor);

// Memory that the system could give to this process now without swapping, by the machine's and by
// its own limits (base/memory_limits.h); a very large number if the system does not say.
Bytes available_host_memory();

// The version of ggml, and its commit where the package says: "0.9.7 (a1b2c3)".
std::string ggml_build();

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_BACKEND_H_
