#include "hotset/lanes/lookup_planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/lanes/lanes_testing.h"

namespace hotset::lanes {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int32_t kExperts = 16;
constexpr int32_t kLayers = 2;
constexpr int32_t kTopK = 4;
// An upload takes 100 us, the CPU 150 us, the device 5 us.
constexpr LaneRates kRates = {.link_gb_per_s = 10, .cpu_gb_per_s = 6.67, .device_gb_per_s = 200};

cache::ExpertCache cache_of(int64_t n_slots, const std::string& policy = "class_lru") {
  cache::CacheGroup group{.spec = {.n_expert = kExperts,
                                   .layers = {0, 1},
                                   .group_host_bytes = mib(1),
                                   .device_host_bytes = mib(1),
                                   .expert_bytes = {Bytes{1'000'000}}},
                          .n_slots = n_slots};
  std::vector<cache::CacheGroup> groups;
  groups.push_back(std::move(group));
  return cache::ExpertCache::create(std::move(groups), policy).value();
}

LookupPlanner planner_of(int64_t n_slots, LookupRules rules) {
  if (!rules.cache.rates) rules.cache.rates = kRates;
  return LookupPlanner::create(cache_of(n_slots), rules).value();
}

// Of each expert one token, `n` tokens in all.
std::vector<int32_t> ids_of(int32_t n_tokens) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < n_tokens * kTopK; ++i) ids.push_back(i % kExperts);
  return ids;
}

std::vector<int32_t> experts_of(std::span<const cache::Upload> uploads) {
  std::vector<int32_t> experts;
  for (const cache::Upload& upload : uploads) experts.push_back(upload.expert);
  return experts;
}

// Takes every slot of the cache.
void fill_up(LookupPlanner& planner) {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t first = 0; first < kExperts; first += kTopK) {
      ASSERT_TRUE(
          planner.plan(layer, std::vector{first, first + 1, first + 2, first + 3}, 1, kTopK));
      ASSERT_TRUE(planner.complete_fills());
    }
  }
}

TEST(LookupPlanner, AFixedShareDividesTheMissesOfAFullGroup) {
  LookupPlanner planner = planner_of(8, {.cache = {.cpu_share = 0.5, .fills = false}});
  fill_up(planner);
  const auto plan = planner.plan(0, std::vector{0, 1, 2, 3}, 1, kTopK);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->n_missing(), 4U);
  EXPECT_EQ(plan->uploads.size(), 2U);
  EXPECT_EQ(plan->cpu.size(), 2U);
  EXPECT_EQ(plan->split, Split::kBoth);
  EXPECT_EQ(plan->reason, SplitReason::kShare);
}

// Once a simulated prefill sent all of it over the link.
TEST(LookupPlanner, AFixedShareOfAStreamedPrefillIsLeftToTheCpu) {
  LookupPlanner planner = planner_of(4, {.cache = {.cpu_share = 0.25}});
  fill_up(planner);
  const auto plan = planner.plan(0, ids_of(40), 40, kTopK);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->is_streamed);
  EXPECT_EQ(plan->reason, SplitReason::kManyTokens);
  EXPECT_TRUE(plan->evictions.empty());
  const size_t n_missing = plan->n_missing();
  EXPECT_EQ(plan->hits.size() + n_missing, size_t{kExperts});
  EXPECT_EQ(plan->cpu.size(), (n_missing + 2) / 4);
  EXPECT_EQ(plan->streamed.size(), n_missing - plan->cpu.size());
  const cache::CacheCounts counts = planner.cache().counts(0)[cache::BatchClass::kMore];
  EXPECT_EQ(counts.cpu, plan->cpu.size());
  EXPECT_EQ(counts.streamed, plan->streamed.size());
  EXPECT_EQ(counts.split_streamed, 1U);
}

// Once the time was that of the experts that cross, and the bytes those of all misses.
TEST(LookupPlanner, APrefillIsTimedByWhatItIsSplitInto) {
  LookupPlanner planner = planner_of(4, {});
  fill_up(planner);
  const auto plan = planner.plan(0, ids_of(40), 40, kTopK);
  ASSERT_TRUE(plan);
  ASSERT_TRUE(plan->is_streamed);
  EXPECT_FALSE(plan->cpu.empty());
  EXPECT_FALSE(plan->streamed.empty());
  // Both lanes at once, each at its part of the 0.88 of both rates together.
  const ConcurrentRates rates =
      concurrent_rates(kRates.link_gb_per_s, kRates.cpu_gb_per_s, kRates.memory_gb_per_s);
  const double link_us = static_cast<double>(plan->streamed.size()) * 1000 / rates.link_gb_per_s;
  const double cpu_us = static_cast<double>(plan->cpu.size()) * 1000 / rates.cpu_gb_per_s;
  EXPECT_GE(plan->predicted_us, std::max(link_us, cpu_us));
  EXPECT_LE(plan->predicted_us, std::max(link_us, cpu_us) * 1.2);
}

