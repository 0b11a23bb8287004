// lru: the victim is the expert whose last use is the oldest, in lookups of the group; among those
// of one lookup, the lowest expert. This order does not depend on the number of slots, so misses
// never rise with it.
// Thread-compatible, const functions included: choosing rearranges the heap.
#ifndef HOTSET_POLICY_LRU_H_
#define HOTSET_POLICY_LRU_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hotset/policy/class_lru.h"
#include "hotset/policy/crf_table.h"
#include "hotset/policy/policy.h"
#include "hotset/policy/rank_heaps.h"

namespace hotset::policy {

class Lru final : public Policy {
 public:
  // Of the CRF that `score` reports; LRU itself has no use for it.
  static constexpr int32_t kScoreHalfLifeTokens = ClassLru::kHalfLifeTokens;

  // Requires: a valid shape.
  explicit Lru(const PolicyShape& shape);

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
  RankHeaps heap_;                 // one, by the lookup of the last use
  std::vector<int64_t> last_use_;  // [n_experts], 0 before the first
  int64_t lookup_ = 0;             // lookups seen
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_LRU_H_
