#include "hotset/cache/slot_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "hotset/policy/policy_testing.h"

namespace hotset::cache {
namespace {

// What a slot holds, if anything.
struct NaiveSlot {
  policy::ExpertIndex expert = -1;
  bool is_reserved = false;
};
using NaiveTable = std::map<int32_t, NaiveSlot>;  // slots that are not empty

void expect_equal(const SlotTable& table, const NaiveTable& naive, int32_t n_experts,
                  int32_t n_slots) {
  int32_t n_reserved = 0;
  std::map<policy::ExpertIndex, int32_t> resident;
  std::map<policy::ExpertIndex, int32_t> reserved;
  for (const auto& [slot, held] : naive) {
    (held.is_reserved ? reserved : resident)[held.expert] = slot;
    n_reserved += held.is_reserved ? 1 : 0;
  }
  EXPECT_EQ(table.n_reserved(), n_reserved);
  EXPECT_EQ(table.n_resident(), std::ssize(resident));
  EXPECT_EQ(table.n_empty(), n_slots - std::ssize(naive));
  EXPECT_EQ(table.full(), std::ssize(naive) == n_slots);
  int32_t first_empty = policy::kNoSlot;
  for (int32_t slot = n_slots; slot-- > 0;) {
    const auto held = naive.find(slot);
    if (held == naive.end()) first_empty = slot;
    ASSERT_EQ(table.first_empty(slot), first_empty);
    const bool is_resident = held != naive.end() && !held->second.is_reserved;
    const bool is_reserved = held != naive.end() && held->second.is_reserved;
    ASSERT_EQ(table.expert_in(slot), is_resident ? held->second.expert : -1);
    ASSERT_EQ(table.reserved_expert(slot), is_reserved ? held->second.expert : -1);
  }
  for (policy::ExpertIndex expert = 0; expert < n_experts; expert++) {
    const auto in = resident.find(expert);
    ASSERT_EQ(table.slot_of(expert), in == resident.end() ? policy::kNoSlot : in->second);
    const auto coming = reserved.find(expert);
    ASSERT_EQ(table.reserved_for(expert),
              coming == reserved.end() ? policy::kNoSlot : coming->second);
  }
}

TEST(SlotTable, IsWhatANaiveTableIs) {
  Random random(policy::test::test_seed());
  for (const int32_t n_slots : {1, 3, 64, 65, 130}) {
    const int32_t n_experts = n_slots + static_cast<int32_t>(random.below(40));
    SlotTable table(n_experts, n_slots);
    NaiveTable naive;
    expect_equal(table, naive, n_experts, n_slots);
    for (int step = 0; step < 1500; step++) {
      const auto slot = static_cast<int32_t>(random.below(static_cast<uint64_t>(n_slots)));
      const auto expert =
          static_cast<policy::ExpertIndex>(random.below(static_cast<uint64_t>(n_experts)));
      const auto held = naive.find(slot);
      if (held == naive.end() && random.below(2) == 0 && table.slot_of(expert) == policy::kNoSlot) {
        table.insert(expert, slot);
        naive[slot] = {expert, false};
      } else if (held == naive.end() && table.reserved_for(expert) == policy::kNoSlot) {
        table.reserve(expert, slot);
        naive[slot] = {expert, true};
      } else if (held != naive.end() && held->second.is_reserved) {
        table.release(slot);
        naive.erase(held);
      } else if (held != naive.end()) {
        EXPECT_EQ(table.evict(slot), held->second.expert);
        naive.erase(held);
      }
      if (step == 900) {
        table.clear();
        naive.clear();
      }
      if (step % 7 == 0) expect_equal(table, naive, n_experts, n_slots);
    }
    expect_equal(table, naive, n_experts, n_slots);
  }
}

TEST(SlotTable, MayHaveNoSlots) {
  const SlotTable table(8, 0);
  EXPECT_TRUE(table.full());
  EXPECT_EQ(table.first_empty(), policy::kNoSlot);
  EXPECT_EQ(table.slots_of_experts().size(), 8U);
}

using SlotTableDeathTest = ::testing::Test;

TEST(SlotTableDeathTest, MisuseIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  SlotTable table(4, 2);
  table.insert(1, 0);
  EXPECT_DEATH(table.insert(2, 0), "slot_table");
  EXPECT_DEATH(table.insert(1, 1), "slot_table");
  EXPECT_DEATH(table.evict(1), "slot_table");
  EXPECT_DEATH(table.release(0), "slot_table");
}

}  // namespace
}  // namespace hotset::cache
