// crf: the victim is the expert with the smallest CRF decayed to now, each by its own layer's
// clock; ties to the lower key.
//
// Decay keeps the order within a layer, so every layer has a heap by a key that changes on use
// only: with crf as of the last use,
//   log2(crf decayed to now) * half-life = log2(crf) * half-life + last use - clock,
// in tokens, and `key` is the first two terms as a fixed-point number with 20 fractional bits. So
// comparisons are exact, and "smallest CRF" means up to a factor of 2^(2^-21 / half-life).
// A use only raises it, so the heaps need not hear of it (rank_heaps.h). Choosing n victims costs
// O(layers + n log), whatever the number of slots.
// Thread-compatible, const functions included: choosing rearranges the heaps.
#ifndef HOTSET_POLICY_CRF_H_
#define HOTSET_POLICY_CRF_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hotset/policy/crf_table.h"
#include "hotset/policy/policy.h"
#include "hotset/policy/rank_heaps.h"

namespace hotset::policy {

// The fixed-point key above; a token is 2^kCrfKeyBits.
inline constexpr int kCrfKeyBits = 20;
int64_t crf_key(float crf, int64_t last_use, int32_t half_life_tokens);

class Crf final : public Policy {
 public:
  // Requires: a valid shape, half_life_tokens in [1, kMaxHalfLifeTokens].
  Crf(const PolicyShape& shape, int32_t half_life_tokens);

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
  int64_t key(ExpertIndex expert) const;

  CrfTable crf_;
  RankHeaps heaps_;  // one per layer
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_CRF_H_
