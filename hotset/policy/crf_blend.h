// crf-blend: the victim is the expert with the longest expected wait for its next use, ties to the
// lower key. The wait, in tokens, is
//   T * d / n_layers + 1 / p
// with p the expected uses per token by a short and a long half-life (CrfEstimate::kBlend), d how
// many layers of the group come up until the expert's own (n_layers for the layer being planned:
// what it does not select now must wait a round), and T the tokens of the last lookup. The first
// term is what a rank by p alone does not see: of two experts of equal p, the one whose layer comes
// next is worth more. It matters where the content of a slot lives for few rounds.
// Choosing n victims costs what it costs crf.
// Thread-compatible, const functions included: choosing rearranges the heaps.
#ifndef HOTSET_POLICY_CRF_BLEND_H_
#define HOTSET_POLICY_CRF_BLEND_H_

#include <cstdint>
#include <span>
#include <string>

#include "hotset/policy/crf_bank.h"
#include "hotset/policy/policy.h"
#include "hotset/policy/rank_heaps.h"

namespace hotset::policy {

class CrfBlend final : public Policy {
 public:
  // Requires: a valid shape.
  explicit CrfBlend(const PolicyShape& shape);

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
  BankOrder order(int32_t planned_layer_index) const;

  int32_t n_layers_;
  CrfBank bank_;
  RankHeaps heaps_;       // one per layer
  int32_t n_tokens_ = 1;  // of the last lookup
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_CRF_BLEND_H_
