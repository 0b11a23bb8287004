// What an upload is worth beyond its own lookup, and when a fill is: design.md section 5.
//   V_i = s * H * max(0, p(e_i) - p(victim_i)),   p = decayed CRF * (1 - 2^(-1/half-life))
// s is the decayed mean saving of a hit against a miss, H the decayed mean residency in tokens.
#ifndef HOTSET_LANES_UPLOAD_VALUE_H_
#define HOTSET_LANES_UPLOAD_VALUE_H_

#include <algorithm>

#include "hotset/base/error.h"
#include "hotset/lanes/lane_costs.h"

namespace hotset::lanes {

// Mean of a stream in which an observation counts half after `half_life` later ones.
// Thread-compatible.
class DecayedMean {
 public:
  // `prior` counts as `prior_weight` observations; weight 0 means that the first observation
  // replaces it. Requires: half_life above 0, prior finite, prior_weight 0 or more and finite.
  DecayedMean(double half_life, double prior, double prior_weight);

  // Requires: finite.
  void observe(double value);
  double mean() const { return mean_; }
  // Observations that the mean rests on, decayed; the prior included.
  double weight() const { return weight_; }

 private:
  double keep_;  // 2^(-1 / half_life)
  double mean_;
  double weight_;
};

// p: the expected uses a token of an expert whose CRF, decayed to now, is `decayed_crf` (0 or more)
// under a half-life of `half_life_tokens` (above 0). An expert used by every token has p = 1.
double uses_per_token(double decayed_crf, double half_life_tokens);

struct UploadValueOptions {
  double saving_us = 0;               // s before anything was measured, 0 or more
  double residency_tokens = 0;        // H before anything was measured, 0 or more
  double prior_weight = 8;            // observations that each of the two counts for, 0 or more
  double half_life_savings = 64;      // lookups, as the lanes' estimators
  double half_life_residencies = 64;  // evictions
};

// Thread-compatible.
class UploadValue {
 public:
  // Errors: kInvalidArgument, naming the field.
  static Result<UploadValue> create(const UploadValueOptions& options);

  // What one lookup paid for a miss above a hit; may be negative.
  // Errors: kInvalidArgument if not finite; nothing changes.
  Status observe_saving(double saving_us);
  // Tokens from an expert's upload to its eviction.
  // Errors: kInvalidArgument if negative or not finite; nothing changes.
  Status observe_residency(double n_tokens);

  // s, never below 0.
  double saving_us() const { return saving_.mean() > 0 ? saving_.mean() : 0; }
  // H.
  double residency_tokens() const { return residency_.mean(); }
  // V of an expert with expected uses `p` whose victim has `p_victim`; an empty slot's is 0. At
  // most kMaxCost.
  double value_us(double p, double p_victim) const {
    const double gain = p - p_victim;
    if (!(gain > 0)) return 0;
    return std::min(kMaxCost, saving_us() * residency_.mean() * gain);
  }

 private:
  explicit UploadValue(const UploadValueOptions& options);

  DecayedMean saving_;
  DecayedMean residency_;
};

// Admission: may an expert that the CPU served be queued as a fill? Its p must beat the victim's,
// and no more than one layer-time of copies may be outstanding with it. A single fill is let in
// however long it takes: on a slow link nothing would ever come in otherwise.
struct FillState {
  double p = 0;
  double p_victim = 0;
  bool slot_is_empty = false;  // then any expert may come in
  bool link_is_idle = true;    // no demand upload waits or runs
  double outstanding_us = 0;   // copy time of the fills that are queued and not done
  double copy_us = 0;          // copy time of this one
  double layer_us = 0;         // what a layer of a token takes
};
bool admits_fill(const FillState& state);

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_UPLOAD_VALUE_H_
