// What is known at run time about the lanes of one group of experts: one estimator per lane, fed by
// the calibration and then by the lanes themselves, read by the chooser as `LaneCosts`.
#ifndef HOTSET_LANES_LANE_MODEL_H_
#define HOTSET_LANES_LANE_MODEL_H_

#include <cstdint>
#include <string>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/lanes/estimator.h"
#include "hotset/lanes/lane_costs.h"
#include "hotset/lanes/upload_value.h"

namespace hotset::lanes {

// Did the other lane (link or CPU) have work in the same lookup?
enum class LaneUse { kSolo, kConcurrent };

struct LaneModelOptions {
  Bytes expert_bytes = {};     // of one expert of the group, above 0
  double half_life = 64;       // lookups, above 0
  double memory_gb_per_s = 0;  // host memory, all readers together; 0: not known
  // Share of its first token that a further token of the same expert costs, 0 to 1; measured by
  // the calibration.
  double cpu_further_token = 0;
  double device_further_token = 0;
  LaneCosts prior = {};  // before anything is measured
  // Concurrent rates are derived from the solo ones until this many observations (decayed).
  double min_concurrent_weight = 4;
};

// The work of computing an expert for `n_tokens`, in units of its first token.
constexpr double expert_work(int32_t n_tokens, double further_token) {
  return 1 + further_token * (n_tokens - 1);
}

// Thread-compatible.
class LaneModel {
 public:
  // Errors: kInvalidArgument, naming the field.
  static Result<LaneModel> create(const LaneModelOptions& options);

  // One lookup's uploads (or one fill): all bytes, from launch to completion.
  // Errors of all `observe_*`: kInvalidArgument, naming the lane, if a number is negative or not
  // finite or there was no work; nothing changes.
  Status observe_upload(LaneUse use, Bytes bytes, double us);
  // One lookup's CPU lane without `rows`; work = sum of expert_work(n_tokens, cpu_further_token).
  Status observe_cpu(LaneUse use, double work, double us);
  // One lookup's resident or uploaded pairs on the device; work by device_further_token.
  Status observe_hits(double work, double us);
  Status observe_pairs(double work, double us);
  Status observe_shared(double us);
  Status observe_rows(double us);
  Status observe_all_rows(double us);

  // What the chooser reads. A lane's concurrent costs are derived from its solo costs until they
  // are measured: together about 0.88 of the sum, never more than memory's rate. So are they again
  // when the lane was seen a half-life of times alone and never with the other, and the other way
  // round: a way to serve that was given up under other conditions is tried again.
  // A lane is never faster with the other than alone: of the two the one seen last is believed.
  const LaneCosts& costs() const { return costs_; }
  // t_hit of this much work.
  double hit_us(double work) const { return work > 0 ? hits_.fit().at(work) : 0; }
  double shared_us() const { return shared_.mean(); }
  // T_nc of a lookup: all of it on the CPU lane, alone, rows included.
  double no_cache_us(double work) const;

  // "link 11.9 GB/s + 14.2 us (6.1 with the CPU), CPU 18.3 GB/s + 3.0 us (15.9 with the link)".
  std::string describe() const;

 private:
  // A lane that reads host memory, alone and beside the other one.
  struct SharedLane {
    LineEstimator solo;
    LineEstimator concurrent;
    double n_since_solo = 0;  // observations since the last solo one
    double n_since_concurrent = 0;

    Status observe(LaneUse use, double x, double us);
  };
  struct BothLines {
    LinearCost solo;
    LinearCost concurrent;
  };

  LaneModel(const LaneModelOptions& options, SharedLane upload, SharedLane cpu, LineEstimator hits,
            LineEstimator pairs);
  // `kept`: share of its own rate that a lane keeps beside the other. `typical_x`: where the two
  // lines are compared.
  BothLines lines(const SharedLane& lane, double kept, double typical_x) const;
  double kept_share() const;
  void update_costs();

  LaneModelOptions options_;
  SharedLane upload_;    // us of bytes
  SharedLane cpu_;       // us of work
  LineEstimator hits_;   // us of work
  LineEstimator pairs_;  // us of work
  DecayedMean shared_;
  DecayedMean rows_;
  DecayedMean all_rows_;
  LaneCosts costs_;
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_LANE_MODEL_H_
