// The times of a host and a device's two queues, computed instead of measured (device.h, "Time").
// They depend on the order of the calls only, so they are the same in every run.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_DEVICE_VIRTUAL_TIMELINE_H_
#define HOTSET_DEVICE_VIRTUAL_TIMELINE_H_

#include <array>
#include <utility>

#include "hotset/device/device.h"

namespace hotset::device {

class VirtualTimeline {
 public:
  struct Span {
    double start_us = 0;
    double duration_us = 0;
  };

  double now_us() const { return host_us_; }
  // The host works until `us`, if that is later than now.
  void host_reaches(double us);

  // An entry that takes `duration_us`: it starts when its queue is free, everything its queue waits
  // for has happened, and not before now.
  Span enqueue(QueueId queue, double duration_us);
  // When everything queued so far is done; now, if it is already.
  double record(QueueId queue);
  // What is queued later starts at `event_us` or after.
  void queue_waits(QueueId queue, double event_us);
  // When `queue` runs out of work.
  double idle_us(QueueId queue) const { return free_us_[std::to_underlying(queue)]; }

 private:
  double host_us_ = 0;
  std::array<double, 2> free_us_{};  // by queue: end of its last entry or of what it waits for
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_VIRTUAL_TIMELINE_H_
