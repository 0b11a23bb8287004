// What the bodies of all requests may take together: of the host's memory, and of its processors.
// A long body costs several times its length while it becomes a prompt, and seconds; so long ones
// take turns, and short ones never wait for them. Thread-safe; a BodyShare is one thread's.
#ifndef HOTSET_SERVER_BODY_BUDGET_H_
#define HOTSET_SERVER_BODY_BUDGET_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>

namespace hotset::server {

struct BodyLimits {
  // Bodies from here on are long: they take turns, and what they have above this counts.
  size_t long_bytes = 256 << 10;
  size_t max_bytes = 512 << 20;  // of long ones that are held
  int32_t n_at_once = 2;         // long ones that become prompts
  double max_wait_s = 30;        // for a turn
};

class BodyBudget {
 public:
  explicit BodyBudget(BodyLimits limits) : limits_(limits) {}

 private:
  friend class BodyShare;

  BodyLimits limits_;
  std::mutex mutex_;
  std::condition_variable changes_;
  size_t n_bytes_ = 0;
  int32_t n_working_ = 0;
};

// What one request has of it; given back at the end at the latest.
class BodyShare {
 public:
  // Requires: `budget` outlives this.
  explicit BodyShare(BodyBudget& budget) : budget_(budget) {}
  ~BodyShare() { give_back(); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // Whether a body of this length could be taken now.
  bool has_room(size_t n_bytes) const;
  // The body has become so long. False: there is no room for it, and nothing more is taken. Until
  // it is long there always is, so that nobody's long ones keep others from short ones.
  bool take(size_t n_bytes);
  // All of the body is there and is to become a prompt: waits for a turn if it is long. False: none
  // came in time, or `gives_up()`, which is asked now and then.
  bool wait_for_turn(const std::function<bool()>& gives_up);
  // The body is a prompt and gone.
  void give_back();

 private:
  // What counts of a body of this length.
  size_t counted(size_t n_bytes) const;
  bool fits(size_t n_bytes) const;  // under the budget's mutex

  BodyBudget& budget_;
  size_t n_bytes_ = 0;
  size_t n_counted_ = 0;
  bool has_turn_ = false;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_BODY_BUDGET_H_
