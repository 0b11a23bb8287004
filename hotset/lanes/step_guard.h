// Never slower, step by step (design.md section 5): keeps what token steps take with the cache and
// would take without, gives both to NeverSlower, and says which steps the CPU computes alone. Only
// steps of one token are judged.
//
//   begin(n_tokens)                  before a token step
//   planned(...), bypassed(...)      each of its layers with a cache
//   end(us)                          what it took
//
// Pure: times come in. Thread-compatible.
#ifndef HOTSET_LANES_STEP_GUARD_H_
#define HOTSET_LANES_STEP_GUARD_H_

#include <cstdint>
#include <optional>

#include "hotset/base/error.h"
#include "hotset/lanes/never_slower.h"
#include "hotset/lanes/upload_value.h"

namespace hotset::lanes {

class StepGuard {
 public:
  // Errors: as NeverSlower::create.
  static Result<StepGuard> create(const NeverSlowerOptions& options = {});

  // What may be used of the cache now, in steps of one token; no uploads in others either, unless
  // it is kFull.
  CacheUse use() const { return guard_.use(); }

  void begin(int32_t n_tokens);
  // Whether the CPU computes all experts of the step: a probe, or the cache is left unused.
  bool bypasses_step() const { return step_.is_bypassed; }
  // A lookup of the step: what it should take as planned, with its cheapest split, and without a
  // cache.
  void planned(double planned_us, double cheapest_us, double no_cache_us);
  // A layer of a step that the CPU computes.
  void bypassed(double no_cache_us) { step_.no_cache_us += no_cache_us; }
  // The step took `us`. A change of use is returned once. Errors: as NeverSlower::observe.
  Result<std::optional<CacheUseChange>> end(double us);

 private:
  struct Step {
    bool is_judged = false;
    bool is_probe = false;
    bool is_bypassed = false;
    double planned_us = 0;   // experts, as the splits that were taken should take
    double cheapest_us = 0;  // and the cheapest splits
    double no_cache_us = 0;  // and all of them on the CPU
  };
  static constexpr double kStepsToHalve = 64;

  explicit StepGuard(NeverSlower guard) : guard_(guard) {}
  // What a step takes beside its experts if the CPU computes all of them.
  double no_cache_other_us() const;
  // A step that the CPU computed took `step_us`.
  void observe_no_cache(double step_us, double experts_us);

  NeverSlower guard_;
  Step step_;
  DecayedMean other_us_{kStepsToHalve, 0, 0};  // of a step, beside its experts
  DecayedMean no_cache_us_{kStepsToHalve, 0, 0};
  // Of a step without the cache, as those that were found it. What costs foresee wrongly of a step
  // with the cache is in other_us_, too, and would excuse the cache for what it causes.
  std::optional<DecayedMean> probe_other_us_;
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_STEP_GUARD_H_
