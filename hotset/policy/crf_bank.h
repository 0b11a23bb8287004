// The CRFs of every expert of a group for the half-lives 2, 8, 32 and 128 tokens at once, the
// estimates made of them, and the orders by these estimates. As CrfTable otherwise.
// Thread-compatible.
#ifndef HOTSET_POLICY_CRF_BANK_H_
#define HOTSET_POLICY_CRF_BANK_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/policy/crf.h"
#include "hotset/policy/policy.h"
#include "hotset/policy/rank_heaps.h"

namespace hotset {

inline constexpr std::array<int32_t, 4> kBankHalfLives = {2, 8, 32, 128};

// How many uses per token to expect of an expert: by one of the half-lives, or
//   kBlend  the mean of the estimates of half-lives 8, 32 and 128.
enum class CrfEstimate : uint8_t { kHalfLife2, kHalfLife8, kHalfLife32, kHalfLife128, kBlend };

class CrfBank {
 public:
  // Requires: both > 0.
  CrfBank(int32_t n_layers, int32_t n_expert);

  int64_t clock(int32_t layer_index) const { return clocks_[static_cast<size_t>(layer_index)]; }
  int32_t layer_of(ExpertIndex expert) const { return expert / n_expert_; }
  int64_t last_use(ExpertIndex expert) const { return at(expert).last_use; }
  int64_t age(ExpertIndex expert) const { return clock(layer_of(expert)) - last_use(expert); }
  // The CRF of half-life 128 as of the last use, as class_lru has it.
  float class_crf(ExpertIndex expert) const { return at(expert).crf.back(); }

  // Expected uses per token now, and if the expert were used now.
  double uses_per_token(CrfEstimate estimate, ExpertIndex expert) const;
  double uses_per_token_after_use(CrfEstimate estimate, ExpertIndex expert) const;

  // The blend, at least 2^-100, of an expert that was inserted without a use as if used once.
  double positive_blend(int32_t layer_index, ExpertIndex expert) const;
  // crf_key of one of the half-lives. Requires: not kBlend.
  int64_t half_life_key(CrfEstimate estimate, ExpertIndex expert) const {
    const auto i = static_cast<size_t>(estimate);
    return crf_key(at(expert).crf[i], at(expert).last_use, kBankHalfLives[i]);
  }

  // Requires: the expert is of the layer.
  void use(int32_t layer_index, ExpertIndex expert);
  void advance(int32_t layer_index, int32_t n_tokens) {
    clocks_[static_cast<size_t>(layer_index)] += n_tokens;
  }

 private:
  struct Entry {
    std::array<float, kBankHalfLives.size()> crf = {};
    int64_t last_use = 0;
  };
  const Entry& at(ExpertIndex expert) const { return entries_[static_cast<size_t>(expert)]; }
  // 2^(-age / kBankHalfLives[i]) in float32.
  float decay(size_t i, int64_t age) const;
  Entry used(const Entry& entry, int64_t now) const;
  double estimate_of(CrfEstimate estimate, const Entry& entry, int64_t now) const;

  int32_t n_expert_;
  std::array<double, kBankHalfLives.size()> rate_;  // 1 - 2^(-1/half-life)
  std::vector<float> fraction_;                     // [128], 2^(-i/128)
  std::vector<int64_t> clocks_;                     // [n_layers]
  std::vector<Entry> entries_;                      // [n_layers * n_expert]
};

// The lookup that an order ranks for.
struct PlannedLookup {
  int32_t layer_index = 0;
  int32_t n_layers = 1;  // of the group
  int32_t n_tokens = 1;  // of the last lookup
};

// An order of RankHeaps by an estimate of the bank. Half-lives rank as crf does; kBlend ranks by
// the expected wait, see crf_blend.h.
class BankOrder {
 public:
  // experts: of the heaps' experts, their names in the bank; empty if they are the same.
  BankOrder(const CrfBank& bank, CrfEstimate estimate, const PlannedLookup& planned,
            std::span<const ExpertIndex> experts = {})
      : bank_(bank),
        estimate_(estimate),
        planned_(planned),
        tokens_per_layer_(static_cast<double>(planned.n_tokens) / planned.n_layers),
        experts_(experts) {}

  double value(int32_t layer_index, int64_t key) const {
    const auto relative = static_cast<double>(key - (bank_.clock(layer_index) << kCrfKeyBits));
    return estimate_ == CrfEstimate::kBlend ? -std::exp2(relative * -kBlendKeyUnit) : relative;
  }

  double rank(int32_t layer_index, double value) const {
    if (estimate_ != CrfEstimate::kBlend) return value;
    int32_t ahead = layer_index - planned_.layer_index;
    if (ahead <= 0) ahead += planned_.n_layers;
    return value - tokens_per_layer_ * ahead;
  }

  // Rises with time where the expert is not used, for kBlend; and on use.
  int64_t key(int32_t layer_index, ExpertIndex expert, int64_t = 0) const {
    const ExpertIndex named = experts_.empty() ? expert : experts_[static_cast<size_t>(expert)];
    if (estimate_ != CrfEstimate::kBlend) return bank_.half_life_key(estimate_, named);
    // log2 of the blend, as if it decayed with the shortest of its half-lives from now on.
    const double log2_uses = std::log2(bank_.positive_blend(layer_index, named));
    return (bank_.clock(layer_index) << kCrfKeyBits) +
           static_cast<int64_t>(log2_uses / kBlendKeyUnit);
  }

 private:
  // log2 of uses per token in one unit of a key of kBlend.
  static constexpr double kBlendKeyUnit =
      1.0 / (static_cast<double>(kBankHalfLives[1]) * static_cast<double>(1 << kCrfKeyBits));

  const CrfBank& bank_;
  CrfEstimate estimate_;
  PlannedLookup planned_;
  double tokens_per_layer_;
  std::span<const ExpertIndex> experts_;
};

}  // namespace hotset

#endif  // HOTSET_POLICY_CRF_BANK_H_
