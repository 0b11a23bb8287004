#include "hotset/policy/class_lru.h"

#include <fmt/core.h>

#include <cmath>

namespace hotset::policy {

ClassLru::ClassLru(const PolicyShape& shape)
    : crf_(shape.n_layers, shape.n_expert, kHalfLifeTokens), lists_(shape.n_slots) {}

double ClassLru::score(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.decayed(expert));
}

double ClassLru::score_after_use(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.after_use(expert));
}

int32_t ClassLru::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  const auto age_of = [&](ExpertIndex expert) { return crf_.age(expert); };
  const int32_t n = lists_.choose(needed, age_of, victims);
  for (Victim& victim : victims.first(n)) {
    victim.score = score(victim.expert);
  }
  return n;
}

std::string explain_class_lru(const Victim& victim) {
  return fmt::format(
      "least recently used of class {}: age {} tokens / 2^{} = {} is the largest of the classes",
      victim.list, std::ldexp(victim.rank, victim.list), victim.list, victim.rank);
}

std::string ClassLru::explain(const Victim& victim) const { return explain_class_lru(victim); }

std::string ClassLru::explain() const {
  return fmt::format("class_lru: {} classes by CRF, half-life {} tokens", ClassLists::kClasses,
                     kHalfLifeTokens);
}

void ClassLru::on_lookup(int32_t layer_index, std::span<const Use> uses) {
  for (const Use& use : uses) {
    crf_.use(layer_index, use.expert);
    if (use.slot == kNoSlot) continue;
    lists_.remove(use.slot);
    lists_.append(use.expert, use.slot, ClassLists::class_of(crf_.crf(use.expert)));
  }
}

void ClassLru::on_insert(ExpertIndex expert, int32_t slot) {
  lists_.append(expert, slot, ClassLists::class_of(crf_.crf(expert)));
}

void ClassLru::on_evict(ExpertIndex, int32_t slot) { lists_.remove(slot); }

void ClassLru::on_advance(int32_t layer_index, int32_t n_tokens) {
  crf_.advance(layer_index, n_tokens);
}

}  // namespace hotset::policy
