#include "hotset/lanes/lane_learner.h"

#include <algorithm>

namespace hotset::lanes {

LaneLearner::LaneLearner(LookupPlanner& planner)
    : planner_(planner), groups_(planner.cache().n_groups()) {}

Status LaneLearner::start(int32_t group, double cpu_further_token) {
  of(group).cpu_further_token = cpu_further_token;
  HOTSET_TRY(of(group).model,
             LaneModel::create({.expert_bytes = planner_.cache().spec(group).bytes_per_expert(),
                                .cpu_further_token = cpu_further_token,
                                .prior = planner_.costs(group),
                                .min_concurrent_weight = 1}));
  return {};
}

void LaneLearner::lookup_begins(int32_t n_tokens, double now_us) {
  // The attention of a prompt takes far longer than that of a token.
  const bool is_one = n_tokens == 1;
  DecayedMean& other_us = is_one ? other_us_of_one_ : other_us_of_more_;
  if (planned_at_us_ >= 0 && is_one == planned_one_) {
    other_us.observe(std::max(0.0, now_us - planned_at_us_ - planned_us_));
  }
  planner_.set_other_us(other_us.mean());
  planned_at_us_ = now_us;
  planned_one_ = is_one;
}

Status LaneLearner::learn_cpu(int32_t group, LaneUse use, int64_t n_experts, int64_t n_pairs,
                              double us) {
  if (n_experts == 0 || !has_model(group)) return {};
  const double work = static_cast<double>(n_experts) +
                      of(group).cpu_further_token * static_cast<double>(n_pairs - n_experts);
  HOTSET_RETURN_IF_ERROR(model(group).observe_cpu(use, work, us));
  tell(group);
  return {};
}

Status LaneLearner::learn_uploads(int32_t group, LaneUse use, Bytes n_bytes, double us) {
  if (!has_model(group)) return {};
  HOTSET_RETURN_IF_ERROR(model(group).observe_upload(use, n_bytes, us));
  tell(group);
  return {};
}

double LaneLearner::no_cache_us(int32_t group, double n_experts) const {
  return has_model(group) ? model(group).no_cache_us(n_experts) : 0;
}

std::string LaneLearner::why_cpu_alone(std::string_view device, int64_t k) const {
  const auto n_experts = static_cast<double>(k);
  std::string why;
  for (int32_t group = 0; group < planner_.cache().n_groups(); ++group) {
    if (!has_model(group)) continue;
    const ExpertCost& pairs = planner_.costs(group).pairs;
    const double device_us = pairs.turn_us + n_experts * pairs.expert_us.at(1);
    const double cpu_us = model(group).no_cache_us(n_experts);
    if (device_us < cpu_us) return {};
    why =
        fmt::format("{} takes {:.0f} us for the {} experts of a layer and token, the CPU {:.0f} us",
                    device, device_us, k, cpu_us);
  }
  return why;
}

}  // namespace hotset::lanes
