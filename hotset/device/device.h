// A device that computes graphs and has memory of its own: a GPU that a ggml backend offers, or the
// emulated one. The engine sees only this.
//
// A device has two queues, each in order by itself: one computes, one moves data. Everything is
// queued and returns at once; an event marks a point of a queue, the other queue or the host can
// wait for it. Where a device has no events or no second stream, the same calls are synchronous and
// the result is the same; info() says so.
//
// Failure: once an entry of a queue has failed, the device has failed: later entries are skipped,
// events still complete, and every call that returns a Status returns the first error. Nothing
// hangs.
//
// Time: now_us() is the host's time on the device's clock. A real device's clock is the steady
// clock. On a virtual clock nothing waits: an entry starts when its queue is free, the events it
// waits for have happened and the host had reached the time at which it was queued; it takes its
// modelled duration; waiting for an event moves the host's time to the event's. So the times are
// exact and repeatable, whatever the machine does.
//
// Thread-compatible: one thread drives a device, event waits included.
#ifndef HOTSET_DEVICE_DEVICE_H_
#define HOTSET_DEVICE_DEVICE_H_

#include <ggml-cpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/profile.h"

namespace hotset::device {

enum class QueueId : uint8_t { kCompute, kTransfer };

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

// What an entry of a queue is for; shown in profiles. `name` must be a string literal.
struct Label {
  const char* name = "";
  int32_t layer = -1;  // -1: of no layer
};

// A point of a queue, made by new_event() of the device it is used with.
struct Event {
  int32_t index = -1;
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

// What a device has done since it was opened, or since reset_counters().
struct DeviceCounters {
  int64_t n_waits = 0;  // times the host waited for the device: wait(), wait_idle(), and every
                        // copy or graph that had to be synchronous
  int64_t n_graphs = 0;
  int64_t n_uploads = 0;
  int64_t n_downloads = 0;
  Bytes uploaded;
  Bytes downloaded;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceInfo& info() const = 0;
  // Whether this only counts what would be allocated (plan_device.h): its memory must not be
  // touched.
  virtual bool plans_only() const { return false; }
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

  // Queues `graph`, which must stay as it is until it is done; its context must live until the
  // next wait_idle() or the device's end (Vulkan looks back at the tensors of earlier graphs).
  // `reads` is what it reads of weights and KV memory, for the modelled duration.
  virtual Status compute(ggml_cgraph* graph, Bytes reads, Label label) = 0;
  // Queues a copy of `n_bytes`; 0 bytes do nothing and are not counted. Host memory must be a
  // HostBuffer's, stay valid and, for an upload, unchanged until the copy is done. From and to
  // other host memory, and where pinned() is false, the copy is synchronous: a wait.
  // Errors: kInvalidArgument unless offset + n_bytes lies within the tensor, and the tensor in this
  // device's memory; the device works on.
  virtual Status upload(QueueId queue, ggml_tensor* to, size_t offset, const void* from,
                        size_t n_bytes, Label label) = 0;
  virtual Status download(QueueId queue, const ggml_tensor* from, size_t offset, void* to,
                          size_t n_bytes, Label label) = 0;

  // An event that was never recorded has happened.
  virtual Result<Event> new_event() = 0;
  // The event happens when everything queued so far is done. An event may be recorded again once
  // nothing waits for its earlier point.
  virtual Status record(Event event, QueueId queue) = 0;
  // What is queued later on `queue` starts after the event's last recorded point.
  virtual Status queue_wait(QueueId queue, Event event) = 0;
  // The host waits for the event's last recorded point.
  // Errors: kDevice, kOutOfMemory: the first failure of the device.
  virtual Status wait(Event event) = 0;
  // The host waits for both queues.
  virtual Status wait_idle() = 0;

  virtual double now_us() const = 0;
  // On a virtual clock, the host's time moves to `us` if that is later; else nothing.
  virtual void host_reaches(double us) = 0;
  // When the event happened; exact on a virtual clock, else when the host learned of it. Requires:
  // wait(event) has returned.
  virtual double event_time_us(Event event) const = 0;
  // What the CPU lane takes for reading `reads` of weights on the device's virtual clock; nothing
  // on a real one, where it is measured.
  virtual std::optional<double> modelled_cpu_us(Bytes reads) const = 0;
  // The kernel threads of the CPU lane, for modelled_cpu_us(). At first 1.
  virtual void set_lane_threads(int n_threads) = 0;
  // What the host takes for copying `n_bytes` into pinned memory, likewise.
  virtual std::optional<double> modelled_copy_us(Bytes n_bytes) const = 0;

  virtual const DeviceCounters& counters() const = 0;
  virtual void reset_counters() = 0;
};

// All devices of this machine that could be opened, without the emulated one. Errors: kDevice.
Result<std::vector<DeviceInfo>> list_devices();

struct DeviceOptions {
  int n_threads = 1;           // kernel threads of an emulated device
  bool test_overlap = true;    // find out whether copies overlap with compute; takes well under 1 s
  Profile* profile = nullptr;  // records the queues' entries there; must outlive the device
};

// Opens "NAME" as list_devices() gives it, or "emu[:key=value,...]" (emulated_device.h).
// Errors: kNotFound (the message lists the names), kInvalidArgument (a key or value of emu),
// kDevice.
Result<std::unique_ptr<Device>> open_device(std::string_view spec, const DeviceOptions& options);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_DEVICE_H_
