#include "hotset/policy/offline.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace hotset::policy {
namespace {

// Of a lookup's experts so many are told apart by NextUse::rank.
constexpr int kRankBits = 20;

uint64_t rank_of(const NextUse& next_use) {
  return std::min<uint64_t>(next_use.rank, (1U << kRankBits) - 1);
}

// The smaller, the farther. Numbers of lookups are below 2^32 (RecordedFuture), so that a double
// holds a key exactly.
int64_t key_of(const NextUse& next_use) {
  constexpr uint64_t kNever = uint64_t{1} << 60;
  if (next_use.lookup == kNeverUsed) return -static_cast<int64_t>(kNever);
  return -static_cast<int64_t>((next_use.lookup << kRankBits) + rank_of(next_use));
}

}  // namespace

Belady::Belady(const PolicyShape& shape, const NextUseOracle& future, Admission admission)
    : future_(future),
      admission_(admission),
      heap_(1, shape.n_experts(), shape.n_slots),
      next_use_(shape.n_experts()) {}

double Belady::worth(const NextUse& next_use) const {
  if (next_use.lookup == kNeverUsed) return 0;
  const auto lookups = static_cast<double>(std::max<uint64_t>(next_use.lookup - future_.now(), 1));
  return 1.0 / (lookups + std::ldexp(static_cast<double>(rank_of(next_use)), -kRankBits));
}

double Belady::score(ExpertIndex expert) const { return worth(next_use_[expert]); }

double Belady::score_after_use(ExpertIndex expert) const { return worth(future_.next_use(expert)); }

int32_t Belady::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  // A use makes the next one farther, so keys fall and are stored at once: they are never bounds.
  struct Order {
    double value(int32_t, int64_t key) const { return static_cast<double>(key); }
    double rank(int32_t, double value) const { return value; }
    int64_t key(ExpertIndex, int64_t stored_key) const { return stored_key; }
  };
  const int32_t n = heap_.choose(needed, Order{}, victims);
  for (Victim& victim : victims.first(n)) {
    victim.score = score(victim.expert);
  }
  return n;
}

bool Belady::admits(ExpertIndex expert, const Victim* victim) const {
  if (admission_ == Admission::kAlways) return true;
  const NextUse next_use = future_.next_use(expert);
  if (victim == nullptr) return next_use.lookup != kNeverUsed;
  return next_use < next_use_[victim->expert];
}

std::string Belady::explain(const Victim& victim) const {
  const uint64_t next_use = next_use_[victim.expert].lookup;
  if (next_use == kNeverUsed) return "never used again";
  return fmt::format("its next use is the farthest of all slots not needed: lookup {}", next_use);
}

std::string Belady::explain() const {
  return admission_ == Admission::kAlways ? "belady-demand: knows the future, always inserts"
                                          : "belady: knows the future, may decline to insert";
}

void Belady::on_lookup(int32_t, std::span<const Use> uses) {
  for (const Use& use : uses) {
    const NextUse next_use = future_.next_use(use.expert);
    next_use_[use.expert] = next_use;
    if (use.slot != kNoSlot) heap_.update(use.expert, key_of(next_use));
  }
}

void Belady::on_insert(ExpertIndex expert, int32_t slot) {
  heap_.insert(expert, slot, key_of(next_use_[expert]));
}

void Belady::on_evict(ExpertIndex expert, int32_t) { heap_.erase(expert); }

std::string Unbounded::explain(const Victim&) const { return "unbounded: nothing is evicted"; }

std::string Unbounded::explain() const { return "unbounded: a slot for every expert"; }

}  // namespace hotset::policy
