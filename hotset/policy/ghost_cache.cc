#include "hotset/policy/ghost_cache.h"

#include <array>
#include <utility>

namespace hotset::policy {

std::string_view candidate_name(Candidate candidate) {
  constexpr std::array<std::string_view, kCandidates> kNames = {
      "class_lru", "crf:2", "crf:8", "crf:32", "crf:128", "crf-blend"};
  return kNames[std::to_underlying(candidate)];
}

CrfEstimate estimate_of(Candidate candidate) {
  return static_cast<CrfEstimate>(static_cast<size_t>(candidate) - 1);
}

GhostCache::GhostCache(Candidate candidate, const PolicyShape& shape, const CrfBank& bank,
                       std::span<const ExpertIndex> experts)
    : candidate_(candidate),
      bank_(bank),
      experts_(experts),
      n_slots_(shape.n_slots),
      slot_of_(static_cast<size_t>(shape.n_experts()), kNoSlot),
      stamps_(shape.n_slots),
      victims_(shape.n_expert) {
  if (candidate == Candidate::kClassLru) {
    lists_.emplace(shape.n_slots);
  } else {
    heaps_.emplace(shape.n_layers, shape.n_expert, shape.n_slots);
  }
  misses_.reserve(shape.n_expert);
}

float GhostCache::class_crf(int32_t ghost_expert) const {
  return bank_.class_crf(experts_[ghost_expert]);
}

int32_t GhostCache::promote(std::span<const int32_t> uses) {
  stamp_++;
  misses_.clear();
  for (const int32_t expert : uses) {
    const int32_t slot = slot_of_[expert];
    if (slot == kNoSlot) {
      misses_.push_back(expert);
      continue;
    }
    stamps_[slot] = stamp_;
    if (lists_) {
      lists_->remove(slot);
      lists_->append(expert, slot, ClassLists::class_of(class_crf(expert)));
    }
  }
  return static_cast<int32_t>(uses.size() - misses_.size());
}

void GhostCache::insert(int32_t ghost_expert, int32_t slot) {
  slot_of_[ghost_expert] = slot;
  stamps_[slot] = stamp_;
  if (lists_) {
    lists_->append(ghost_expert, slot, ClassLists::class_of(class_crf(ghost_expert)));
  } else {
    // The key does not depend on the planned lookup.
    heaps_->insert(ghost_expert, slot,
                   BankOrder(bank_, estimate_of(candidate_), {}, experts_).key(ghost_expert));
  }
}

int32_t GhostCache::choose(const RankedLookup& planned, std::span<Victim> victims) const {
  const NeededSlots needed = {stamps_, stamp_, planned.layer_index};
  if (lists_) {
    const auto age_of = [&](ExpertIndex expert) { return bank_.age(experts_[expert]); };
    return lists_->choose(needed, age_of, victims);
  }
  return heaps_->choose(needed, BankOrder(bank_, estimate_of(candidate_), planned, experts_),
                        victims);
}

int32_t GhostCache::lookup(const RankedLookup& planned, std::span<const int32_t> uses) {
  const int32_t n_hits = promote(uses);
  size_t placed = 0;
  while (placed < misses_.size() && n_filled_ < n_slots_) insert(misses_[placed++], n_filled_++);
  if (placed == misses_.size()) return n_hits;
  const std::span<Victim> wanted = std::span(victims_).first(misses_.size() - placed);
  const int32_t n = choose(planned, wanted);
  for (const Victim& victim : wanted.first(n)) {
    slot_of_[victim.expert] = kNoSlot;
    if (lists_) {
      lists_->remove(victim.slot);
    } else {
      heaps_->erase(victim.expert);
    }
    insert(misses_[placed++], victim.slot);
  }
  return n_hits;
}

}  // namespace hotset::policy
