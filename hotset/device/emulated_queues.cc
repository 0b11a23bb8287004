#include "hotset/device/emulated_queues.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/base/clock.h"

namespace hotset::device {

EmulatedQueues::EmulatedQueues(Work work, Observer observer, size_t n_entries)
    : work_(std::move(work)), observer_(std::move(observer)) {
  for (Ring& r : rings_) r.entries.resize(n_entries);
  try {
    for (const QueueId queue : {QueueId::kCompute, QueueId::kTransfer}) {
      ring(queue).thread = std::thread([this, queue] { run(queue); });
    }
  } catch (...) {
    stop();  // the one that has started
    throw;
  }
}

EmulatedQueues::~EmulatedQueues() { stop(); }

void EmulatedQueues::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    interrupted_.notify_all();
    progress_.notify_all();
    for (Ring& r : rings_) r.has_work.notify_all();
  }
  for (Ring& r : rings_) {
    if (r.thread.joinable()) r.thread.join();
  }
}

int32_t EmulatedQueues::new_event() {
  const std::lock_guard lock(mutex_);
  events_.emplace_back();
  return static_cast<int32_t>(events_.size()) - 1;
}

int32_t EmulatedQueues::n_events() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int32_t>(events_.size());
}

void EmulatedQueues::push(QueueId queue, QueueEntry entry) {
  std::unique_lock lock(mutex_);
  Ring& r = ring(queue);
  progress_.wait(lock, [&] { return r.n < r.entries.size(); });
  r.entries[(r.first + r.n) % r.entries.size()] = entry;
  ++r.n;
  r.has_work.notify_one();
}

void EmulatedQueues::record(QueueId queue, QueueEntry entry) {
  {
    const std::lock_guard lock(mutex_);
    entry.point = ++events_[entry.event].recorded;
  }
  entry.kind = QueueEntry::Kind::kRecord;
  push(queue, entry);
}

void EmulatedQueues::queue_wait(QueueId queue, QueueEntry entry) {
  {
    const std::lock_guard lock(mutex_);
    entry.point = events_[entry.event].recorded;
  }
  entry.kind = QueueEntry::Kind::kWait;
  push(queue, entry);
}

void EmulatedQueues::wait(int32_t event) {
  std::unique_lock lock(mutex_);
  const EventState& state = events_[event];
  progress_.wait(lock, [&] { return state.happened >= state.recorded; });
}

void EmulatedQueues::wait_empty(QueueId queue) {
  std::unique_lock lock(mutex_);
  progress_.wait(lock, [&] { return ring(queue).n == 0; });
}

double EmulatedQueues::event_time_us(int32_t event) const {
  const std::lock_guard lock(mutex_);
  return events_[event].time_us;
}

Status EmulatedQueues::status() const {
  const std::lock_guard lock(mutex_);
  if (failure_) return std::unexpected(*failure_);
  return {};
}

Status EmulatedQueues::finish() {
  Status status = this->status();
  if (status || status.error().code != ErrorCode::kOutOfMemory) return status;
  const std::lock_guard lock(mutex_);
  failure_.reset();
  return status;
}

void EmulatedQueues::sleep_until(double us, std::unique_lock<std::mutex>& lock) {
  const double rest_us = us - steady_clock().now_us();
  if (rest_us <= 0) return;
  interrupted_.wait_for(lock, std::chrono::duration<double, std::micro>(rest_us),
                        [this] { return stopping_ || failure_.has_value(); });
}

void EmulatedQueues::run(QueueId queue) {
  std::unique_lock lock(mutex_);
  Ring& r = ring(queue);
  while (true) {
    r.has_work.wait(lock, [&] { return stopping_ || r.n > 0; });
    if (stopping_) return;
    const QueueEntry entry = r.entries[r.first];
    run_entry(queue, entry, lock);
    r.first = (r.first + 1) % r.entries.size();
    --r.n;
    progress_.notify_all();
  }
}

void EmulatedQueues::run_entry(QueueId queue, const QueueEntry& entry,
                               std::unique_lock<std::mutex>& lock) {
  const auto fail = [this](Error error) {
    if (failure_) return;
    failure_ = std::move(error);
    interrupted_.notify_all();
  };
  if (entry.fault == QueueEntry::Fault::kVanish) {
    fail({ErrorCode::kDevice,
          fmt::format("emu: the device vanished at queue entry {}", entry.number)});
  }
  switch (entry.kind) {
    case QueueEntry::Kind::kRecord: {
      EventState& event = events_[entry.event];
      event.happened = std::max(event.happened, entry.point);
      event.time_us = steady_clock().now_us();
      return;
    }
    case QueueEntry::Kind::kWait:
      // A failure does not shorten it: the other queue may still be at work on memory that the
      // caller frees once a later event of this queue has happened.
      progress_.wait(lock,
                     [&] { return stopping_ || events_[entry.event].happened >= entry.point; });
      return;
    case QueueEntry::Kind::kGraph:
    case QueueEntry::Kind::kUpload:
    case QueueEntry::Kind::kDownload:
      break;
  }
  if (entry.late_us > 0) sleep_until(steady_clock().now_us() + entry.late_us, lock);
  if (stopping_ || failure_) return;
  const double start_us = steady_clock().now_us();
  lock.unlock();
  Status status = catching_refusal("emu", [&] { return work_(entry); });
  lock.lock();
  if (!status) fail(std::move(status).error());
  sleep_until(start_us + entry.least_us, lock);
  if (observer_) observer_(queue, entry, start_us, steady_clock().now_us() - start_us);
}

}  // namespace hotset::device
