#include "hotset/lanes/fill_link.h"

#include <algorithm>

namespace hotset::lanes {

void FillLink::queue(const cache::Fill& fill, double us) {
  fills_.push_back({fill.group, fill.slot, us});
  outstanding_us_ += us;
}

void FillLink::pass_time(double free_us, std::vector<PendingFill>& arrived) {
  while (!fills_.empty() && free_us > 0) {
    PendingFill& fill = fills_.front();
    const double used_us = std::min(free_us, fill.remaining_us);
    free_us -= used_us;
    fill.remaining_us -= used_us;
    outstanding_us_ -= used_us;
    if (fill.remaining_us > 0) break;
    arrived.push_back(fill);
    fills_.erase(fills_.begin());
  }
  // What subtraction leaves of rounding must not keep the link from being idle.
  if (fills_.empty()) outstanding_us_ = 0;
}

}  // namespace hotset::lanes
