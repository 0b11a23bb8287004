// Every policy against a naive one that scans all experts, over random operations; the offline
// bounds against exhaustive search and against all other policies.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hotset/policy/policy_testing.h"

namespace hotset::policy {
namespace {

using test::TestCache;
using test::TestLookup;

class PolicyModel : public ::testing::TestWithParam<std::string> {};

TEST_P(PolicyModel, DecidesAsANaiveScanDoes) {
  Random random(test::test_seed());
  for (int round = 0; round < 12; round++) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    PolicyShape shape{.n_layers = 1 + static_cast<int32_t>(random.below(5)),
                      .n_expert = 4 + static_cast<int32_t>(random.below(40))};
    shape.n_slots =
        2 + static_cast<int32_t>(random.below(static_cast<uint64_t>(shape.n_experts() / 2)));
    if (GetParam() == "unbounded") shape.n_slots = shape.n_experts();
    const int32_t max_experts = std::min(shape.n_expert, 6);
    const int32_t max_tokens = round % 3 == 0 ? 1 : 40;
    const auto lookups = test::random_lookups(random, shape, 1500, max_experts, max_tokens);
    const auto profile = test::profile_of(shape, lookups);
    RecordedFuture future = test::future_of(shape, lookups);
    const PolicyConfig config{.shape = shape, .profile = profile, .future = &future};
    const auto policy = make_policy(GetParam(), config).value();
    const auto naive = test::make_naive(GetParam(), config);
    TestCache cache(shape, *policy);
    TestCache model(shape, *naive);
    for (const TestLookup& lookup : lookups) {
      // Mostly whole lookups; some leave misses out, some may not evict (prefill).
      const uint64_t kind = random.below(10);
      const TestCache::Options options = {.max_inserts = kind < 7 ? SIZE_MAX : random.below(3),
                                          .may_evict = kind != 9};
      const TestCache::Outcome decided = cache.lookup(lookup, options);
      const TestCache::Outcome expected = model.lookup(lookup, options);
      ASSERT_EQ(decided.hits, expected.hits);
      ASSERT_EQ(decided.evicted, expected.evicted);
      ASSERT_EQ(decided.inserted, expected.inserted);
      ASSERT_EQ(decided, expected);
      future.advance();
      // A slot is dropped; an expert comes in without a lookup, as a late fill does.
      if (random.below(20) == 0) {
        const auto slot = static_cast<int32_t>(random.below(static_cast<uint64_t>(shape.n_slots)));
        const auto expert =
            static_cast<ExpertIndex>(random.below(static_cast<uint64_t>(shape.n_experts())));
        if (cache.expert_in(slot) >= 0) {
          cache.evict(slot);
          model.evict(slot);
        }
        if (cache.slot_of(expert) == kNoSlot && random.below(2) == 0) {
          cache.insert(expert, slot);
          model.insert(expert, slot);
        }
      }
    }
    if (const auto* followed = dynamic_cast<const CrfAuto*>(policy.get())) {
      const auto& expected = dynamic_cast<const test::NaiveCrfAuto&>(*naive);
      EXPECT_EQ(followed->followed(), expected.followed_candidate());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyModel,
                         ::testing::Values("class_lru", "crf", "crf:1", "crf:2", "crf:7", "crf:8",
                                           "crf:128", "crf:65536", "crf-blend", "crf-auto", "lru",
                                           "static", "belady", "belady-demand", "unbounded"),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::ranges::replace_if(
                               text, [](char c) { return c == '-' || c == ':'; }, '_');
                           return text;
                         });

int64_t hits_of(std::string_view name, const PolicyShape& shape,
                const std::vector<TestLookup>& lookups) {
  const auto profile = test::profile_of(shape, lookups);
  RecordedFuture future = test::future_of(shape, lookups);
  const auto policy =
      make_policy(name, {.shape = shape, .profile = profile, .future = &future}).value();
  TestCache cache(shape, *policy);
  int64_t hits = 0;
  for (const TestLookup& lookup : lookups) {
    hits += std::ssize(cache.lookup(lookup).hits);
    future.advance();
  }
  return hits;
}

// The most hits that any sequence of decisions gives: contents are bit masks of experts. A hit
// expert stays during its lookup; demand: as many misses enter as there are slots for.
int64_t most_hits(const PolicyShape& shape, const std::vector<TestLookup>& lookups, bool demand) {
  std::map<uint32_t, int64_t> best = {{0, 0}};
  for (const TestLookup& lookup : lookups) {
    uint32_t selected = 0;
    for (const ExpertIndex expert : lookup.experts) selected |= 1U << expert;
    std::map<uint32_t, int64_t> next;
    for (const auto& [contents, hits_before] : best) {
      const uint32_t hit = contents & selected;
      const uint32_t missing = selected & ~contents;
      const uint32_t evictable = contents & ~selected;
      const int n_places = shape.n_slots - std::popcount(hit);
      const int n_insert = std::min(n_places, std::popcount(missing));
      const int64_t hits = hits_before + std::popcount(hit);
      for (uint32_t in = missing;; in = (in - 1) & missing) {
        const bool allowed = demand ? std::popcount(in) == n_insert : std::popcount(in) <= n_places;
        for (uint32_t kept = evictable; allowed; kept = (kept - 1) & evictable) {
          if (std::popcount(kept) + std::popcount(in) <= n_places) {
            int64_t& at = next[hit | in | kept];
            at = std::max(at, hits);
          }
          if (kept == 0) break;
        }
        if (in == 0) break;
      }
    }
    best = std::move(next);
  }
  int64_t most = 0;
  for (const auto& [contents, hits] : best) most = std::max(most, hits);
  return most;
}

TEST(OfflineBounds, AreWhatExhaustiveSearchFinds) {
  Random random(test::test_seed());
  for (int round = 0; round < 600; round++) {
    PolicyShape shape{.n_layers = 1 + static_cast<int32_t>(random.below(2)),
                      .n_expert = 4 + static_cast<int32_t>(random.below(2)),
                      .n_slots = 1 + static_cast<int32_t>(random.below(4))};
    // Up to four experts of a lookup: more than there are slots, at times.
    const auto lookups = test::random_lookups(random, shape, 14, 1 + round % 4, 1);
    EXPECT_EQ(hits_of("belady", shape, lookups), most_hits(shape, lookups, false))
        << "round " << round;
    EXPECT_EQ(hits_of("belady-demand", shape, lookups), most_hits(shape, lookups, true))
        << "round " << round;
  }
}

TEST(OfflineBounds, AreNotBeaten) {
  Random random(test::test_seed());
  for (int round = 0; round < 10; round++) {
    PolicyShape shape{.n_layers = 3, .n_expert = 24};
    shape.n_slots = 4 + static_cast<int32_t>(random.below(30));
    const auto lookups = test::random_lookups(random, shape, 1500, 1 + round % 8, 1);
    const int64_t belady = hits_of("belady", shape, lookups);
    const int64_t demand = hits_of("belady-demand", shape, lookups);
    EXPECT_LE(demand, belady);
    for (const std::string_view name : policy_names()) {
      const PolicyTraits traits = policy_traits(name).value();
      if (traits.needs_all_slots) continue;
      const int64_t hits = hits_of(name, shape, lookups);
      EXPECT_LE(hits, belady) << name;
      if (traits.always_inserts) {
        EXPECT_LE(hits, demand) << name;
      }
    }
  }
}

TEST(Lru, MissesNeverRiseWithCapacity) {
  Random random(test::test_seed());
  for (int round = 0; round < 5; round++) {
    PolicyShape shape{.n_layers = 2, .n_expert = 20};
    const auto lookups = test::random_lookups(random, shape, 800, 5, 1);
    int64_t hits_before = 0;
    // Inclusion holds where every lookup fits.
    for (shape.n_slots = 5; shape.n_slots <= shape.n_experts(); shape.n_slots++) {
      const int64_t hits = hits_of("lru", shape, lookups);
      EXPECT_GE(hits, hits_before) << shape.n_slots << " slots";
      hits_before = hits;
    }
  }
}

TEST(Unbounded, MissesOnFirstUseOnly) {
  Random random(test::test_seed());
  const PolicyShape shape{.n_layers = 3, .n_expert = 50, .n_slots = 150};
  const auto lookups = test::random_lookups(random, shape, 400, 6, 2);
  std::set<ExpertIndex> seen;
  int64_t selected = 0;
  for (const TestLookup& lookup : lookups) {
    selected += std::ssize(lookup.experts);
    seen.insert(lookup.experts.begin(), lookup.experts.end());
  }
  EXPECT_EQ(hits_of("unbounded", shape, lookups), selected - std::ssize(seen));
}

TEST(StaticHotSet, HoldsTheMostUsed) {
  const PolicyShape shape{.n_layers = 1, .n_expert = 6, .n_slots = 2};
  const std::vector<uint64_t> profile = {3, 9, 9, 9, 0, 1};
  const auto policy = make_policy("static", {.shape = shape, .profile = profile}).value();
  // Ties to the lower expert.
  for (ExpertIndex expert = 0; expert < 6; expert++) {
    EXPECT_EQ(policy->admits(expert, nullptr), expert == 1 || expert == 2) << expert;
  }
}

}  // namespace
}  // namespace hotset::policy
