#include "hotset/cache/slot_table.h"

#include <algorithm>
#include <bit>

#include "hotset/base/error.h"

namespace hotset::cache {

SlotTable::SlotTable(int32_t n_experts, int32_t n_slots)
    : slots_(n_slots),
      slot_of_(static_cast<size_t>(n_experts), policy::kNoSlot),
      reserved_for_(static_cast<size_t>(n_experts), policy::kNoSlot),
      empty_bits_((static_cast<size_t>(n_slots) + 63) / 64) {
  HOTSET_CHECK(n_experts > 0 && n_slots >= 0 && n_slots <= n_experts);
  clear();
}

policy::ExpertIndex SlotTable::expert_in(int32_t slot) const {
  const Slot& at = slots_[slot];
  return at.state == SlotState::kResident ? at.expert : -1;
}

policy::ExpertIndex SlotTable::reserved_expert(int32_t slot) const {
  const Slot& at = slots_[slot];
  return at.state == SlotState::kReserved ? at.expert : -1;
}

int32_t SlotTable::first_empty(int32_t from) const {
  if (from >= n_slots()) return policy::kNoSlot;
  size_t word = static_cast<size_t>(from) / 64;
  uint64_t bits = empty_bits_[word] & (~uint64_t{0} << (from % 64));
  while (bits == 0) {
    if (++word == empty_bits_.size()) return policy::kNoSlot;
    bits = empty_bits_[word];
  }
  return static_cast<int32_t>(word * 64) + std::countr_zero(bits);
}

void SlotTable::mark_empty(int32_t slot) {
  slots_[slot] = {};
  empty_bits_[static_cast<size_t>(slot) / 64] |= uint64_t{1} << (slot % 64);
  n_empty_++;
}

void SlotTable::unmark_empty(int32_t slot) {
  empty_bits_[static_cast<size_t>(slot) / 64] &= ~(uint64_t{1} << (slot % 64));
  n_empty_--;
}

void SlotTable::insert(policy::ExpertIndex expert, int32_t slot) {
  Slot& at = slots_[slot];
  HOTSET_CHECK(at.state == SlotState::kEmpty && slot_of(expert) == policy::kNoSlot);
  unmark_empty(slot);
  at = {expert, SlotState::kResident};
  slot_of_[expert] = slot;
}

policy::ExpertIndex SlotTable::evict(int32_t slot) {
  const Slot at = slots_[slot];
  HOTSET_CHECK(at.state == SlotState::kResident);
  slot_of_[at.expert] = policy::kNoSlot;
  mark_empty(slot);
  return at.expert;
}

void SlotTable::reserve(policy::ExpertIndex expert, int32_t slot) {
  Slot& at = slots_[slot];
  HOTSET_CHECK(at.state == SlotState::kEmpty && reserved_for(expert) == policy::kNoSlot);
  unmark_empty(slot);
  at = {expert, SlotState::kReserved};
  reserved_for_[expert] = slot;
  n_reserved_++;
}

void SlotTable::release(int32_t slot) {
  const Slot at = slots_[slot];
  HOTSET_CHECK(at.state == SlotState::kReserved);
  reserved_for_[at.expert] = policy::kNoSlot;
  n_reserved_--;
  mark_empty(slot);
}

void SlotTable::clear() {
  std::ranges::fill(slot_of_, policy::kNoSlot);
  std::ranges::fill(reserved_for_, policy::kNoSlot);
  std::ranges::fill(empty_bits_, uint64_t{0});
  n_empty_ = 0;
  n_reserved_ = 0;
  for (int32_t slot = 0; slot < n_slots(); slot++) mark_empty(slot);
}

}  // namespace hotset::cache
