#include "hotset/policy/lru.h"

#include <fmt/core.h>

namespace hotset::policy {

Lru::Lru(const PolicyShape& shape)
    : crf_(shape.n_layers, shape.n_expert, kScoreHalfLifeTokens),
      heap_(1, shape.n_experts(), shape.n_slots),
      last_use_(shape.n_experts()) {}

double Lru::score(ExpertIndex expert) const { return crf_.uses_per_token(crf_.decayed(expert)); }

double Lru::score_after_use(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.after_use(expert));
}

int32_t Lru::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  struct Order {
    std::span<const int64_t> last_use;
    double value(int32_t, int64_t key) const { return static_cast<double>(key); }
    double rank(int32_t, double value) const { return value; }
    int64_t key(ExpertIndex expert, int64_t) const { return last_use[expert]; }
  };
  const int32_t n = heap_.choose(needed, Order{last_use_}, victims);
  for (Victim& victim : victims.first(n)) {
    victim.score = score(victim.expert);
  }
  return n;
}

std::string Lru::explain(const Victim& victim) const {
  return fmt::format("least recently used of all slots not needed: {} lookups ago",
                     lookup_ - static_cast<int64_t>(victim.rank));
}

std::string Lru::explain() const { return "lru"; }

void Lru::on_lookup(int32_t layer_index, std::span<const Use> uses) {
  lookup_++;
  for (const Use& use : uses) {
    crf_.use(layer_index, use.expert);
    last_use_[use.expert] = lookup_;
  }
}

void Lru::on_insert(ExpertIndex expert, int32_t slot) {
  heap_.insert(expert, slot, last_use_[expert]);
}

void Lru::on_evict(ExpertIndex expert, int32_t) { heap_.erase(expert); }

void Lru::on_advance(int32_t layer_index, int32_t n_tokens) { crf_.advance(layer_index, n_tokens); }

}  // namespace hotset::policy
