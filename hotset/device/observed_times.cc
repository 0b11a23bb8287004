#include "hotset/device/observed_times.h"

#include <algorithm>
#include <utility>

namespace hotset::device {

ObservedTimes::ObservedTimes(Profile& profile) : profile_(profile) {
  for (Ring& ring : rings_) ring.entries.resize(kMaxPending);
}

void ObservedTimes::queued(QueueId queue, Label label, int64_t number, double now_us) {
  Ring& ring = rings_[std::to_underlying(queue)];
  if (ring.n == kMaxPending) finish(queue, ring, now_us);
  ring.entries[(ring.first + ring.n++) % kMaxPending] = {label, number, now_us};
}

void ObservedTimes::saw(const Progress& done, double now_us) {
  for (const QueueId queue : {QueueId::kCompute, QueueId::kTransfer}) {
    Ring& ring = rings_[std::to_underlying(queue)];
    bool finished = false;
    while (ring.n > 0 && ring.entries[ring.first].number <= done[queue]) {
      finish(queue, ring, now_us);
      finished = true;
    }
    if (finished) ring.seen_us = now_us;
  }
}

void ObservedTimes::finish(QueueId queue, Ring& ring, double now_us) {
  const Pending& entry = ring.entries[ring.first];
  const double start_us = std::max(entry.queued_us, ring.seen_us);
  profile_.add(queue == QueueId::kCompute ? Track::kCompute : Track::kTransfer, entry.label.name,
               entry.label.layer, start_us, now_us - start_us);
  ring.first = (ring.first + 1) % kMaxPending;
  --ring.n;
}

}  // namespace hotset::device
