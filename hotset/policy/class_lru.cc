#include "hotset/policy/class_lru.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace hotset {
namespace {

// min(7, floor(log2(crf))) of a CRF of at least 1: its exponent.
int32_t class_of(float crf) {
  return std::min(ClassLru::kClasses - 1,
                  static_cast<int32_t>(std::bit_cast<uint32_t>(crf) >> 23) - 127);
}

}  // namespace

ClassLru::ClassLru(const PolicyShape& shape)
    : n_slots_(shape.n_slots),
      crf_(shape.n_layers, shape.n_expert, kHalfLifeTokens),
      links_(static_cast<size_t>(shape.n_slots + kClasses)) {
  for (int32_t list = 0; list < kClasses; list++) {
    link(head(list)).previous = link(head(list)).next = head(list);
  }
}

double ClassLru::score(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.decayed(expert));
}

double ClassLru::score_after_use(ExpertIndex expert) const {
  return crf_.uses_per_token(crf_.after_use(expert));
}

int32_t ClassLru::skip_needed(int32_t slot, const NeededSlots& needed) const {
  while (slot < n_slots_ && needed.contains(slot)) slot = link(slot).next;
  return slot;
}

int32_t ClassLru::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  struct Cursor {
    int32_t slot;
    double rank;  // age / 2^class, negative at the end of the list
  };
  std::array<Cursor, kClasses> cursors;
  const auto at = [&](int32_t list, int32_t slot) -> Cursor {
    slot = skip_needed(slot, needed);
    if (slot >= n_slots_) return {slot, -1.0};
    const auto age = static_cast<double>(crf_.age(link(slot).expert));
    return {slot, age / static_cast<double>(1 << list)};
  };
  for (int32_t list = 0; list < kClasses; list++) {
    cursors[static_cast<size_t>(list)] = at(list, link(head(list)).next);
  }
  int32_t n = 0;
  while (static_cast<size_t>(n) < victims.size()) {
    int32_t best = 0;
    for (int32_t list = 1; list < kClasses; list++) {
      if (cursors[static_cast<size_t>(list)].rank > cursors[static_cast<size_t>(best)].rank) {
        best = list;
      }
    }
    Cursor& cursor = cursors[static_cast<size_t>(best)];
    if (cursor.rank < 0) break;
    const ExpertIndex expert = link(cursor.slot).expert;
    victims[static_cast<size_t>(n++)] = {.slot = cursor.slot,
                                         .expert = expert,
                                         .score = score(expert),
                                         .rank = cursor.rank,
                                         .list = best};
    cursor = at(best, link(cursor.slot).next);
  }
  return n;
}

std::string ClassLru::explain(const Victim& victim) const {
  return fmt::format(
      "least recently used of class {}: age {:.0f} tokens / 2^{} = {} is the largest of the "
      "classes",
      victim.list, std::ldexp(victim.rank, victim.list), victim.list, victim.rank);
}

std::string ClassLru::explain() const {
  return fmt::format("class_lru: {} classes by CRF, half-life {} tokens", kClasses,
                     kHalfLifeTokens);
}

void ClassLru::unlink(int32_t slot) {
  const Link& removed = link(slot);
  link(removed.previous).next = removed.next;
  link(removed.next).previous = removed.previous;
}

void ClassLru::append(ExpertIndex expert, int32_t slot) {
  const int32_t list = head(class_of(std::max(crf_.crf(expert), 1.0F)));
  const int32_t last = link(list).previous;
  link(slot) = {.previous = last, .next = list, .expert = expert};
  link(last).next = slot;
  link(list).previous = slot;
}

void ClassLru::on_lookup(int32_t layer_index, std::span<const Use> uses) {
  for (const Use& use : uses) {
    crf_.use(layer_index, use.expert);
    if (use.slot == kNoSlot) continue;
    unlink(use.slot);
    append(use.expert, use.slot);
  }
}

void ClassLru::on_insert(ExpertIndex expert, int32_t slot) { append(expert, slot); }

void ClassLru::on_evict(ExpertIndex, int32_t slot) { unlink(slot); }

void ClassLru::on_advance(int32_t layer_index, int32_t n_tokens) {
  crf_.advance(layer_index, n_tokens);
}

}  // namespace hotset
