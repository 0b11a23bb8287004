// The queues of a device, one that computes and one that moves data, each in order by itself.
// Everything is queued and returns at once; an event marks a point of a queue, the other queue or
// the host can wait for it. Where a device has no events or no second stream, the same calls are
// synchronous and the result is the same; DeviceInfo says so.
//
// Failure: once an entry of a queue has failed, the device has failed: later entries are skipped,
// events still complete, and every call that returns a Status returns the first error. Nothing
// hangs.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_DEVICE_DEVICE_QUEUES_H_
#define HOTSET_DEVICE_DEVICE_QUEUES_H_

#include <ggml.h>

#include <cstddef>
#include <cstdint>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::device {

enum class QueueId : uint8_t { kCompute, kTransfer };

// What an entry of a queue is for; shown in profiles. `name` must be a string literal.
struct Label {
  const char* name = "";
  int32_t layer = -1;  // -1: of no layer
};

// A point of a queue, made by new_event() of the device it is used with.
struct Event {
  int32_t index = -1;
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

class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;

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

  virtual const DeviceCounters& counters() const = 0;
  virtual void reset_counters() = 0;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_DEVICE_QUEUES_H_
