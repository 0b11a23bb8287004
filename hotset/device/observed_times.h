// When the entries of a device's queues ran, as far as the host can observe it: an entry lasts from
// when it was queued, or when the one before it on its queue was seen to be done, until it is seen
// to be done itself.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_DEVICE_OBSERVED_TIMES_H_
#define HOTSET_DEVICE_OBSERVED_TIMES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "hotset/device/device.h"
#include "hotset/device/queue_progress.h"

namespace hotset::device {

class ObservedTimes {
 public:
  // Shows entries in `profile`, which must outlive this. Nothing is allocated later: of more than
  // 8,192 entries of a queue that were not seen to be done, the oldest counts as done.
  explicit ObservedTimes(Profile& profile);

  // `number` as QueueProgress counts the queue's entries, ascending.
  void queued(QueueId queue, Label label, int64_t number, double now_us);
  void saw(const Progress& done, double now_us);

 private:
  static constexpr size_t kMaxPending = 8192;
  struct Pending {
    Label label;
    int64_t number = 0;
    double queued_us = 0;
  };
  struct Ring {
    std::vector<Pending> entries;
    size_t first = 0;
    size_t n = 0;
    double seen_us = 0;  // when an entry was last seen to be done
  };

  void finish(QueueId queue, Ring& ring, double now_us);

  Profile& profile_;
  std::array<Ring, 2> rings_;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_OBSERVED_TIMES_H_
