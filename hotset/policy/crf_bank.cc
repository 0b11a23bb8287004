#include "hotset/policy/crf_bank.h"

#include <algorithm>
#include <bit>

namespace hotset::policy {

CrfBank::CrfBank(int32_t n_layers, int32_t n_expert)
    : n_expert_(n_expert),
      clocks_(n_layers),
      entries_(static_cast<size_t>(n_layers) * static_cast<size_t>(n_expert)) {
  // One table of fractions serves all half-lives.
  static_assert(
      std::ranges::all_of(kHalfLives, [](int32_t half_life) { return kLongest % half_life == 0; }));
  for (size_t i = 0; i < rates_.size(); i++) rates_[i] = 1.0 - std::exp2(-1.0 / kHalfLives[i]);
  for (size_t i = 0; i < fractions_.size(); i++) {
    fractions_[i] = static_cast<float>(std::exp2(-static_cast<double>(i) / kLongest));
  }
}

float CrfBank::decay(size_t i, int64_t age) const {
  // All are powers of two: a division takes longer than all else here.
  static_assert(std::ranges::all_of(
      kHalfLives, [](int32_t half_life) { return std::has_single_bit(unsigned(half_life)); }));
  const auto half_life = static_cast<uint32_t>(kHalfLives[i]);
  const int shift = std::countr_zero(half_life);
  if (age >= kMaxHalvings << shift) return 0.0F;
  const auto tokens = static_cast<uint32_t>(age);
  const uint32_t rest = (tokens & (half_life - 1))
                        << (std::countr_zero(unsigned{kLongest}) - shift);
  return fractions_[rest] * std::bit_cast<float>((127U - (tokens >> shift)) << 23);
}

double CrfBank::uses_per_token(CrfEstimate estimate, ExpertIndex expert) const {
  const Entry& entry = at(expert);
  const int64_t age_tokens = age(expert);
  if (estimate == CrfEstimate::kBlend) {
    return blend_of(entry.crf[kIndex16], entry.crf[kIndex128]) *
           static_cast<double>(decay(kIndex16, age_tokens));
  }
  const size_t i = index_of(estimate);
  return static_cast<double>(entry.crf[i] * decay(i, age_tokens)) * rates_[i];
}

double CrfBank::uses_per_token_after_use(CrfEstimate estimate, ExpertIndex expert) const {
  const Entry& entry = at(expert);
  const int64_t now = clock(layer_of(expert));
  if (estimate == CrfEstimate::kBlend) {
    return blend_of(crf_after_use(kIndex16, entry, now), crf_after_use(kIndex128, entry, now));
  }
  const size_t i = index_of(estimate);
  return static_cast<double>(crf_after_use(i, entry, now)) * rates_[i];
}

int64_t CrfBank::key(CrfEstimate estimate, ExpertIndex expert) const {
  const Entry& entry = at(expert);
  if (estimate != CrfEstimate::kBlend) {
    const size_t i = index_of(estimate);
    return crf_key(entry.crf[i], entry.last_use, kHalfLives[i]);
  }
  // Inserted without a use (a profile's fill): as if used once, as in crf_key.
  const double uses =
      blend_of(std::max(entry.crf[kIndex16], 1.0F), std::max(entry.crf[kIndex128], 1.0F));
  return (entry.last_use << kCrfKeyBits) +
         static_cast<int64_t>(std::log2(uses) * kBlendDecayTokens *
                              static_cast<double>(1 << kCrfKeyBits));
}

void CrfBank::use(int32_t layer_index, ExpertIndex expert) {
  Entry& entry = entries_[expert];
  const int64_t now = clock(layer_index);
  for (size_t i = 0; i < kHalfLives.size(); i++) entry.crf[i] = crf_after_use(i, entry, now);
  entry.last_use = now;
}

}  // namespace hotset::policy
