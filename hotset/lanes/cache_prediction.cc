#include "hotset/lanes/cache_prediction.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "hotset/lanes/lane_chooser.h"

namespace hotset::lanes {

double typical_hit_rate(double slot_share) {
  return 1 - std::pow(1 - std::clamp(slot_share, 0.0, 1.0), 5);
}

Result<double> predicted_layer_us(const LaneCosts& costs, Bytes expert_bytes, int32_t n_used,
                                  double slot_share) {
  if (n_used < 1) {
    return make_error(ErrorCode::kInvalidArgument, "n_used: found {}, expected 1 or more", n_used);
  }
  if (!(slot_share >= 0 && slot_share <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "slot_share: found {}, expected 0 to 1",
                      slot_share);
  }
  LaneChooser chooser(static_cast<size_t>(n_used));
  const auto with_misses = [&](int32_t n_misses) -> Result<double> {
    std::vector<UploadCandidate> misses;
    for (int32_t i = 0; i < n_misses; ++i) misses.push_back({.expert = i});
    const int32_t n_hits = n_used - n_misses;
    const double hit_us =
        n_hits > 0 ? costs.pairs.turn_us + n_hits * costs.pairs.expert_us.at(1) : 0;
    HOTSET_TRY(const LaneChoice choice,
               chooser.choose(costs, {.expert_bytes = expert_bytes, .hit_us = hit_us}, misses));
    const double all_on_cpu_us =
        costs.cpu_solo.turn_us + n_used * costs.cpu_solo.expert_us.at(1) + costs.all_rows_us;
    return std::min(choice.cost().done_us(), all_on_cpu_us);
  };
  const double n_misses = n_used * (1 - typical_hit_rate(slot_share));
  const auto fewer = static_cast<int32_t>(n_misses);
  HOTSET_TRY(const double fewer_us, with_misses(fewer));
  if (fewer == n_used) return fewer_us;
  HOTSET_TRY(const double more_us, with_misses(fewer + 1));
  return fewer_us + (n_misses - fewer) * (more_us - fewer_us);
}

}  // namespace hotset::lanes
