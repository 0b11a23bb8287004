#include "hotset/cache/expert_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace hotset::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

GroupSpec group_of(std::vector<int32_t> layers, int32_t n_expert) {
  return {.n_expert = n_expert,
          .layers = std::move(layers),
          .group_host_bytes = mib(1),
          .device_host_bytes = mib(2),
          .expert_bytes = {{1024}}};
}

ExpertCache make_cache(std::vector<int32_t> layers, int32_t n_expert, int64_t n_slots,
                       std::string_view policy = "class_lru") {
  std::vector<CacheGroup> groups;
  groups.push_back({.spec = group_of(std::move(layers), n_expert), .n_slots = n_slots});
  return ExpertCache::create(std::move(groups), policy).value();
}

Lookup classify(ExpertCache& cache, int32_t layer, const std::vector<int32_t>& ids,
                int32_t n_tokens = 1) {
  const auto k = static_cast<int32_t>(ids.size()) / n_tokens;
  auto lookup = cache.classify(layer, ids, n_tokens, k);
  EXPECT_TRUE(lookup) << lookup.error().message;
  return lookup.value_or(Lookup{});
}

LookupPlan serve(ExpertCache& cache, int32_t layer, const std::vector<int32_t>& ids,
                 const Decision& decision = {}, int32_t n_tokens = 1) {
  auto plan = cache.commit(classify(cache, layer, ids, n_tokens), decision);
  EXPECT_TRUE(plan) << plan.error().message;
  return plan.value_or(LookupPlan{});
}

std::vector<int32_t> experts(std::span<const Upload> uploads) {
  std::vector<int32_t> list;
  for (const Upload& upload : uploads) list.push_back(upload.expert);
  return list;
}

std::vector<int32_t> experts(std::span<const Miss> misses) {
  std::vector<int32_t> list;
  for (const Miss& miss : misses) list.push_back(miss.expert);
  return list;
}

TEST(ExpertCache, UploadsMissesInAscendingOrderIntoTheFirstEmptySlots) {
  ExpertCache cache = make_cache({3, 1}, 8, 4);
  const LookupPlan plan = serve(cache, 3, {6, 2, 4});
  ASSERT_THAT(plan.uploads, SizeIs(3));
  EXPECT_THAT(experts(plan.uploads), ElementsAre(2, 4, 6));
  for (size_t i = 0; i < 3; i++) EXPECT_EQ(plan.uploads[i].slot, static_cast<int32_t>(i));
  EXPECT_THAT(plan.cpu_experts, IsEmpty());
  EXPECT_THAT(plan.evictions, IsEmpty());
  EXPECT_THAT(cache.slot_map(3), ElementsAre(-1, -1, 0, -1, 1, -1, 2, -1));
  EXPECT_EQ(cache.slot_map(1)[2], policy::kNoSlot) << "experts of another layer are other experts";
  EXPECT_EQ(cache.clock(3), 1);
  EXPECT_EQ(cache.clock(1), 0);
}

TEST(ExpertCache, ClassifiesHitsByFirstAppearanceAndCountsPairs) {
  ExpertCache cache = make_cache({0}, 8, 8);
  serve(cache, 0, {1, 2, 3});
  const Lookup lookup = classify(cache, 0, {3, 7, 1, 3, 7, 5}, 3);
  ASSERT_THAT(lookup.hits, SizeIs(2));
  EXPECT_EQ(lookup.hits[0].expert, 3);
  EXPECT_EQ(lookup.hits[0].n_pairs, 2);
  EXPECT_EQ(lookup.hits[0].slot, 2);
  EXPECT_EQ(lookup.hits[1].expert, 1);
  EXPECT_THAT(experts(lookup.misses), ElementsAre(5, 7)) << "equal scores: by expert";
  EXPECT_EQ(lookup.misses[1].n_pairs, 2);
  EXPECT_EQ(lookup.misses[0].score, lookup.misses[1].score) << "once per lookup";
  EXPECT_FALSE(lookup.group_full);
  EXPECT_EQ(lookup.n_tokens, 3);
  EXPECT_EQ(lookup.k, 2);
}

