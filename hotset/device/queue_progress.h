// What a host can conclude about two queues from the events it has waited for.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_DEVICE_QUEUE_PROGRESS_H_
#define HOTSET_DEVICE_QUEUE_PROGRESS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "hotset/device/device.h"

namespace hotset::device {

// Per queue, how many of its entries are done: a vector clock (Fidge, Mattern 1988).
struct Progress {
  std::array<int64_t, 2> n_done{};

  int64_t& operator[](QueueId queue) { return n_done[std::to_underlying(queue)]; }
  int64_t operator[](QueueId queue) const { return n_done[std::to_underlying(queue)]; }
  bool covers(const Progress& other) const {
    return n_done[0] >= other.n_done[0] && n_done[1] >= other.n_done[1];
  }
  void include(const Progress& other) {
    for (size_t i = 0; i < n_done.size(); ++i) n_done[i] = std::max(n_done[i], other.n_done[i]);
  }
};

class QueueProgress {
 public:
  // One more entry of `queue`. What it returns is done when the entry is.
  Progress enqueue(QueueId queue) {
    Progress& frontier = frontiers_[std::to_underlying(queue)];
    ++frontier[queue];
    return frontier;
  }
  // What `queue` does from now on comes after `event`, a result of enqueue().
  void queue_waits(QueueId queue, const Progress& event) {
    frontiers_[std::to_underlying(queue)].include(event);
  }
  // The host has seen that `event` has happened.
  void host_saw(const Progress& event) { done_.include(event); }
  // The host has seen that `queue` is empty.
  void host_saw_empty(QueueId queue) { done_.include(frontiers_[std::to_underlying(queue)]); }

  bool is_done(const Progress& event) const { return done_.covers(event); }
  bool is_empty(QueueId queue) const {
    return done_[queue] >= frontiers_[std::to_underlying(queue)][queue];
  }
  const Progress& done() const { return done_; }

 private:
  Progress done_;
  std::array<Progress, 2> frontiers_;  // by queue: what is done when its last entry is
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_QUEUE_PROGRESS_H_
