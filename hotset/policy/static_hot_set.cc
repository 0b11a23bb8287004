#include "hotset/policy/static_hot_set.h"

#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "hotset/policy/class_lru.h"

namespace hotset::policy {

StaticHotSet::StaticHotSet(const PolicyShape& shape, std::span<const uint64_t> profile)
    : n_slots_(shape.n_slots),
      crf_(shape.n_layers, shape.n_expert, ClassLru::kHalfLifeTokens),
      hot_(shape.n_experts()) {
  std::vector<size_t> order(hot_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return profile[a] > profile[b]; });
  for (size_t i = 0; i < static_cast<size_t>(n_slots_); i++) hot_[order[i]] = 1;
}

double StaticHotSet::score(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.decayed(expert));
}

double StaticHotSet::score_after_use(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.after_use(expert));
}

std::string StaticHotSet::explain(const Victim&) const { return "static: nothing is evicted"; }

std::string StaticHotSet::explain() const {
  return fmt::format("static: the {} most used experts of the profile", n_slots_);
}

void StaticHotSet::on_lookup(int32_t layer_index, std::span<const Use> uses) {
  for (const Use& use : uses) crf_.use(layer_index, use.expert);
}

void StaticHotSet::on_advance(int32_t layer_index, int32_t n_tokens) {
  crf_.advance(layer_index, n_tokens);
}

}  // namespace hotset::policy