TEST(ExpertCache, ClassifyingChangesNothing) {
  ExpertCache cache = make_cache({0}, 8, 3);
  serve(cache, 0, {0, 1, 2});
  const Lookup first = classify(cache, 0, {2, 5});
  const std::vector<int32_t> first_misses = experts(first.misses);
  const int32_t first_place = first.places[0].slot;
  const Lookup second = classify(cache, 0, {2, 5});
  EXPECT_EQ(experts(second.misses), first_misses);
  EXPECT_EQ(second.places[0].slot, first_place);
  EXPECT_EQ(cache.clock(0), 1);
  EXPECT_EQ(cache.total_counts().lookups, 1U);
  EXPECT_EQ(cache.slot_map(0)[5], policy::kNoSlot);
}

TEST(ExpertCache, AnOutdatedLookupIsRefused) {
  ExpertCache cache = make_cache({0}, 8, 4);
  const Lookup old = classify(cache, 0, {1});
  const Lookup current = classify(cache, 0, {2});
  const auto refused = cache.commit(old, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message, HasSubstr("out of date"));
  EXPECT_FALSE(cache.commit(Lookup{}, {}));
  ASSERT_TRUE(cache.commit(current, {})) << "the current one still holds";
  EXPECT_FALSE(cache.commit(current, {})) << "once";
  EXPECT_FALSE(cache.commit_prefill(current, 1));
  const Lookup before_drop = classify(cache, 0, {3});
  ASSERT_TRUE(cache.drop(0, 0));
  EXPECT_FALSE(cache.commit(before_drop, {}));
  EXPECT_EQ(cache.total_counts().lookups, 1U);
}

