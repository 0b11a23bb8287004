// The time that lanes take, on a device's clock. A real device's clock is the steady clock. On a
// virtual clock nothing waits: an entry of a queue starts when its queue is free, the events it
// waits for have happened and the host had reached the time at which it was queued; it takes its
// modelled duration; waiting for an event moves the host's time to the event's. So the times are
// exact and repeatable, whatever the machine does.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_DEVICE_LANE_CLOCK_H_
#define HOTSET_DEVICE_LANE_CLOCK_H_

#include <cstdint>
#include <optional>

#include "hotset/base/units.h"
#include "hotset/device/device_queues.h"

namespace hotset::device {

class LaneClock {
 public:
  virtual ~LaneClock() = default;

  // The host's time.
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
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_LANE_CLOCK_H_
