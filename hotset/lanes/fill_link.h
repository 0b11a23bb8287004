// The copies that wait behind a device's demand uploads, on a link that is a model: a lookup gives
// it the time that the costs say it takes, so when a fill has arrived follows from the lookups and
// the costs alone.
// Allocates nothing while at most `most_fills` are under way. Thread-compatible.
#ifndef HOTSET_LANES_FILL_LINK_H_
#define HOTSET_LANES_FILL_LINK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hotset/cache/expert_cache.h"

namespace hotset::lanes {

// A fill that is on its way, or has arrived.
struct PendingFill {
  int32_t group = 0;
  int32_t slot = 0;
  double remaining_us = 0;
};

class FillLink {
 public:
  explicit FillLink(size_t most_fills) { fills_.reserve(most_fills); }

  // A copy that takes `us`.
  void queue(const cache::Fill& fill, double us);
  // Demand leaves the link alone for `free_us`. Appends what arrives to `arrived`.
  void pass_time(double free_us, std::vector<PendingFill>& arrived);
  // What the copies under way still take.
  double outstanding_us() const { return outstanding_us_; }

 private:
  std::vector<PendingFill> fills_;  // few: the front may be erased
  double outstanding_us_ = 0;
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_FILL_LINK_H_