TEST(LookupPlanner, CostsDecideWhereNoShareIsGiven) {
  // The link is so slow that everything is left to the CPU.
  LookupPlanner slow_link = planner_of(
      8, {.cache = {.fills = false,
                    .rates = LaneRates{
                        .link_gb_per_s = 0.01, .cpu_gb_per_s = 10, .device_gb_per_s = 200}}});
  const auto on_cpu = slow_link.plan(0, std::vector{0, 1, 2, 3}, 1, kTopK);
  ASSERT_TRUE(on_cpu);
  EXPECT_EQ(on_cpu->cpu.size(), 4U);
  EXPECT_EQ(on_cpu->reason, SplitReason::kCosts);
  // The CPU is.
  LookupPlanner slow_cpu = planner_of(
      8, {.cache = {.rates = LaneRates{
                        .link_gb_per_s = 10, .cpu_gb_per_s = 0.01, .device_gb_per_s = 200}}});
  const auto uploaded = slow_cpu.plan(0, std::vector{3, 1, 2, 0}, 1, kTopK);
  ASSERT_TRUE(uploaded);
  EXPECT_THAT(experts_of(uploaded->uploads), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(uploaded->split, Split::kUploads);
  const auto resident = slow_cpu.plan(0, std::vector{3, 1, 2, 0}, 1, kTopK);
  ASSERT_TRUE(resident);
  EXPECT_EQ(resident->split, Split::kHits);
  EXPECT_EQ(resident->reason, SplitReason::kNothingMissing);
}

TEST(LookupPlanner, NothingIsUploadedOrFilledOnceUploadsAreStopped) {
  LookupPlanner planner = planner_of(8, {});
  fill_up(planner);
  planner.allow_uploads(false);
  const auto plan = planner.plan(0, std::vector{0, 1, 2, 3}, 1, kTopK);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->uploads.empty());
  EXPECT_TRUE(plan->fills.empty());
  EXPECT_EQ(plan->reason, SplitReason::kUploadsStopped);
}

TEST(LookupPlanner, FillsArriveInTheTimeThatLookupsLeaveTheLink) {
  LookupPlanner planner = planner_of(8, {.cache = {.cpu_share = 1.0}});
  fill_up(planner);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(planner.plan(0, std::vector{0, 1, 2, 3}, 1, kTopK));
    ASSERT_TRUE(planner.complete_fills());
    EXPECT_TRUE(planner.arrived().empty());
  }
  const cache::CacheCounts counts = planner.cache().total_counts();
  EXPECT_GT(counts.fills, 0U);
  EXPECT_EQ(counts.fills_entered + counts.fills_dropped, counts.fills);
  const auto plan = planner.plan(0, std::vector{0, 1, 2, 3}, 1, kTopK);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->split, Split::kHits);
}

TEST(LookupPlanner, AGroupWithoutSlotsIsTheCpus) {
  LookupPlanner planner = planner_of(0, {});
  const auto one = planner.plan(0, std::vector{0, 1, 2, 3}, 1, kTopK);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->cpu.size(), 4U);
  EXPECT_EQ(one->reason, SplitReason::kNoSlots);
  const auto many = planner.plan(1, ids_of(40), 40, kTopK);
  ASSERT_TRUE(many);
  EXPECT_EQ(many->cpu.size(), size_t{kExperts});
  EXPECT_FALSE(many->is_streamed);
}

TEST(LookupPlanner, ExpectsNothingAheadUnlessAPrefillStreamedNearlyAll) {
  LookupPlanner planner = planner_of(
      4, {.cache = {.rates = LaneRates{
                        .link_gb_per_s = 100, .cpu_gb_per_s = 0.01, .device_gb_per_s = 200}}});
  fill_up(planner);
  EXPECT_TRUE(planner.experts_ahead(1, 40, 4).empty());
  ASSERT_TRUE(planner.plan(0, ids_of(40), 40, kTopK));
  EXPECT_EQ(planner.experts_ahead(1, 40, 3).size(), 3U);
  EXPECT_TRUE(planner.experts_ahead(1, 8, 3).empty());  // of another size
  EXPECT_FALSE(planner.expects_hits(1, 2));
  EXPECT_TRUE(planner.expects_hits(1, 1));
}

