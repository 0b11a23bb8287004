#include "hotset/lanes/step_guard.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hotset::lanes {

Result<StepGuard> StepGuard::create(const NeverSlowerOptions& options) {
  HOTSET_TRY(NeverSlower guard, NeverSlower::create(options));
  return StepGuard(std::move(guard));
}

void StepGuard::begin(int32_t n_tokens) {
  step_ = {.is_judged = n_tokens == 1};
  step_.is_probe =
      step_.is_judged && no_cache_us_.weight() > 0 && guard_.wants_probe(no_cache_us_.mean());
  step_.is_bypassed = step_.is_judged && (use() == CacheUse::kNone) != step_.is_probe;
}

void StepGuard::planned(double planned_us, double cheapest_us, double no_cache_us) {
  step_.planned_us += planned_us;
  step_.cheapest_us += cheapest_us;
  step_.no_cache_us += no_cache_us;
}

double StepGuard::no_cache_other_us() const {
  return probe_other_us_ ? probe_other_us_->mean() : other_us_.mean();
}

void StepGuard::observe_no_cache(double step_us, double experts_us) {
  // One that is off by more than this has found other conditions, not noise.
  constexpr double kNoise = 0.25;
  constexpr double kHalfLife = 4;  // of such steps
  const double other_us = std::max(0.0, step_us - experts_us);
  const double predicted_us = no_cache_other_us() + experts_us;
  if (!probe_other_us_ || std::abs(step_us - predicted_us) > kNoise * predicted_us) {
    probe_other_us_.emplace(kHalfLife, other_us, 1);
  } else {
    probe_other_us_->observe(other_us);
  }
}

Result<std::optional<CacheUseChange>> StepGuard::end(double us) {
  const Step step = std::exchange(step_, {});
  std::optional<CacheUseChange> none;
  if (!step.is_judged || !(us > 0)) return none;
  const double other_us = std::max(0.0, us - step.planned_us);
  if (step.is_bypassed) {
    observe_no_cache(us, step.no_cache_us);
  } else {
    other_us_.observe(other_us);
  }
  const double no_cache_us = no_cache_other_us() + step.no_cache_us;
  if (!step.is_probe) no_cache_us_.observe(no_cache_us);
  // Steps with the cache that are probes are too few for a mean.
  const double cache_us = step.is_bypassed ? no_cache_us
                          : step.is_probe  ? other_us + step.cheapest_us
                                           : other_us_.mean() + step.cheapest_us;
  if (!(no_cache_us > 0 && cache_us > 0)) return none;
  HOTSET_TRY(auto change, guard_.observe({.is_probe = step.is_probe,
                                          .token_us = us,
                                          .no_cache_us = no_cache_us,
                                          .cache_us = cache_us}));
  // What was known of steps with the cache is from before it was left unused.
  if (change && change->from == CacheUse::kNone) other_us_ = {kStepsToHalve, other_us, 1};
  return change;
}

}  // namespace hotset::lanes
