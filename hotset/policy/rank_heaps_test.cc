#include "hotset/policy/rank_heaps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "hotset/policy/policy_testing.h"

namespace hotset::policy {
namespace {

// Keys by expert, offsets by heap; a key may have risen since it was stored.
struct TestOrder {
  const std::vector<int64_t>& keys;
  const std::vector<int64_t>& offsets;

  int64_t key(ExpertIndex expert, int64_t) const { return keys[expert]; }
  double value(int32_t heap, int64_t key) const { return static_cast<double>(key - offsets[heap]); }
  double rank(int32_t, double value) const { return value; }
};

// Random inserts, removals, uses that the heaps do not hear of, and moving offsets, against
// sorting.
TEST(RankHeaps, ChoosesAsSortingDoes) {
  Random random(test::test_seed());
  for (int round = 0; round < 20; round++) {
    const auto n_heaps = static_cast<int32_t>(1 + random.below(round % 2 == 0 ? 3 : 80));
    const auto per_heap = static_cast<int32_t>(1 + random.below(12));
    const int32_t n_experts = n_heaps * per_heap;
    const auto n_slots = static_cast<int32_t>(1 + random.below(static_cast<uint64_t>(n_experts)));
    RankHeaps heaps(n_heaps, per_heap, n_slots);
    std::vector<int64_t> keys(static_cast<size_t>(n_experts));
    std::vector<int64_t> offsets(static_cast<size_t>(n_heaps));
    std::map<ExpertIndex, int32_t> contained;  // and its slot
    std::vector<int32_t> free_slots;
    for (int32_t slot = 0; slot < n_slots; slot++) free_slots.push_back(slot);
    std::vector<uint64_t> stamps(static_cast<size_t>(n_slots));
    for (uint64_t step = 1; step < 1500; step++) {
      const auto expert = static_cast<ExpertIndex>(random.below(static_cast<uint64_t>(n_experts)));
      int64_t& key = keys[expert];
      const auto change = static_cast<int64_t>(random.below(6));  // ties are common
      switch (random.below(5)) {
        case 0:
          if (!contained.contains(expert) && !free_slots.empty()) {
            key += change;
            heaps.insert(expert, free_slots.back(), key);
            contained[expert] = free_slots.back();
            free_slots.pop_back();
          }
          break;
        case 1:
          if (contained.contains(expert)) {
            heaps.erase(expert);
            free_slots.push_back(contained[expert]);
            contained.erase(expert);
          }
          break;
        case 2:
          key += change;  // a use
          break;
        case 3:
          if (contained.contains(expert)) {
            key -= change;
            heaps.update(expert, key);
          }
          break;
        default: {
          const int32_t heap = expert / per_heap;
          offsets[heap] += change;
          heaps.touch(heap);
        }
      }
      if (round == 7 && step == 700) {
        heaps.clear();
        for (const auto& [held, slot] : contained) {
          heaps.insert(held, slot, keys[held]);
        }
      }
      for (uint64_t& stamp : stamps) {
        if (random.below(4) == 0) stamp = step;
      }
      const TestOrder order{keys, offsets};
      std::vector<std::pair<double, ExpertIndex>> expected;
      for (const auto& [held, slot] : contained) {
        if (stamps[slot] == step) continue;
        expected.push_back({order.value(held / per_heap, keys[held]), held});
      }
      std::ranges::sort(expected);
      std::vector<Victim> victims(random.below(static_cast<uint64_t>(n_slots) + 2));
      const int32_t n = heaps.choose({stamps, step}, order, victims);
      ASSERT_EQ(static_cast<size_t>(n), std::min(victims.size(), expected.size()));
      for (size_t i = 0; i < static_cast<size_t>(n); i++) {
        ASSERT_EQ(victims[i].rank, expected[i].first);
        ASSERT_EQ(victims[i].expert, expected[i].second);
        ASSERT_EQ(victims[i].slot, contained[victims[i].expert]);
      }
    }
  }
}

}  // namespace
}  // namespace hotset::policy
