// crf-auto: judges candidate policies online on ghost caches and follows the best.
//
// The candidates are class_lru, crf with half-lives 2, 8, 32 and 128, and crf-blend. Each runs a
// ghost cache over a fixed random sample of the experts of every layer, with slots in proportion
// (Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015; Qureshi et al.,
// "Adaptive insertion policies for high performance caching", ISCA 2007). Small groups are sampled
// whole. The decayed hit rates of the ghosts are compared once per round of the layers; another
// candidate is followed if it is ahead by a margin. When the topic changes, what served the old one
// best can be far behind for a while: a candidate that is far ahead over the last few tokens is
// followed at once, until it no longer is. Ghosts insert on demand, whatever share of the
// misses the real cache leaves to the CPU; lookups of more than kJudgedTokens tokens (prefill)
// insert nothing there, as in the real cache.
//
// The real slots are ranked by the followed candidate exactly as by that policy on its own: the
// scores of all candidates are kept, and a switch reorders the residents once, O(slots log slots).
// Thread-compatible, const functions included: choosing uses scratch memory.
#ifndef HOTSET_POLICY_CRF_AUTO_H_
#define HOTSET_POLICY_CRF_AUTO_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "hotset/policy/class_lists.h"
#include "hotset/policy/crf_bank.h"
#include "hotset/policy/ghost_cache.h"
#include "hotset/policy/policy.h"
#include "hotset/policy/rank_heaps.h"

namespace hotset::policy {

class CrfAuto final : public Policy {
 public:
  static constexpr int32_t kJudgedTokens = 32;
  // Experts of all layers together that the ghosts sample, at least (all, if there are fewer).
  static constexpr int32_t kSampledExperts = 512;
  // Half-life of the ghosts' hit rates, in tokens.
  static constexpr double kRateHalfLifeTokens = 256;
  // How much better another candidate must be.
  static constexpr double kMargin = 0.003;
  // The same over the last few tokens. These are some hundred uses, so a difference below the
  // margin is chance.
  static constexpr double kRecentHalfLifeTokens = 1;
  static constexpr double kRecentMargin = 0.12;

  // Requires: a valid shape.
  explicit CrfAuto(const PolicyShape& shape);
  // Ghosts refer to the bank.
  CrfAuto(const CrfAuto&) = delete;
  CrfAuto& operator=(const CrfAuto&) = delete;

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

  Candidate followed() const { return followed_; }
  // The decayed hit rate of a candidate's ghost; 0 before the first sampled lookup.
  double ghost_hit_rate(Candidate candidate) const;
  int64_t n_switches() const { return n_switches_; }

 private:
  // Decayed sums of the ghosts.
  struct Judged {
    std::array<double, kCandidates> hits = {};
    double selected = 0;

    Candidate best() const;
    double rate(Candidate candidate) const;
    void decay(double factor);
  };

  CrfEstimate score_estimate() const;
  BankOrder order(int32_t planned_layer_index) const;
  void review(int32_t n_tokens);
  void follow(Candidate candidate);

  PolicyShape shape_;
  Candidate followed_ = Candidate::kBlend;
  CrfBank bank_;
  // Of the real slots. The lists are always kept, since their order cannot be made up later; the
  // heaps are those of the followed candidate, unless it is class_lru.
  ClassLists lists_;
  RankHeaps heaps_;
  std::vector<int32_t> slot_of_;  // [n_experts]
  int32_t n_tokens_ = 1;          // of the last lookup

  std::vector<int32_t> ghost_expert_of_;      // [n_experts] its index in the ghosts, or -1
  std::vector<ExpertIndex> sampled_experts_;  // [n_layers * sampled per layer] the reverse
  std::vector<int32_t> sampled_uses_;         // of the lookup being planned
  std::vector<GhostCache> ghosts_;            // [kCandidates]
  Judged judged_;
  Judged recent_;
  int64_t n_switches_ = 0;
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_CRF_AUTO_H_
