#include "hotset/policy/crf_bank.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace hotset {
namespace {

constexpr int32_t kLongest = kBankHalfLives.back();
// Beyond so many halvings a CRF (below 2^8) is lost whole when 1 is added.
constexpr int64_t kMaxHalvings = 102;

constexpr bool all_divide_longest() {
  for (const int32_t half_life : kBankHalfLives) {
    if (kLongest % half_life != 0) return false;
  }
  return true;
}
// One table of fractions serves all half-lives.
static_assert(all_divide_longest());

}  // namespace

CrfBank::CrfBank(int32_t n_layers, int32_t n_expert)
    : n_expert_(n_expert),
      fraction_(static_cast<size_t>(kLongest)),
      clocks_(static_cast<size_t>(n_layers)),
      entries_(static_cast<size_t>(n_layers) * static_cast<size_t>(n_expert)) {
  for (size_t i = 0; i < rate_.size(); i++) rate_[i] = 1.0 - std::exp2(-1.0 / kBankHalfLives[i]);
  for (size_t i = 0; i < fraction_.size(); i++) {
    fraction_[i] = static_cast<float>(std::exp2(-static_cast<double>(i) / kLongest));
  }
}

float CrfBank::decay(size_t i, int64_t age) const {
  const auto half_life = static_cast<uint32_t>(kBankHalfLives[i]);
  if (age >= kMaxHalvings * half_life) return 0.0F;
  const auto tokens = static_cast<uint32_t>(age);
  const uint32_t rest = tokens % half_life * (kLongest / half_life);
  return fraction_[rest] * std::bit_cast<float>((127U - tokens / half_life) << 23);
}

CrfBank::Entry CrfBank::used(const Entry& entry, int64_t now) const {
  Entry result = {.last_use = now};
  for (size_t i = 0; i < result.crf.size(); i++) {
    result.crf[i] = entry.crf[i] * decay(i, now - entry.last_use) + 1.0F;
  }
  return result;
}

double CrfBank::estimate_of(CrfEstimate estimate, const Entry& entry, int64_t now) const {
  const auto of_half_life = [&](size_t i) {
    return static_cast<double>(entry.crf[i] * decay(i, now - entry.last_use)) * rate_[i];
  };
  if (estimate != CrfEstimate::kBlend) return of_half_life(static_cast<size_t>(estimate));
  return (of_half_life(1) + of_half_life(2) + of_half_life(3)) / 3;
}

double CrfBank::uses_per_token(CrfEstimate estimate, ExpertIndex expert) const {
  return estimate_of(estimate, at(expert), clock(layer_of(expert)));
}

double CrfBank::uses_per_token_after_use(CrfEstimate estimate, ExpertIndex expert) const {
  const int64_t now = clock(layer_of(expert));
  return estimate_of(estimate, used(at(expert), now), now);
}

double CrfBank::positive_blend(int32_t layer_index, ExpertIndex expert) const {
  static constexpr Entry kUsedOnce = {.crf = {1, 1, 1, 1}};
  const Entry& entry = at(expert).crf[0] > 0 ? at(expert) : kUsedOnce;
  return std::max(estimate_of(CrfEstimate::kBlend, entry, clock(layer_index)), 0x1p-100);
}

void CrfBank::use(int32_t layer_index, ExpertIndex expert) {
  Entry& entry = entries_[static_cast<size_t>(expert)];
  entry = used(entry, clock(layer_index));
}

}  // namespace hotset
