// Learns from the lanes of a running model what they cost, and what a layer takes beside its
// experts, and tells the planner, which goes by it.
// Thread-compatible.
#ifndef HOTSET_LANES_LANE_LEARNER_H_
#define HOTSET_LANES_LANE_LEARNER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/lanes/lane_model.h"
#include "hotset/lanes/lookup_planner.h"
#include "hotset/lanes/upload_value.h"

namespace hotset::lanes {

class LaneLearner {
 public:
  // `planner` must outlive the object.
  explicit LaneLearner(LookupPlanner& planner);

  // Starts the model of a group; a further token of an expert costs the CPU `cpu_further_token` of
  // its first. What is learned of groups without a model is dropped. Errors: as LaneModel::create.
  Status start(int32_t group, double cpu_further_token);
  bool has_model(int32_t group) const { return of(group).model.has_value(); }
  // Requires: has_model(group). After a change of it, tell().
  LaneModel& model(int32_t group) { return *of(group).model; }
  const LaneModel& model(int32_t group) const { return *of(group).model; }
  // The planner goes by what the model knows now.
  void tell(int32_t group) { planner_.set_costs(group, model(group).costs()); }

  // A lookup is about to be planned, at `now_us` of any clock.
  void lookup_begins(int32_t n_tokens, double now_us);
  void lookup_is_planned(double predicted_us) { planned_us_ = predicted_us; }
  // Time passes that is no layer's.
  void interrupt() { planned_at_us_ = -1; }

  // The CPU lane computed `n_experts` experts of `n_pairs` pairs in `us`.
  // Errors: as LaneModel::observe_cpu.
  Status learn_cpu(int32_t group, LaneUse use, int64_t n_experts, int64_t n_pairs, double us);
  // Uploads of a lookup took `us`. Errors: as LaneModel::observe_upload.
  Status learn_uploads(int32_t group, LaneUse use, Bytes n_bytes, double us);

  // T_nc: what the experts of a lookup take on the CPU alone; 0 for a group without a model.
  double no_cache_us(int32_t group, double n_experts) const;
  // Why the CPU should compute everything: `device` takes longer than it for the k experts of a
  // layer and token, resident ones included. Empty where it does not, in any group with a model.
  std::string why_cpu_alone(std::string_view device, int64_t k) const;

 private:
  struct Group {
    std::optional<LaneModel> model;
    double cpu_further_token = 0;
  };

  Group& of(int32_t group) { return groups_[group]; }
  const Group& of(int32_t group) const { return groups_[group]; }

  LookupPlanner& planner_;
  std::vector<Group> groups_;
  DecayedMean other_us_of_one_{64, 0, 0};   // of a layer and token, beside its experts
  DecayedMean other_us_of_more_{64, 0, 0};  // of a layer and several tokens
  double planned_at_us_ = -1;               // the last lookup; -1: none that counts
  bool planned_one_ = true;                 // which was of one token
  double planned_us_ = 0;                   // and what its experts should take
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_LANE_LEARNER_H_
