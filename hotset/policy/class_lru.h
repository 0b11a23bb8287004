// class_lru, the reference policy. An expert's class is min(7, floor(log2(crf))) as of its last
// use; each class has one LRU list over all slots of the group. The victim is, among the least
// recently used slot of each class that the lookup does not need, the one with the largest
// age / 2^class, age in tokens of its own layer's clock; ties to the lower class.
// Choosing n victims costs O(n + needed slots passed over).
// Thread-compatible.
#ifndef HOTSET_POLICY_CLASS_LRU_H_
#define HOTSET_POLICY_CLASS_LRU_H_

#include <cstdint>
#include <span>
#include <string>

#include "hotset/policy/class_lists.h"
#include "hotset/policy/crf_table.h"
#include "hotset/policy/policy.h"

namespace hotset::policy {

class ClassLru final : public Policy {
 public:
  static constexpr int32_t kHalfLifeTokens = 128;

  // Requires: a valid shape.
  explicit ClassLru(const PolicyShape& shape);

  double score(ExpertIndex expert) const override;
  double score_after_use(ExpertIndex expert) const override;
  int32_t choose_victims(const NeededSlots& needed, std::span<Victim> victims) const override;
  bool admits(ExpertIndex, const Victim*) const override { return true; }
  std::string explain(const Victim& victim) const override;
  std::string explain() const override;

  void on_lookup(int32_t layer_index, std::span<const Use> uses) override;
  void on_insert(ExpertIndex expert, int32_t slot) override;
  void on_evict(ExpertIndex expert, int32_t slot) override;
  void on_advance(int32_t layer_index, int32_t n_tokens) override;

 private:
  CrfTable crf_;
  ClassLists lists_;
};

// Why class_lru chose a victim, for all who rank as it does.
std::string explain_class_lru(const Victim& victim);

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_CLASS_LRU_H_