TEST(ExpertCache, RefusesBadLookupsAndStaysAsItWas) {
  ExpertCache cache = make_cache({0, 2}, 8, 4);
  serve(cache, 0, {1, 2});
  const std::vector<int32_t> ids = {1, 2, 3, 4};
  struct Bad {
    int32_t layer;
    std::vector<int32_t> ids;
    int32_t n_tokens;
    int32_t k;
    const char* message;
  };
  for (const Bad& bad : std::vector<Bad>{
           {1, ids, 1, 4, "layer 1 has no experts"},
           {-1, ids, 1, 4, "layer -1"},
           {1 << 30, ids, 1, 4, "has no experts"},
           {0, {}, 1, 0, "0 ids for 1 tokens of 0 experts"},
           {0, {}, 0, 4, "0 ids"},
           {0, ids, 0, 0, "4 ids"},
           {0, ids, 4, 2, "4 ids for 4 tokens of 2 experts"},
           {0, ids, -1, -4, "4 ids for -1 tokens"},
           {0, {}, 1 << 20, 1 << 20, "0 ids"},
           {0, {1, 8, 2, 3}, 1, 4, "expert 8, expected 0 to 7"},
           {0, {1, 2, 3, -1}, 1, 4, "expert -1, expected 0 to 7"},
           {0, {INT32_MIN, 2}, 1, 2, "expected 0 to 7"},
       }) {
    const auto lookup = cache.classify(bad.layer, bad.ids, bad.n_tokens, bad.k);
    ASSERT_FALSE(lookup) << bad.message;
    EXPECT_EQ(lookup.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(lookup.error().message, HasSubstr(bad.message));
  }
  EXPECT_EQ(cache.clock(0), 1);
  EXPECT_EQ(cache.total_counts().lookups, 1U);
  EXPECT_THAT(cache.slot_map(0), ElementsAre(-1, 0, 1, -1, -1, -1, -1, -1));
}

TEST(ExpertCache, RefusesBadDecisionsAndTheLookupStays) {
  ExpertCache cache = make_cache({0}, 8, 4);
  serve(cache, 0, {1, 2});
  const Lookup lookup = classify(cache, 0, {1, 4, 5});
  const auto refusal = [&](std::vector<int32_t> cpu_experts, int32_t max_fills = 0) {
    const auto plan = cache.commit(lookup, {.cpu_experts = cpu_experts, .max_fills = max_fills});
    EXPECT_FALSE(plan);
    return plan ? std::string() : plan.error().message;
  };
  EXPECT_THAT(refusal({1}), HasSubstr("expert 1 is given to the CPU, but is not a miss"));
  EXPECT_THAT(refusal({6}), HasSubstr("expert 6"));
  EXPECT_THAT(refusal({-1}), HasSubstr("expert -1"));
  EXPECT_THAT(refusal({4, 8}), HasSubstr("expert 8"));
  EXPECT_THAT(refusal({4, 5, 4}), HasSubstr("expert 4 is given to the CPU twice"));
  EXPECT_THAT(refusal({}, -1), HasSubstr("max_fills is -1"));
  EXPECT_FALSE(cache.commit_prefill(lookup, -1));
  const auto plan = cache.commit(lookup, {});
  ASSERT_TRUE(plan);
  EXPECT_THAT(experts(plan->uploads), ElementsAre(4, 5)) << "nothing of the refused ones is left";
}

TEST(ExpertCache, LeavesToTheCpuWhatItIsTold) {
  ExpertCache cache = make_cache({0}, 8, 8);
  const std::vector<int32_t> cpu = {5, 1};
  const LookupPlan plan = serve(cache, 0, {1, 3, 5}, {.cpu_experts = cpu});
  EXPECT_THAT(experts(plan.uploads), ElementsAre(3));
  EXPECT_THAT(plan.cpu_experts, ElementsAre(1, 5));
  EXPECT_EQ(cache.slot_map(0)[5], policy::kNoSlot);
}

TEST(ExpertCache, NeverEvictsWhatTheLookupNeeds) {
  ExpertCache cache = make_cache({0}, 8, 3);
  serve(cache, 0, {0, 1, 2});
  const LookupPlan plan = serve(cache, 0, {0, 7});
  ASSERT_THAT(plan.evictions, SizeIs(1));
  EXPECT_EQ(plan.evictions[0].key, (ExpertKey{0, 1})) << "0 is older by its list, but needed";
  EXPECT_EQ(plan.evictions[0].slot, 1);
  EXPECT_EQ(plan.evictions[0].residency_tokens, 1);
  EXPECT_EQ(plan.uploads[0].slot, 1);
}

TEST(ExpertCache, ServesLookupsThatNeedMoreThanThereIs) {
  ExpertCache cache = make_cache({0}, 8, 3);
  serve(cache, 0, {6, 6}, {}, 2);
  serve(cache, 0, {7, 6});
  // 7 and 6 hit and keep their slots; of the others 0 is the best-scored, having been used before.
  const std::vector<int32_t> cpu = {0};
  serve(cache, 0, {0}, {.cpu_experts = cpu});
  const LookupPlan plan = serve(cache, 0, {0, 1, 2, 3, 6, 7}, {}, 2);
  EXPECT_THAT(experts(plan.uploads), ElementsAre(0));
  EXPECT_THAT(plan.cpu_experts, ElementsAre(1, 2, 3));
  EXPECT_THAT(plan.evictions, IsEmpty());
}

TEST(ExpertCache, AGroupWithoutSlotsLeavesAllToTheCpu) {
  ExpertCache cache = make_cache({0}, 8, 0);
  const Lookup lookup = classify(cache, 0, {3, 1});
  EXPECT_FALSE(lookup.cached);
  EXPECT_TRUE(lookup.group_full);
  EXPECT_THAT(lookup.places, IsEmpty());
  const auto plan = cache.commit(lookup, {.max_fills = 5});
  ASSERT_TRUE(plan);
  EXPECT_THAT(plan->uploads, IsEmpty());
  EXPECT_THAT(plan->fills, IsEmpty());
  EXPECT_THAT(plan->cpu_experts, ElementsAre(1, 3));
  EXPECT_EQ(cache.policy(0), nullptr);
  EXPECT_FALSE(cache.reserve_fill({0, 1}));
  EXPECT_EQ(cache.counts(0)[BatchClass::kOne].cpu, 2U);
}

TEST(ExpertCache, GroupsHaveSlotsOfTheirOwn) {
  std::vector<CacheGroup> groups;
  groups.push_back({.spec = group_of({0, 1}, 4), .n_slots = 2});
  groups.push_back({.spec = group_of({5}, 16), .n_slots = 3});
  ExpertCache cache = ExpertCache::create(std::move(groups), "lru").value();
  EXPECT_EQ(cache.n_groups(), 2);
  EXPECT_EQ(cache.group_of(1), 0);
  EXPECT_EQ(cache.group_of(5), 1);
  EXPECT_EQ(cache.group_of(2), -1);
  EXPECT_EQ(cache.policy_name(), "lru");
  serve(cache, 5, {15, 14, 13});
  serve(cache, 0, {3, 2});
  const LookupPlan plan = serve(cache, 1, {0});
  ASSERT_THAT(plan.evictions, SizeIs(1));
  EXPECT_EQ(plan.evictions[0].key, (ExpertKey{0, 2})) << "of another layer of the group";
  EXPECT_EQ(plan.group, 0);
  EXPECT_EQ(cache.slots(1).n_resident(), 3);
  EXPECT_EQ(cache.key_of(1, 15), (ExpertKey{5, 15}));
  EXPECT_EQ(cache.key_of(0, 5), (ExpertKey{1, 1}));
  EXPECT_THAT(cache.slot_map(2), IsEmpty());
}

TEST(ExpertCache, IndexesLayersByTheirNumbers) {
  ExpertCache cache = make_cache({9, 4}, 4, 8);
  EXPECT_EQ(cache.key_of(0, 0), (ExpertKey{4, 0}));
  EXPECT_EQ(cache.key_of(0, 7), (ExpertKey{9, 3}));
}

TEST(ExpertCache, RefusesConfigurationsThatMakeNoSense) {
  const auto refusal = [](GroupSpec spec, int64_t n_slots, std::string_view policy) {
    std::vector<CacheGroup> groups;
    groups.push_back({.spec = std::move(spec), .n_slots = n_slots});
    const auto cache = ExpertCache::create(std::move(groups), policy);
    EXPECT_FALSE(cache);
    return cache ? std::string() : cache.error().message;
  };
  EXPECT_THAT(refusal(group_of({0}, 4), 5, "lru"), HasSubstr("5 slots, expected 0 to 4"));
  EXPECT_THAT(refusal(group_of({0}, 4), -1, "lru"), HasSubstr("-1 slots"));
  EXPECT_THAT(refusal(group_of({0}, 4), 2, "fifo"), HasSubstr("policy \"fifo\""));
  EXPECT_THAT(refusal(group_of({0, 0}, 4), 2, "lru"), HasSubstr("layer 0"));
  EXPECT_THAT(refusal(group_of({0}, 4), 2, "static"), HasSubstr("profile"));
  EXPECT_THAT(refusal(group_of({0}, 4), 2, "belady"), HasSubstr("future"));
}

TEST(ExpertCache, UnboundedGetsAllSlots) {
  ExpertCache cache = make_cache({0, 1}, 8, 2, "unbounded");
  EXPECT_EQ(cache.slots(0).n_slots(), 16);
}

TEST(ExpertCache, QueuesFillsForTheBestOfTheCpuLane) {
  ExpertCache cache = make_cache({0}, 8, 2, "crf:8");
  serve(cache, 0, {0, 1});
  // 5 is used again and again, on the CPU; 0 and 1 fade.
  const std::vector<int32_t> cpu = {5};
  for (int i = 0; i < 4; i++) serve(cache, 0, {5}, {.cpu_experts = cpu});
  const LookupPlan plan = serve(cache, 0, {5}, {.cpu_experts = cpu, .max_fills = 1});
  EXPECT_THAT(plan.cpu_experts, ElementsAre(5));
  ASSERT_THAT(plan.fills, SizeIs(1));
  EXPECT_EQ(plan.fills[0].key, (ExpertKey{0, 5}));
  EXPECT_EQ(plan.fills[0].slot, 0) << "in the place of 0";
  EXPECT_THAT(plan.evictions, SizeIs(1));
  EXPECT_EQ(cache.slot_map(0)[5], policy::kNoSlot) << "not before it has completed";
  EXPECT_EQ(cache.slots(0).n_reserved(), 1);

  const Lookup waiting = classify(cache, 0, {5});
  ASSERT_THAT(waiting.misses, SizeIs(1));
  EXPECT_EQ(waiting.misses[0].fill_slot, 0);
  const auto again = cache.commit(waiting, {.cpu_experts = cpu, .max_fills = 1});
  ASSERT_TRUE(again);
  EXPECT_THAT(again->fills, IsEmpty()) << "it is on its way";

  EXPECT_TRUE(cache.complete_fill(0, 0).value());
  EXPECT_EQ(cache.slot_map(0)[5], 0);
  EXPECT_THAT(classify(cache, 0, {5}).hits, SizeIs(1));
  const CacheCounts counts = cache.total_counts();
  EXPECT_EQ(counts.fills, 1U);
  EXPECT_EQ(counts.fills_entered, 1U);
  EXPECT_EQ(counts.evictions, 1U);
}

TEST(ExpertCache, FillsBeatTheirVictims) {
  ExpertCache cache = make_cache({0}, 8, 2, "crf:8");
  for (int i = 0; i < 5; i++) serve(cache, 0, {0, 1});
  const std::vector<int32_t> cpu = {5};
  const LookupPlan plan = serve(cache, 0, {5}, {.cpu_experts = cpu, .max_fills = 3});
  EXPECT_THAT(plan.fills, IsEmpty()) << "0 and 1 are used more";
}

TEST(ExpertCache, FillsEmptySlotsWithAnything) {
  ExpertCache cache = make_cache({0}, 8, 4);
  const std::vector<int32_t> cpu = {2, 5, 7};
  const LookupPlan plan = serve(cache, 0, {2, 5, 7}, {.cpu_experts = cpu, .max_fills = 2});
  ASSERT_THAT(plan.fills, SizeIs(2)) << "as many as allowed";
  EXPECT_EQ(plan.fills[0].slot, 0);
  EXPECT_EQ(plan.fills[1].slot, 1);
}

TEST(ExpertCache, AFillOfAnExpertThatWasUploadedMeanwhileIsDropped) {
  ExpertCache cache = make_cache({0}, 8, 4);
  const std::vector<int32_t> cpu = {5};
  serve(cache, 0, {5}, {.cpu_experts = cpu, .max_fills = 1});
  const LookupPlan plan = serve(cache, 0, {5});
  ASSERT_THAT(plan.uploads, SizeIs(1));
  EXPECT_EQ(plan.uploads[0].slot, 1);
  EXPECT_FALSE(cache.complete_fill(0, 0).value());
  EXPECT_EQ(cache.slot_map(0)[5], 1);
  EXPECT_EQ(cache.slots(0).n_empty(), 3);
  EXPECT_EQ(cache.total_counts().fills_dropped, 1U);
}

TEST(ExpertCache, ACancelledFillLeavesAnEmptySlot) {
  ExpertCache cache = make_cache({0}, 8, 4);
  const Fill fill = cache.reserve_fill({0, 3}).value();
  EXPECT_EQ(fill.slot, 0);
  EXPECT_EQ(cache.slots(0).n_empty(), 3);
  ASSERT_TRUE(cache.cancel_fill(0, fill.slot));
  EXPECT_EQ(cache.slots(0).n_empty(), 4);
  EXPECT_FALSE(cache.cancel_fill(0, fill.slot));
  EXPECT_FALSE(cache.complete_fill(0, fill.slot));
  for (const int32_t slot : {-1, 4}) EXPECT_FALSE(cache.complete_fill(0, slot));
  for (const int32_t group : {-1, 1}) EXPECT_FALSE(cache.cancel_fill(group, 0));
}

TEST(ExpertCache, ReservesFillsForAHotSet) {
  ExpertCache cache = make_cache({0, 1}, 4, 2);
  const Fill fill = cache.reserve_fill({1, 2}).value();
  EXPECT_EQ(cache.reserve_fill({1, 2}).error().code, ErrorCode::kInvalidArgument) << "on its way";
  ASSERT_TRUE(cache.complete_fill(0, fill.slot).value());
  EXPECT_EQ(cache.reserve_fill({1, 2}).error().code, ErrorCode::kInvalidArgument) << "resident";
  EXPECT_THAT(classify(cache, 1, {2}).hits, SizeIs(1));
  EXPECT_EQ(cache.reserve_fill({2, 0}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(cache.reserve_fill({1, 4}).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(cache.reserve_fill({0, 0}));
  EXPECT_EQ(cache.reserve_fill({0, 1}).error().code, ErrorCode::kOutOfMemory);
}

TEST(ExpertCache, ADroppedExpertIsMissing) {
  ExpertCache cache = make_cache({0}, 8, 4);
  serve(cache, 0, {1, 2});
  ASSERT_TRUE(cache.drop(0, 0));
  EXPECT_EQ(cache.slot_map(0)[1], policy::kNoSlot);
  const auto again = cache.drop(0, 0);
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr("slot 0 holds no expert"));
  const LookupPlan plan = serve(cache, 0, {1, 2});
  EXPECT_THAT(experts(plan.uploads), ElementsAre(1));
}

TEST(ExpertCache, PrefillEvictsNothingAndFillsEmptySlotsMostRoutedFirst) {
  ExpertCache cache = make_cache({0}, 8, 4);
  serve(cache, 0, {0, 1});
  // Pairs: 2 has one, 3 and 5 two, 4 three; 0 is a hit.
  const std::vector<int32_t> ids = {4, 3, 4, 5, 4, 2, 3, 0, 5, 0};
  const auto plan = cache.commit_prefill(classify(cache, 0, ids, 5), 8);
  ASSERT_TRUE(plan);
  EXPECT_THAT(experts(plan->uploads), ElementsAre(3, 4)) << "ties by expert";
  EXPECT_THAT(plan->cpu_experts, ElementsAre(2, 5)) << "streamed";
  EXPECT_THAT(plan->evictions, IsEmpty());
  EXPECT_EQ(cache.clock(0), 6) << "the clock advances";
  const auto full = cache.commit_prefill(classify(cache, 0, {6, 7}), 8);
  ASSERT_TRUE(full);
  EXPECT_THAT(full->uploads, IsEmpty());
  EXPECT_THAT(full->cpu_experts, ElementsAre(6, 7));
  const CacheCounts counts = cache.total_counts();
  EXPECT_EQ(counts.streamed, 4U);
  EXPECT_EQ(counts.cpu, 0U);
}

TEST(ExpertCache, PrefillInsertsAtMostWhatItMay) {
  ExpertCache cache = make_cache({0}, 8, 4);
  const auto plan = cache.commit_prefill(classify(cache, 0, {4, 3, 2, 4, 3, 1}, 2), 1);
  ASSERT_TRUE(plan);
  EXPECT_THAT(experts(plan->uploads), ElementsAre(3));
  EXPECT_THAT(plan->cpu_experts, ElementsAre(1, 2, 4));
}

TEST(ExpertCache, PrefillTrainsTheScores) {
  ExpertCache cache = make_cache({0}, 8, 2, "crf:32");
  serve(cache, 0, {0, 1});
  ASSERT_TRUE(cache.commit_prefill(classify(cache, 0, {0, 2, 0, 2}, 2), 0));
  const LookupPlan plan = serve(cache, 0, {7});
  ASSERT_THAT(plan.evictions, SizeIs(1));
  EXPECT_EQ(plan.evictions[0].key.expert, 1) << "0 was used by the prefill";
}

TEST(ExpertCache, CountsPerLayerAndBatchClass) {
  ExpertCache cache = make_cache({0, 1}, 8, 6);
  serve(cache, 0, {0, 1});
  serve(cache, 0, {0, 2, 0, 1}, {}, 2);
  const std::vector<int32_t> many(33, 5);
  ASSERT_TRUE(cache.commit_prefill(classify(cache, 1, many, 33), 1));
  const std::vector<int32_t> some(9, 5);
  serve(cache, 1, some, {}, 9);

  const CacheCounts one = cache.counts(0)[BatchClass::kOne];
  EXPECT_EQ(one.lookups, 1U);
  EXPECT_EQ(one.uploads, 2U);
  EXPECT_EQ(one.pairs, 2U);
  const CacheCounts two = cache.counts(0)[BatchClass::k2To8];
  EXPECT_EQ(two.tokens, 2U);
  EXPECT_EQ(two.selected, 3U);
  EXPECT_EQ(two.hits, 2U);
  EXPECT_EQ(two.pairs, 4U);
  EXPECT_EQ(two.hit_pairs, 3U);
  EXPECT_EQ(two.uploads, 1U);
  EXPECT_EQ(cache.counts(1)[BatchClass::kMore].uploads, 1U);
  EXPECT_EQ(cache.counts(1)[BatchClass::k9To32].hits, 1U);
  EXPECT_EQ(cache.counts(7).total(), CacheCounts{}) << "no such layer";

  const CacheCounts total = cache.total_counts();
  EXPECT_EQ(total.lookups, 4U);
  EXPECT_EQ(total.hits + total.uploads + total.cpu + total.streamed, total.selected);
  EXPECT_DOUBLE_EQ(total.hit_rate(), 3.0 / 7);
  CacheCounts difference = total;
  difference -= total;
  EXPECT_EQ(difference, CacheCounts{});
  EXPECT_EQ(difference.hit_rate(), 0);
  cache.reset_counts();
  EXPECT_EQ(cache.total_counts(), CacheCounts{});
  EXPECT_EQ(cache.clock(0), 3) << "clocks are not statistics";
}

TEST(BatchClass, IsByTokens) {
  for (const auto& [n_tokens, batch, name] :
       {std::tuple(1, BatchClass::kOne, "1"), std::tuple(2, BatchClass::k2To8, "2-8"),
        std::tuple(8, BatchClass::k2To8, "2-8"), std::tuple(9, BatchClass::k9To32, "9-32"),
        std::tuple(32, BatchClass::k9To32, "9-32"), std::tuple(33, BatchClass::kMore, "more")}) {
    EXPECT_EQ(batch_class(n_tokens), batch);
    EXPECT_EQ(batch_class_name(batch), name);
  }
}

TEST(FixedShare, LeavesItsShareOverLookups) {
  ExpertCache cache = make_cache({0, 1}, 8, 2);
  FixedShare share = FixedShare::create(0.3F, 2).value();
  EXPECT_EQ(share.take(classify(cache, 0, {1, 2, 3})), 0) << "not before the group is full";
  serve(cache, 0, {6, 7});
  int32_t taken = 0;
  for (int i = 0; i < 1000; i++) taken += share.take(classify(cache, 0, {1, 2, 3}));
  EXPECT_EQ(taken, 900) << "of 3000 misses, 3000 * 19661 / 65536 rounded down";
  EXPECT_EQ(share.take(classify(cache, 1, {1, 2, 3})), 0) << "a carry of its own: 0.9";
  EXPECT_EQ(share.take(classify(cache, 1, {1, 2, 3})), 1) << "1.8";
}

TEST(FixedShare, OfAllAndOfNothing) {
  ExpertCache cache = make_cache({0}, 8, 1);
  serve(cache, 0, {7});
  FixedShare nothing = FixedShare::create(0, 1).value();
  FixedShare all = FixedShare::create(1, 1).value();
  for (int i = 0; i < 100; i++) {
    const Lookup lookup = classify(cache, 0, {1, 2, 3, 7});
    EXPECT_EQ(nothing.take(lookup), 0);
    EXPECT_EQ(all.take(lookup), 3);
  }
}

TEST(FixedShare, RefusesWhatIsNoShare) {
  for (const float share : {-0.1F, 1.1F, std::nanf("")}) {
    EXPECT_FALSE(FixedShare::create(share, 1));
  }
  EXPECT_FALSE(FixedShare::create(0.5F, -1));
  EXPECT_FALSE(FixedShare::create(0.5F, kMaxLayers + 1));
}

}  // namespace
}  // namespace hotset::cache
