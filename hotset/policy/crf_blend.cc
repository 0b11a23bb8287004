#include "hotset/policy/crf_blend.h"

#include <fmt/core.h>

namespace hotset::policy {

CrfBlend::CrfBlend(const PolicyShape& shape)
    : n_layers_(shape.n_layers),
      bank_(shape.n_layers, shape.n_expert),
      heaps_(shape.n_layers, shape.n_expert, shape.n_slots) {}

BankOrder CrfBlend::order(int32_t planned_layer_index) const {
  return {bank_,
          CrfEstimate::kBlend,
          {.layer_index = planned_layer_index, .n_layers = n_layers_, .n_tokens = n_tokens_}};
}

double CrfBlend::score(ExpertIndex expert) const {
  return bank_.uses_per_token(CrfEstimate::kBlend, expert);
}

double CrfBlend::score_after_use(ExpertIndex expert) const {
  return bank_.uses_per_token_after_use(CrfEstimate::kBlend, expert);
}

int32_t CrfBlend::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  const int32_t n = heaps_.choose(needed, order(needed.layer_index), victims);
  for (Victim& victim : victims.first(n)) {
    victim.score = score(victim.expert);
  }
  return n;
}

std::string CrfBlend::explain(const Victim& victim) const {
  return fmt::format(
      "longest expected wait of all slots not needed: {:.3g} tokens, at {:.3g} uses per token",
      -victim.rank, victim.score);
}

std::string CrfBlend::explain() const {
  return "crf-blend: expected wait by half-lives 16 and 128 tokens";
}

void CrfBlend::on_lookup(int32_t layer_index, std::span<const Use> uses) {
  for (const Use& use : uses) bank_.use(layer_index, use.expert);
}

void CrfBlend::on_insert(ExpertIndex expert, int32_t slot) {
  // The key does not depend on the planned layer.
  heaps_.insert(expert, slot, order(0).key(expert));
}

void CrfBlend::on_evict(ExpertIndex expert, int32_t) { heaps_.erase(expert); }

void CrfBlend::on_advance(int32_t layer_index, int32_t n_tokens) {
  bank_.advance(layer_index, n_tokens);
  heaps_.touch(layer_index);
  n_tokens_ = n_tokens;
}

}  // namespace hotset::policy
