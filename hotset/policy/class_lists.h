// The lists of class_lru: one list of slots per class, least recently used first. Which class an
// expert has and how old it is are the caller's.
// Allocates nothing after construction.
// Thread-compatible.
#ifndef HOTSET_POLICY_CLASS_LISTS_H_
#define HOTSET_POLICY_CLASS_LISTS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/policy/policy.h"

namespace hotset::policy {

class ClassLists {
 public:
  static constexpr int32_t kClasses = 8;

  // min(7, floor(log2(crf))); class 0 for a CRF below 1 (an expert that was never used).
  static int32_t class_of(float crf) {
    // The exponent of a float of at least 1.
    return std::clamp(static_cast<int32_t>(std::bit_cast<uint32_t>(crf) >> 23) - 127, 0,
                      kClasses - 1);
  }

  // Requires: n_slots > 0.
  explicit ClassLists(int32_t n_slots);

  // At the most recently used end of a class. Requires: the slot is in no list.
  void append(ExpertIndex expert, int32_t slot, int32_t list);
  // Requires: the slot is in a list.
  void remove(int32_t slot);

  // The slots that are not needed, in the order of class_lru: among the least recently used of each
  // class the one with the largest age / 2^class, ties to the lower class. age_of(expert) ->
  // tokens, at least 0. Sets slot, expert, rank = age / 2^class and list; returns how many.
  template <typename AgeOf>
  int32_t choose(const NeededSlots& needed, const AgeOf& age_of, std::span<Victim> victims) const;

 private:
  // Slots, and behind them one head per class, in circular lists: next of a head is the least
  // recently used slot.
  struct Link {
    int32_t previous = 0;
    int32_t next = 0;
    ExpertIndex expert = -1;
  };
  int32_t head(int32_t list) const { return n_slots_ + list; }
  Link& link(int32_t slot) { return links_[slot]; }
  const Link& link(int32_t slot) const { return links_[slot]; }

  int32_t n_slots_;
  std::vector<Link> links_;  // [n_slots + kClasses]
};

template <typename AgeOf>
int32_t ClassLists::choose(const NeededSlots& needed, const AgeOf& age_of,
                           std::span<Victim> victims) const {
  struct Cursor {
    int32_t slot = kNoSlot;
    double rank = -1;  // below any at the end of the list
  };
  const auto cursor_at = [&](int32_t list, int32_t slot) -> Cursor {
    while (slot < n_slots_ && needed.contains(slot)) slot = link(slot).next;
    if (slot >= n_slots_) return {};
    return {slot, static_cast<double>(age_of(link(slot).expert)) / (1 << list)};
  };
  std::array<Cursor, kClasses> cursors;
  for (int32_t list = 0; list < kClasses; list++) {
    cursors[list] = cursor_at(list, link(head(list)).next);
  }
  size_t n = 0;
  for (; n < victims.size(); n++) {
    // The first of the largest: ties to the lower class.
    const auto best = std::ranges::max_element(cursors, {}, &Cursor::rank);
    if (best->slot == kNoSlot) break;
    const auto list = static_cast<int32_t>(best - cursors.begin());
    victims[n] = {
        .slot = best->slot, .expert = link(best->slot).expert, .rank = best->rank, .list = list};
    *best = cursor_at(list, link(best->slot).next);
  }
  return static_cast<int32_t>(n);
}

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_CLASS_LISTS_H_
