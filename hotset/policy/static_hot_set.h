// static: the n_slots experts that a profile used most (ties to the lower key) are the hot set;
// they enter when first missed and stay, everything else is declined.
// Thread-compatible.
#ifndef HOTSET_POLICY_STATIC_HOT_SET_H_
#define HOTSET_POLICY_STATIC_HOT_SET_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hotset/policy/crf_table.h"
#include "hotset/policy/policy.h"

namespace hotset::policy {

class StaticHotSet final : public Policy {
 public:
  // profile [n_experts]: uses of each. Requires: a valid shape, profile of its length.
  StaticHotSet(const PolicyShape& shape, std::span<const uint64_t> profile);

  double score(ExpertIndex expert) const override;
  double score_after_use(ExpertIndex expert) const override;
  int32_t choose_victims(const NeededSlots&, std::span<Victim>) const override { return 0; }
  bool admits(ExpertIndex expert, const Victim*) const override { return hot_[expert] != 0; }
  std::string explain(const Victim& victim) const override;
  std::string explain() const override;

  void on_lookup(int32_t layer_index, std::span<const Use> uses) override;
  void on_insert(ExpertIndex, int32_t) override {}
  void on_evict(ExpertIndex, int32_t) override {}
  void on_advance(int32_t layer_index, int32_t n_tokens) override;

 private:
  int32_t n_slots_;
  CrfTable crf_;              // for scores only
  std::vector<uint8_t> hot_;  // [n_experts]
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_STATIC_HOT_SET_H_
