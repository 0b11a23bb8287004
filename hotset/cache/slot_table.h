// Which expert is in which slot of a group. A slot is empty, reserved (a fill is on its way) or
// holds an expert; an expert is in at most one slot. Mechanism only: it ranks nothing.
// Owns its arrays; allocates nothing after construction.
// Thread-compatible.
#ifndef HOTSET_CACHE_SLOT_TABLE_H_
#define HOTSET_CACHE_SLOT_TABLE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hotset/policy/policy.h"

namespace hotset::cache {

class SlotTable {
 public:
  // All slots empty. Requires: n_experts > 0, 0 <= n_slots <= n_experts.
  SlotTable(int32_t n_experts, int32_t n_slots);

  int32_t n_slots() const { return static_cast<int32_t>(slots_.size()); }
  int32_t n_empty() const { return n_empty_; }
  int32_t n_reserved() const { return n_reserved_; }
  int32_t n_resident() const { return n_slots() - n_empty_ - n_reserved_; }
  bool full() const { return n_empty_ == 0; }

  // The slot of `expert`, or kNoSlot. A reserved slot does not count.
  int32_t slot_of(policy::ExpertIndex expert) const { return slot_of_[expert]; }
  // The slot that is reserved for `expert`, or kNoSlot.
  int32_t reserved_for(policy::ExpertIndex expert) const { return reserved_for_[expert]; }
  // The expert in `slot`, or -1 for an empty or reserved slot.
  policy::ExpertIndex expert_in(int32_t slot) const;
  // The expert that `slot` is reserved for, or -1.
  policy::ExpertIndex reserved_expert(int32_t slot) const;
  // The empty slot with the lowest number at or above `from`, or kNoSlot.
  int32_t first_empty(int32_t from = 0) const;
  // [n_experts], kNoSlot for missing ones.
  std::span<const int32_t> slots_of_experts() const { return slot_of_; }

  // Requires: `slot` is empty, `expert` is in no slot.
  void insert(policy::ExpertIndex expert, int32_t slot);
  // The slot becomes empty. Requires: it holds an expert. Returns that expert.
  policy::ExpertIndex evict(int32_t slot);
  // Requires: `slot` is empty, no slot is reserved for `expert`.
  void reserve(policy::ExpertIndex expert, int32_t slot);
  // The slot becomes empty. Requires: it is reserved.
  void release(int32_t slot);
  // All slots empty.
  void clear();

 private:
  enum class SlotState : uint8_t { kEmpty, kReserved, kResident };
  struct Slot {
    policy::ExpertIndex expert = -1;
    SlotState state = SlotState::kEmpty;
  };
  void mark_empty(int32_t slot);
  void unmark_empty(int32_t slot);

  std::vector<Slot> slots_;
  std::vector<int32_t> slot_of_;       // [n_experts]
  std::vector<int32_t> reserved_for_;  // [n_experts]
  std::vector<uint64_t> empty_bits_;   // one bit per slot
  int32_t n_empty_ = 0;
  int32_t n_reserved_ = 0;
};

}  // namespace hotset::cache

#endif  // HOTSET_CACHE_SLOT_TABLE_H_