TEST(LookupPlanner, RefusesRulesOutOfRange) {
  const auto batch = LookupPlanner::create(cache_of(8), {.cache = {.cache_batch = 0}});
  ASSERT_FALSE(batch);
  EXPECT_THAT(batch.error().message, HasSubstr("found 0, expected auto or 1 to 65536"));
  EXPECT_FALSE(LookupPlanner::create(cache_of(8), {.cache = {.cpu_share = 1.5}}));
  EXPECT_FALSE(LookupPlanner::create(cache_of(8), {.cache = {.rates = LaneRates{}}}));
  LookupPlanner planner = planner_of(8, {});
  EXPECT_FALSE(planner.plan(7, std::vector{0}, 1, 1));
  EXPECT_FALSE(planner.plan(0, std::vector{kExperts}, 1, 1));
}

class Twice final : public PlanInterceptor {
 public:
  void planned(const cache::Lookup&, PlannedLookup& plan) override { plan.fills = {}; }
};

TEST(LookupPlanner, AnInterceptorMayChangeThePlan) {
  Twice twice;
  LookupPlanner planner = planner_of(8, {.cache = {.cpu_share = 1.0}, .interceptor = &twice});
  const auto plan = planner.plan(0, std::vector{0, 1, 2, 3}, 1, kTopK);
  ASSERT_TRUE(plan);
  EXPECT_TRUE(plan->fills.empty());
}

// Every expert of a lookup is in exactly one place, whatever the rules, and nothing is allocated.
TEST(LookupPlanner, DividesEveryLookupAndAllocatesNothing) {
  for (const CacheRules& rules :
       {CacheRules{}, CacheRules{.cpu_share = 0.0}, CacheRules{.cpu_share = 0.4, .cache_batch = 5},
        CacheRules{.fills = false}, CacheRules{.cache_batch = 1}}) {
    Random random(7);
    LookupPlanner planner = planner_of(11, {.cache = rules});
    std::vector<int32_t> ids;
    ids.reserve(4096);
    int64_t before = 0;
    for (int i = 0; i < 4000; ++i) {
      if (i == 2000) before = allocations_so_far();
      const int32_t n_tokens = i % 7 == 0 ? 1 + static_cast<int32_t>(random.below(60)) : 1;
      ids.clear();
      for (int32_t t = 0; t < n_tokens; ++t) {
        const auto first = static_cast<int32_t>(random.below(kExperts));
        for (int32_t j = 0; j < kTopK; ++j) ids.push_back((first + 3 * j) % kExperts);
      }
      const auto plan = planner.plan(i % kLayers, ids, n_tokens, kTopK);
      HOTSET_CHECK(plan);
      HOTSET_CHECK(planner.complete_fills());
      uint32_t seen = 0;
      size_t n = 0;
      const auto see = [&](int32_t expert) {
        seen |= 1U << expert;
        ++n;
      };
      for (const cache::Hit& hit : plan->hits) see(hit.expert);
      for (const cache::Upload& upload : plan->uploads) see(upload.expert);
      for (const int32_t expert : plan->streamed) see(expert);
      for (const int32_t expert : plan->cpu) see(expert);
      uint32_t selected = 0;
      for (const int32_t id : ids) selected |= 1U << id;
      HOTSET_CHECK(seen == selected && n == plan->n_selected());
      HOTSET_CHECK(std::ranges::is_sorted(plan->cpu) && std::ranges::is_sorted(plan->streamed));
      HOTSET_CHECK(plan->predicted_us >= plan->cheapest_us && plan->cheapest_us >= 0);
    }
    EXPECT_EQ(allocations_so_far() - before, 0);
    const cache::CacheCounts counts = planner.cache().total_counts();
    EXPECT_EQ(counts.hits + counts.uploads + counts.cpu + counts.streamed, counts.selected);
    EXPECT_EQ(counts.split_hits + counts.split_uploads + counts.split_both + counts.split_cpu +
                  counts.split_all_on_cpu + counts.split_streamed,
              counts.lookups);
  }
}

}  // namespace
}  // namespace hotset::lanes
