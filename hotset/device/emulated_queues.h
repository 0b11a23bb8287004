// The two queues of an emulated device: a thread and a fixed ring of entries each, and the events
// between them. What an entry does is the device's business; order, events, delays and the first
// failure are kept here.
//
// Pushing allocates nothing, and blocks while the ring is full. After a failure entries are skipped
// while events still happen, in order. Destruction abandons what is queued and waits only for what
// is running.
//
// Thread-compatible: one thread drives it, beside its own two.
#ifndef HOTSET_DEVICE_EMULATED_QUEUES_H_
#define HOTSET_DEVICE_EMULATED_QUEUES_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/device/device.h"

namespace hotset::device {

struct QueueEntry {
  enum class Kind : uint8_t { kGraph, kUpload, kDownload, kRecord, kWait };
  enum class Fault : uint8_t { kNone, kFail, kShort, kVanish };

  Kind kind = Kind::kGraph;
  Fault fault = Fault::kNone;
  Label label = {};
  int64_t number = 0;  // the n-th graph, copy or, where the device vanishes, entry; for messages
  ggml_cgraph* graph = nullptr;
  void* to = nullptr;
  const void* from = nullptr;
  size_t n_bytes = 0;
  int32_t event = -1;
  int64_t point = 0;    // of the event: which recording
  double least_us = 0;  // it takes at least that long
  double late_us = 0;   // it starts that much later
};

class EmulatedQueues {
 public:
  // Does a graph or a copy, on its queue's thread. Errors: those of the device; the first counts.
  using Work = std::function<Status(const QueueEntry&)>;
  // Told of each graph and copy that was done, on its queue's thread; may be empty.
  using Observer =
      std::function<void(QueueId, const QueueEntry&, double start_us, double duration_us)>;

  // 4,096 entries are more than ten tokens of a model of 48 layers.
  explicit EmulatedQueues(Work work, Observer observer, size_t n_entries = 4096);
  ~EmulatedQueues();
  EmulatedQueues(const EmulatedQueues&) = delete;
  EmulatedQueues& operator=(const EmulatedQueues&) = delete;

  int32_t new_event();
  int32_t n_events() const;
  void push(QueueId queue, QueueEntry entry);
  // Pushes a new point of `event`, or a wait for its last one. Requires: event of new_event().
  void record(QueueId queue, QueueEntry entry);
  void queue_wait(QueueId queue, QueueEntry entry);
  // Blocks until the last point of `event` has happened.
  void wait(int32_t event);
  // Blocks until everything pushed to `queue` is done.
  void wait_empty(QueueId queue);
  // On the steady clock; 0 before the event has happened.
  double event_time_us(int32_t event) const;
  // The first failure.
  Status status() const;
  // The same where both queues are empty. Memory that was refused is then over with: who asked for
  // it knows, and what comes next may find some.
  Status finish();

 private:
  struct Ring {
    std::vector<QueueEntry> entries;
    size_t first = 0;
    size_t n = 0;  // with the one that is running
    std::condition_variable has_work;
    std::thread thread;
  };
  struct EventState {
    int64_t recorded = 0;  // points pushed so far
    int64_t happened = 0;  // the latest point that has happened
    double time_us = 0;
  };

  Ring& ring(QueueId queue) { return rings_[std::to_underlying(queue)]; }
  void stop();
  void run(QueueId queue);
  void run_entry(QueueId queue, const QueueEntry& entry, std::unique_lock<std::mutex>& lock);
  void sleep_until(double us, std::unique_lock<std::mutex>& lock);

  const Work work_;
  const Observer observer_;
  mutable std::mutex mutex_;             // guards everything below
  std::condition_variable progress_;     // an entry is done
  std::condition_variable interrupted_;  // wakes sleepers early: failure, end
  std::array<Ring, 2> rings_;
  std::vector<EventState> events_;
  std::optional<Error> failure_;
  bool stopping_ = false;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_EMULATED_QUEUES_H_
