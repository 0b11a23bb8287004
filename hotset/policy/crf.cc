#include "hotset/policy/crf.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace hotset::policy {

int64_t crf_key(float crf, int64_t last_use, int32_t half_life_tokens) {
  // Inserted without a use (a profile's fill): as if used once.
  const double log2_crf = std::log2(std::max(static_cast<double>(crf), 1.0));
  return (last_use << kCrfKeyBits) +
         std::llround(log2_crf * half_life_tokens * static_cast<double>(1 << kCrfKeyBits));
}

Crf::Crf(const PolicyShape& shape, int32_t half_life_tokens)
    : crf_(shape.n_layers, shape.n_expert, half_life_tokens),
      heaps_(shape.n_layers, shape.n_expert, shape.n_slots) {}

int64_t Crf::key(ExpertIndex expert) const {
  return crf_key(crf_.crf(expert), crf_.last_use(expert), crf_.half_life_tokens());
}

double Crf::score(ExpertIndex expert) const { return crf_.uses_per_token(crf_.decayed(expert)); }

double Crf::score_after_use(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.after_use(expert));
}

int32_t Crf::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  struct Order {
    const Crf& policy;
    double value(int32_t layer_index, int64_t key) const {
      return static_cast<double>(key - (policy.crf_.clock(layer_index) << kCrfKeyBits));
    }
    double rank(int32_t, double value) const { return value; }
    int64_t key(ExpertIndex expert, int64_t) const { return policy.key(expert); }
  };
  const int32_t n = heaps_.choose(needed, Order{*this}, victims);
  for (Victim& victim : victims.first(n)) {
    victim.score = score(victim.expert);
  }
  return n;
}

std::string Crf::explain(const Victim& victim) const {
  const double log2_crf =
      std::ldexp(victim.rank, -kCrfKeyBits) / static_cast<double>(crf_.half_life_tokens());
  return fmt::format("smallest CRF of all slots not needed: {:.6g}, {} tokens after its last use",
                     std::exp2(log2_crf), crf_.age(victim.expert));
}

std::string Crf::explain() const {
  return fmt::format("crf: half-life {} tokens", crf_.half_life_tokens());
}

void Crf::on_lookup(int32_t layer_index, std::span<const Use> uses) {
  for (const Use& use : uses) crf_.use(layer_index, use.expert);
}

void Crf::on_insert(ExpertIndex expert, int32_t slot) { heaps_.insert(expert, slot, key(expert)); }

void Crf::on_evict(ExpertIndex expert, int32_t) { heaps_.erase(expert); }

void Crf::on_advance(int32_t layer_index, int32_t n_tokens) {
  crf_.advance(layer_index, n_tokens);
  heaps_.touch(layer_index);
}

}  // namespace hotset::policy
