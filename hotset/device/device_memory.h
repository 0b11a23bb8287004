// The memory of a device: what it is, what it computes, and what is allocated there, with an
// account. All that a plan needs.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_DEVICE_DEVICE_MEMORY_H_
#define HOTSET_DEVICE_DEVICE_MEMORY_H_

#include <ggml-cpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::device {

class Device;

enum class Overlap : uint8_t {
  kYes,  // copies on the transfer queue run while a graph computes, as tested
  kNo,   // they wait for it, as tested
  kUntested,
};

struct DeviceInfo {
  std::string name;         // as the user gives it: "Vulkan0", "emu"
  std::string description;  // the product's name
  Bytes memory_total;
  Bytes memory_free;          // when it was opened
  bool async_copies = false;  // copies and graphs return before they are done
  bool events = false;
  bool pinned_memory = false;       // pinned host memory can be had
  bool shares_host_memory = false;  // an integrated GPU: uploading gains nothing
  bool virtual_clock = false;
  bool computes_on_cpu = false;  // with DeviceOptions::n_threads
  bool exact_memory = false;     // nobody else uses the memory, drivers included
  Overlap overlap = Overlap::kUntested;
};

// Device memory, or a claim on it. Move-only; given back with the object. May outlive its device.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // `claim` keeps the bytes in the device's account for as long as it lives; null where the driver
  // itself counts.
  DeviceBuffer(ggml_backend_buffer_ptr buffer, std::shared_ptr<const void> claim)
      : claim_(std::move(claim)), buffer_(std::move(buffer)) {}

  // Null for a claim, and where nothing was left to allocate.
  ggml_backend_buffer_t get() const { return buffer_.get(); }

 private:
  std::shared_ptr<const void> claim_;
  ggml_backend_buffer_ptr buffer_;
};

// Host memory that the device copies from and to. Move-only; freed with the object.
class HostBuffer {
 public:
  HostBuffer() = default;
  // `claim` keeps the bytes in the device's account of pinned memory; null for pageable memory.
  HostBuffer(ggml_backend_buffer_ptr buffer, std::shared_ptr<const void> claim)
      : buffer_(std::move(buffer)), claim_(std::move(claim)) {}

  uint8_t* data() const {
    if (!buffer_) return nullptr;
    return static_cast<uint8_t*>(ggml_backend_buffer_get_base(buffer_.get()));
  }
  size_t n_bytes() const { return buffer_ ? ggml_backend_buffer_get_size(buffer_.get()) : 0; }
  // False where pinned memory was asked for and the driver quietly gave pageable memory.
  bool pinned() const { return claim_ != nullptr; }
  // For tensors that live in it.
  ggml_backend_buffer_t get() const { return buffer_.get(); }

 private:
  ggml_backend_buffer_ptr buffer_;
  std::shared_ptr<const void> claim_;
};

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual const DeviceInfo& info() const = 0;
  // The device itself; null where memory is only counted (plan_device.h) and must not be touched.
  virtual Device* device() = 0;
  virtual ggml_backend_buffer_type_t buffer_type() const = 0;
  // Whether the device computes `op` as it stands.
  virtual bool supports(const ggml_tensor* op) const = 0;

  // Device memory, all zero, for all tensors of `context` without an address.
  // Errors: kOutOfMemory, naming `what`, the bytes needed and those free.
  virtual Result<DeviceBuffer> allocate(ggml_context* context, std::string_view what) = 0;
  // Counts `n_bytes` that the caller allocates by other means (a compute buffer of buffer_type())
  // against an emulated device's memory; nothing on a real one, which sees them by itself.
  // Errors: kOutOfMemory, as allocate().
  virtual Result<DeviceBuffer> claim(Bytes n_bytes, std::string_view what) = 0;
  // Pinned host memory; where that is not to be had, pageable memory whose pinned() is false.
  // Errors: kOutOfMemory.
  virtual Result<HostBuffer> allocate_pinned(Bytes n_bytes, std::string_view what) = 0;
  // Memory that could be allocated now.
  virtual Bytes free_memory() const = 0;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_DEVICE_MEMORY_H_
