// The CRFs of every expert of a group for several half-lives at once, the estimates made of them,
// and the orders by these estimates. As CrfTable otherwise.
// Thread-compatible.
#ifndef HOTSET_POLICY_CRF_BANK_H_
#define HOTSET_POLICY_CRF_BANK_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/policy/crf.h"
#include "hotset/policy/policy.h"

namespace hotset::policy {

// How many uses per token to expect of an expert: by one half-life, or
//   kBlend  the mean of the estimates of half-lives 16 and 128 as of the last use, decaying with a
//           half-life of 16 tokens from there: what a text uses now, and what it uses at all. Each
//           use raises it, and decay keeps the order within a layer, as for a single half-life.
enum class CrfEstimate : uint8_t { kHalfLife2, kHalfLife8, kHalfLife32, kHalfLife128, kBlend };

class CrfBank {
 public:
  // Requires: both > 0.
  CrfBank(int32_t n_layers, int32_t n_expert);

  int64_t clock(int32_t layer_index) const { return clocks_[layer_index]; }
  int32_t layer_of(ExpertIndex expert) const { return expert / n_expert_; }
  int64_t last_use(ExpertIndex expert) const { return at(expert).last_use; }
  int64_t age(ExpertIndex expert) const { return clock(layer_of(expert)) - last_use(expert); }
  // The CRF of half-life 128 as of the last use, as class_lru has it.
  float class_crf(ExpertIndex expert) const { return at(expert).crf[kIndex128]; }

  // Expected uses per token now, and if the expert were used now.
  double uses_per_token(CrfEstimate estimate, ExpertIndex expert) const;
  double uses_per_token_after_use(CrfEstimate estimate, ExpertIndex expert) const;

  // The order by an estimate within a layer, as a number that changes on use only: see crf_key.
  // For kBlend, log2(uses per token) = (key / 2^kCrfKeyBits - clock) / kBlendDecayTokens.
  int64_t key(CrfEstimate estimate, ExpertIndex expert) const;

  // Requires: the expert is of the layer.
  void use(int32_t layer_index, ExpertIndex expert);
  void advance(int32_t layer_index, int32_t n_tokens) { clocks_[layer_index] += n_tokens; }

  static constexpr int32_t kBlendDecayTokens = 16;

 private:
  static constexpr std::array<int32_t, 5> kHalfLives = {2, 8, kBlendDecayTokens, 32, 128};
  static constexpr size_t kIndex16 = 2;
  static constexpr size_t kIndex128 = 4;
  static constexpr int32_t kLongest = kHalfLives[kIndex128];
  // Beyond so many halvings a CRF (below 2^8) is lost whole when 1 is added.
  static constexpr int64_t kMaxHalvings = 102;

  struct Entry {
    std::array<float, kHalfLives.size()> crf = {};
    int64_t last_use = 0;
  };
  // In kHalfLives. Requires: not kBlend.
  static size_t index_of(CrfEstimate estimate) {
    const auto i = static_cast<size_t>(estimate);
    return i < kIndex16 ? i : i + 1;
  }
  const Entry& at(ExpertIndex expert) const { return entries_[expert]; }
  // 2^(-age / kHalfLives[i]) in float32.
  float decay(size_t i, int64_t age) const;
  float crf_after_use(size_t i, const Entry& entry, int64_t now) const {
    return entry.crf[i] * decay(i, now - entry.last_use) + 1.0F;
  }
  double blend_of(float crf16, float crf128) const {
    return 0.5 * (static_cast<double>(crf16) * rates_[kIndex16] +
                  static_cast<double>(crf128) * rates_[kIndex128]);
  }

  int32_t n_expert_;
  std::array<double, kHalfLives.size()> rates_;  // 1 - 2^(-1/half-life)
  std::array<float, kLongest> fractions_;        // 2^(-i / kLongest)
  std::vector<int64_t> clocks_;                  // [n_layers]
  std::vector<Entry> entries_;                   // [n_layers * n_expert]
};

// The lookup that an order ranks for.
struct RankedLookup {
  int32_t layer_index = 0;
  int32_t n_layers = 1;  // of the group
  int32_t n_tokens = 1;  // of the last lookup
};

// An order of RankHeaps by an estimate of the bank. Half-lives rank as crf does; kBlend ranks by
// the expected wait, see crf_blend.h.
class BankOrder {
 public:
  // experts: of the heaps' experts, their names in the bank; empty if they are the same.
  BankOrder(const CrfBank& bank, CrfEstimate estimate, const RankedLookup& planned,
            std::span<const ExpertIndex> experts = {})
      : bank_(bank),
        estimate_(estimate),
        planned_(planned),
        tokens_per_layer_(static_cast<double>(planned.n_tokens) / planned.n_layers),
        experts_(experts) {}

  int64_t key(ExpertIndex expert, int64_t = 0) const {
    return bank_.key(estimate_, experts_.empty() ? expert : experts_[expert]);
  }

  double value(int32_t layer_index, int64_t key) const {
    const auto relative = static_cast<double>(key - (bank_.clock(layer_index) << kCrfKeyBits));
    if (estimate_ != CrfEstimate::kBlend) return relative;
    constexpr double kHalving = CrfBank::kBlendDecayTokens * static_cast<double>(1 << kCrfKeyBits);
    return -std::exp2(relative / -kHalving);
  }

  double rank(int32_t layer_index, double value) const {
    if (estimate_ != CrfEstimate::kBlend) return value;
    int32_t ahead = layer_index - planned_.layer_index;
    if (ahead <= 0) ahead += planned_.n_layers;
    return value - tokens_per_layer_ * ahead;
  }

 private:
  const CrfBank& bank_;
  CrfEstimate estimate_;
  RankedLookup planned_;
  double tokens_per_layer_;
  std::span<const ExpertIndex> experts_;
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_CRF_BANK_H_
