#include "hotset/server/body_budget.h"

#include <chrono>

#include "hotset/base/clock.h"

namespace hotset::server {

size_t BodyShare::counted(size_t n_bytes) const {
  const size_t long_bytes = budget_.limits_.long_bytes;
  return n_bytes > long_bytes ? n_bytes - long_bytes : 0;
}

bool BodyShare::has_room(size_t n_bytes) const {
  const std::lock_guard lock(budget_.mutex_);
  return fits(n_bytes);
}

bool BodyShare::fits(size_t n_bytes) const {
  return counted(n_bytes) <= budget_.limits_.max_bytes - budget_.n_bytes_ + n_counted_;
}

bool BodyShare::take(size_t n_bytes) {
  const std::lock_guard lock(budget_.mutex_);
  if (!fits(n_bytes)) return false;
  n_bytes_ = n_bytes;
  budget_.n_bytes_ += counted(n_bytes) - n_counted_;
  n_counted_ = counted(n_bytes);
  return true;
}

bool BodyShare::wait_for_turn(const std::function<bool()>& gives_up) {
  constexpr std::chrono::milliseconds kLook(50);
  const BodyLimits& limits = budget_.limits_;
  if (n_bytes_ < limits.long_bytes) return true;
  const double end_us = steady_clock().now_us() + limits.max_wait_s * 1e6;
  std::unique_lock lock(budget_.mutex_);
  while (!budget_.changes_.wait_for(lock, kLook,
                                    [&] { return budget_.n_working_ < limits.n_at_once; })) {
    if (gives_up() || steady_clock().now_us() > end_us) return false;
  }
  ++budget_.n_working_;
  has_turn_ = true;
  return true;
}

void BodyShare::give_back() {
  const std::lock_guard lock(budget_.mutex_);
  budget_.n_bytes_ -= n_counted_;
  n_counted_ = 0;
  n_bytes_ = 0;
  if (has_turn_) --budget_.n_working_;
  has_turn_ = false;
  budget_.changes_.notify_all();
}

}  // namespace hotset::server
