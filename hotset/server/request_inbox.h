// What other threads ask of the scheduler's thread: new requests, cancellations, work to do between
// two steps, and the end. The scheduler takes it when it begins a step, and waits here when it has
// nothing to do.
// Thread-safe, but for take(), take_cancelled() and set_ended(), which are the scheduler's
// thread's.
#ifndef HOTSET_SERVER_REQUEST_INBOX_H_
#define HOTSET_SERVER_REQUEST_INBOX_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "hotset/base/error.h"
#include "hotset/server/generation.h"

namespace hotset::server {

template <typename Task>
class RequestInbox {
 public:
  // What was asked so far.
  struct Totals {
    int32_t n_arrived = 0;  // and were not taken yet
    RequestId n_requests = 0;
    uint64_t n_refused = 0;
  };

  // Takes a request whose first task this is, unless `most` are unfinished; its id, which
  // `set_id(id)` is told before the scheduler sees the task.
  // Errors: kOutOfMemory: as many as are accepted; kCancelled: closed.
  template <typename SetId>
  Result<RequestId> submit(int64_t most, std::unique_ptr<Task> first, const SetId& set_id) {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return make_error(ErrorCode::kCancelled, "the server is shutting down");
    if (std::cmp_greater_equal(unfinished_.size(), most)) {
      ++n_refused_;
      return make_error(ErrorCode::kOutOfMemory,
                        "{} requests run or wait, which is as many as are accepted; try again "
                        "later",
                        unfinished_.size());
    }
    const RequestId id = ++last_request_;
    set_id(id);
    unfinished_.insert(id);
    arrived_.push_back(std::move(first));
    wakes_.notify_all();
    return id;
  }

  // Nothing if the request has ended.
  void cancel(RequestId request) {
    const std::lock_guard lock(mutex_);
    if (!unfinished_.contains(request)) return;
    cancelled_.insert(request);
    wakes_.notify_all();
  }

  // No more requests.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }
  // The next take() ends the scheduler's thread.
  void end() {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
      is_ending_ = true;
    }
    wakes_.notify_all();
  }

  // Whether no request is unfinished within `timeout_us`.
  bool wait_until_idle(double timeout_us) {
    std::unique_lock lock(mutex_);
    return idles_.wait_for(lock, std::chrono::duration<double, std::micro>(timeout_us),
                           [this] { return unfinished_.empty(); });
  }

  // Has the scheduler run `work`, and waits for it. False: it has ended, and `work` was not run.
  bool between_steps(const std::function<void()>& work) {
    auto done = std::make_shared<std::promise<bool>>();
    std::future<bool> was_run = done->get_future();
    {
      const std::lock_guard lock(mutex_);
      if (has_ended_) return false;
      work_.push_back([done, &work] {
        work();
        done->set_value(true);
      });
      // A promise that nobody keeps any more ends the wait with an error.
      done.reset();
    }
    wakes_.notify_all();
    was_run.wait();
    try {
      return was_run.get();
    } catch (const std::future_error&) {
      return false;
    }
  }

  Totals totals() const {
    const std::lock_guard lock(mutex_);
    return {.n_arrived = static_cast<int32_t>(arrived_.size()),
            .n_requests = last_request_,
            .n_refused = n_refused_};
  }

  // Moves what arrived to the end of `waiting` and does the work that was asked for. Waits for
  // either unless `has_tasks`. False: the scheduler ends.
  bool take(bool has_tasks, std::deque<std::unique_ptr<Task>>& waiting) {
    std::unique_lock lock(mutex_);
    wakes_.wait(lock, [&] {
      return has_tasks || is_ending_ || !arrived_.empty() || !work_.empty() || !cancelled_.empty();
    });
    for (auto& task : arrived_) waiting.push_back(std::move(task));
    arrived_.clear();
    if (is_ending_) return false;
    std::deque<std::function<void()>> work = std::move(work_);
    work_.clear();
    lock.unlock();
    for (const auto& item : work) item();
    return true;
  }

  std::set<RequestId> take_cancelled() {
    const std::lock_guard lock(mutex_);
    return std::exchange(cancelled_, {});
  }

  // All choices of the request have ended.
  void finish(RequestId request) {
    {
      const std::lock_guard lock(mutex_);
      unfinished_.erase(request);
      cancelled_.erase(request);
    }
    idles_.notify_all();
  }

  // The scheduler's thread takes nothing any more.
  void set_ended() {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    work_.clear();
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  std::condition_variable idles_;
  std::deque<std::unique_ptr<Task>> arrived_;
  std::set<RequestId> cancelled_;
  std::deque<std::function<void()>> work_;
  RequestId last_request_ = 0;
  uint64_t n_refused_ = 0;
  std::set<RequestId> unfinished_;
  bool is_closed_ = false;
  bool is_ending_ = false;
  bool has_ended_ = false;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_REQUEST_INBOX_H_
