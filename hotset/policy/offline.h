// Offline bounds, which know the future (Belady, "A study of replacement algorithms for a
// virtual-storage computer", IBM Systems Journal, 1966). Both plan whole lookups and never evict
// what the lookup needs, as every policy here.
// Thread-compatible, const functions included: choosing uses scratch memory.
#ifndef HOTSET_POLICY_OFFLINE_H_
#define HOTSET_POLICY_OFFLINE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hotset/policy/future.h"
#include "hotset/policy/policy.h"
#include "hotset/policy/rank_heaps.h"

namespace hotset::policy {

// The victim is the expert whose next use is farthest; of those that the same lookup uses next, the
// one whose use after that is farthest, and so on (NextUse); then the lower key.
//   belady         declines a miss that is not used before its victim: the most hits of all.
//   belady-demand  always inserts: the most hits of all that always insert.
// A test compares both with exhaustive search.
class Belady final : public Policy {
 public:
  enum class Admission { kMayDecline, kAlways };

  // Requires: a valid shape; `future` outlives this.
  Belady(const PolicyShape& shape, const NextUseOracle& future, Admission admission);

  double score(ExpertIndex expert) const override;
  double score_after_use(ExpertIndex expert) const override;
  int32_t choose_victims(const NeededSlots& needed, std::span<Victim> victims) const override;
  bool admits(ExpertIndex expert, const Victim* victim) const override;
  std::string explain(const Victim& victim) const override;
  std::string explain() const override;

  void on_lookup(int32_t layer_index, std::span<const Use> uses) override;
  void on_insert(ExpertIndex expert, int32_t slot) override;
  void on_evict(ExpertIndex expert, int32_t slot) override;
  void on_advance(int32_t, int32_t) override {}

 private:
  double worth(const NextUse& next_use) const;

  const NextUseOracle& future_;
  Admission admission_;
  RankHeaps heap_;                 // one, the farthest next use first
  std::vector<NextUse> next_use_;  // [n_experts] as of the last use
};

// Every expert has a slot, so it misses on first use only.
class Unbounded final : public Policy {
 public:
  double score(ExpertIndex) const override { return 0; }
  double score_after_use(ExpertIndex) const override { return 0; }
  int32_t choose_victims(const NeededSlots&, std::span<Victim>) const override { return 0; }
  bool admits(ExpertIndex, const Victim*) const override { return true; }
  std::string explain(const Victim& victim) const override;
  std::string explain() const override;

  void on_lookup(int32_t, std::span<const Use>) override {}
  void on_insert(ExpertIndex, int32_t) override {}
  void on_evict(ExpertIndex, int32_t) override {}
  void on_advance(int32_t, int32_t) override {}
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_OFFLINE_H_
