// Combined recency and frequency of every expert of a group (Lee et al., "LRFU: a spectrum of
// policies that subsumes the LRU and LFU policies", IEEE Trans. Computers, 2001), in float32:
// on use, crf = crf * 2^(-(clock - last use) / half-life) + 1, by the clock of the expert's layer.
// It knows nothing of slots: a CRF survives eviction.
// Thread-compatible.
#ifndef HOTSET_POLICY_CRF_TABLE_H_
#define HOTSET_POLICY_CRF_TABLE_H_

#include <bit>
#include <cstdint>
#include <vector>

#include "hotset/policy/policy.h"

namespace hotset::policy {

class CrfTable {
 public:
  // Requires: all > 0; half_life_tokens <= kMaxHalfLifeTokens.
  CrfTable(int32_t n_layers, int32_t n_expert, int32_t half_life_tokens);

  int32_t half_life_tokens() const { return half_life_; }
  int32_t layer_of(ExpertIndex expert) const { return expert / n_expert_; }
  // Tokens that the layer has seen.
  int64_t clock(int32_t layer_index) const { return clocks_[layer_index]; }
  // Clock of the expert's layer at its last use; 0 before the first.
  int64_t last_use(ExpertIndex expert) const { return at(expert).last_use; }
  int64_t age(ExpertIndex expert) const { return clock(layer_of(expert)) - last_use(expert); }

  // The CRF as of the last use; 0 before the first.
  float crf(ExpertIndex expert) const { return at(expert).crf; }
  // The CRF decayed to now.
  float decayed(ExpertIndex expert) const { return at(expert).crf * decay(age(expert)); }
  // What crf() would be after a use now.
  float after_use(ExpertIndex expert) const { return decayed(expert) + 1.0F; }
  // A CRF as expected uses per token: crf * (1 - 2^(-1/half-life)), the stationary mean.
  double uses_per_token(float crf) const { return static_cast<double>(crf) * rate_; }

  // Requires: the expert is of the layer.
  void use(int32_t layer_index, ExpertIndex expert) {
    Entry& entry = entries_[expert];
    const int64_t now = clock(layer_index);
    entry.crf = entry.crf * decay(now - entry.last_use) + 1.0F;
    entry.last_use = now;
  }
  void advance(int32_t layer_index, int32_t n_tokens) { clocks_[layer_index] += n_tokens; }

  // 2^(-age / half-life) in float32, the same on every machine. Requires: age >= 0.
  float decay(int64_t age_tokens) const {
    if (age_tokens >= max_age_) return 0.0F;
    const auto age = static_cast<uint32_t>(age_tokens);
    const uint32_t halvings = age / static_cast<uint32_t>(half_life_);
    const uint32_t rest = age - halvings * static_cast<uint32_t>(half_life_);
    // 2^-halvings is a normal float: halvings < kMaxHalvings.
    return fraction_[rest] * std::bit_cast<float>((127U - halvings) << 23);
  }

 private:
  // A CRF is below 2^17 (half-life at most 2^16), so that decayed by this much it is below 2^-85
  // and adding 1 loses it whole.
  static constexpr int64_t kMaxHalvings = 102;

  struct Entry {
    float crf = 0;
    int64_t last_use = 0;
  };
  const Entry& at(ExpertIndex expert) const { return entries_[expert]; }

  int32_t n_expert_;
  int32_t half_life_;
  int64_t max_age_;
  double rate_;
  std::vector<float> fraction_;  // [half_life], 2^(-i / half_life)
  std::vector<int64_t> clocks_;  // [n_layers]
  std::vector<Entry> entries_;   // [n_layers * n_expert]
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_CRF_TABLE_H_
