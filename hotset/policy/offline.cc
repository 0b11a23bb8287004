#include "hotset/policy/offline.h"

#include <fmt/core.h>

#include <algorithm>

namespace hotset {
namespace {

// The smaller, the farther.
int64_t key_of(uint64_t next_use) {
  return -static_cast<int64_t>(std::min<uint64_t>(next_use, INT64_MAX));
}

}  // namespace

Belady::Belady(const PolicyShape& shape, const NextUseOracle& future, Admission admission)
    : future_(future),
      admission_(admission),
      heap_(1, shape.n_experts(), shape.n_slots),
      next_use_(static_cast<size_t>(shape.n_experts()), kNeverUsed) {}

double Belady::worth(uint64_t next_use) const {
  if (next_use == kNeverUsed) return 0;
  return 1.0 / static_cast<double>(std::max<uint64_t>(next_use - future_.now(), 1));
}

double Belady::score(ExpertIndex expert) const {
  return worth(next_use_[static_cast<size_t>(expert)]);
}

double Belady::score_after_use(ExpertIndex expert) const { return worth(future_.next_use(expert)); }

int32_t Belady::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  // A use makes the next one farther, so keys fall and are stored at once: they are never bounds.
  struct Order {
    double value(int32_t, int64_t key) const { return static_cast<double>(key); }
    double rank(int32_t, double value) const { return value; }
    int64_t key(ExpertIndex, int64_t stored_key) const { return stored_key; }
  };
  const int32_t n = heap_.choose(needed, Order{}, victims);
  for (Victim& victim : victims.first(static_cast<size_t>(n))) {
    victim.score = score(victim.expert);
  }
  return n;
}

bool Belady::admits(ExpertIndex expert, const Victim* victim) const {
  if (admission_ == Admission::kAlways) return true;
  const uint64_t next_use = future_.next_use(expert);
  if (victim == nullptr) return next_use != kNeverUsed;
  return next_use < next_use_[static_cast<size_t>(victim->expert)];
}

std::string Belady::explain(const Victim& victim) const {
  const uint64_t next_use = next_use_[static_cast<size_t>(victim.expert)];
  if (next_use == kNeverUsed) return "never used again";
  return fmt::format("its next use is the farthest of all slots not needed: lookup {}", next_use);
}

std::string Belady::explain() const {
  return admission_ == Admission::kAlways ? "belady-demand: knows the future, always inserts"
                                          : "belady: knows the future, may decline to insert";
}

void Belady::on_lookup(int32_t, std::span<const Use> uses) {
  for (const Use& use : uses) {
    const uint64_t next_use = future_.next_use(use.expert);
    next_use_[static_cast<size_t>(use.expert)] = next_use;
    if (use.slot != kNoSlot) heap_.update(use.expert, key_of(next_use));
  }
}

void Belady::on_insert(ExpertIndex expert, int32_t slot) {
  heap_.insert(expert, slot, key_of(next_use_[static_cast<size_t>(expert)]));
}

void Belady::on_evict(ExpertIndex expert, int32_t) { heap_.erase(expert); }

std::string Unbounded::explain(const Victim&) const { return "unbounded: nothing is evicted"; }

std::string Unbounded::explain() const { return "unbounded: a slot for every expert"; }

}  // namespace hotset
