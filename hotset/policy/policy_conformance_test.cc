// What every policy must do, whatever it ranks by.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "hotset/policy/policy_testing.h"

namespace hotset::policy {
namespace {

using test::TestCache;
using test::TestLookup;

std::vector<std::string> all_policies() {
  std::vector<std::string> names(policy_names().begin(), policy_names().end());
  names.insert(names.end(), {"crf:1", "crf:2", "crf:7", "crf:128", "crf:65536"});
  return names;
}

class PolicyConformance : public ::testing::TestWithParam<std::string> {
 protected:
  // A policy that knows these lookups, if it must, and its cache. n_slots becomes the number of
  // experts if the policy needs them all.
  struct Subject {
    PolicyShape shape;
    RecordedFuture future;
    std::unique_ptr<Policy> policy;
    std::unique_ptr<TestCache> cache;
  };

  static std::unique_ptr<Subject> make(PolicyShape shape, const std::vector<TestLookup>& lookups) {
    if (traits().needs_all_slots) shape.n_slots = shape.n_experts();
    auto subject = std::make_unique<Subject>(
        Subject{shape, test::future_of(shape, lookups), nullptr, nullptr});
    const std::vector<uint64_t> profile = test::profile_of(shape, lookups);
    auto policy =
        make_policy(GetParam(), {.shape = shape, .profile = profile, .future = &subject->future});
    EXPECT_TRUE(policy) << policy.error().message;
    subject->policy = *std::move(policy);
    subject->cache = std::make_unique<TestCache>(shape, *subject->policy);
    return subject;
  }

  static TestCache::Outcome step(Subject& subject, const TestLookup& lookup) {
    const TestCache::Outcome outcome = subject.cache->lookup(lookup);
    subject.future.advance();
    return outcome;
  }

  static PolicyTraits traits() { return policy_traits(GetParam()).value(); }
  static bool always_inserts() { return traits().always_inserts; }
};

TEST_P(PolicyConformance, CapacityOfExactlyK) {
  // Each lookup needs all slots there are.
  const PolicyShape shape{.n_layers = 2, .n_expert = 9, .n_slots = 4};
  Random random(test::test_seed());
  std::vector<TestLookup> lookups;
  for (int i = 0; i < 400; i++) {
    TestLookup lookup = test::random_lookups(random, shape, 1, 1, 1).front();
    const int32_t first = static_cast<int32_t>(random.below(9));
    lookup.layer_index = i % 2;
    lookup.experts.clear();
    for (int32_t j = 0; j < 4; j++) {
      lookup.experts.push_back(lookup.layer_index * 9 + (first + j * 2) % 9);
    }
    lookups.push_back(lookup);
  }
  const auto subject = make(shape, lookups);
  for (const TestLookup& lookup : lookups) {
    const TestCache::Outcome outcome = step(*subject, lookup);
    if (always_inserts()) {
      for (const ExpertIndex expert : lookup.experts) {
        EXPECT_NE(subject->cache->slot_of(expert), kNoSlot);
      }
    }
    for (const ExpertIndex hit : outcome.hits) EXPECT_NE(subject->cache->slot_of(hit), kNoSlot);
  }
}

TEST_P(PolicyConformance, EverythingSelected) {
  // One layer, all experts selected at once, again and again: nothing can be evicted.
  const PolicyShape shape{.n_layers = 1, .n_expert = 6, .n_slots = 6};
  const TestLookup all{.layer_index = 0, .n_tokens = 3, .experts = {5, 0, 3, 1, 4, 2}};
  const std::vector<TestLookup> lookups(5, all);
  const auto subject = make(shape, lookups);
  for (int i = 0; i < 5; i++) {
    const TestCache::Outcome outcome = step(*subject, all);
    EXPECT_TRUE(outcome.evicted.empty());
    EXPECT_EQ(outcome.hits.size(), i == 0 ? 0U : 6U);
  }
}

TEST_P(PolicyConformance, MoreSelectedThanSlots) {
  const PolicyShape shape{.n_layers = 1, .n_expert = 8, .n_slots = 3};
  const TestLookup all{.layer_index = 0, .n_tokens = 3, .experts = {7, 6, 5, 4, 3, 2, 1, 0}};
  const std::vector<TestLookup> lookups(4, all);
  const auto subject = make(shape, lookups);
  const TestCache::Outcome first = step(*subject, all);
  if (subject->shape.n_slots == 3) {
    EXPECT_LE(first.inserted.size(), 3U);
  }
  for (int i = 1; i < 4; i++) {
    const TestCache::Outcome outcome = step(*subject, all);
    EXPECT_EQ(outcome.hits.size(), first.inserted.size()) << "hits keep their slots";
    EXPECT_TRUE(outcome.evicted.empty());
  }
}

TEST_P(PolicyConformance, AnEvictedExpertCanComeBack) {
  const PolicyShape shape{.n_layers = 1, .n_expert = 5, .n_slots = 2};
  std::vector<TestLookup> lookups;
  for (int i = 0; i < 60; i++) lookups.push_back({0, 1, {i % 5}});
  const auto subject = make(shape, lookups);
  for (const TestLookup& lookup : lookups) {
    step(*subject, lookup);
    if (always_inserts()) {
      EXPECT_NE(subject->cache->slot_of(lookup.experts[0]), kNoSlot);
    }
  }
  // And by hand, out of every slot and into another one.
  for (int32_t slot = 0; slot < subject->shape.n_slots; slot++) {
    if (subject->cache->expert_in(slot) >= 0) subject->cache->evict(slot);
  }
  EXPECT_TRUE(subject->cache->victims(0, 2).empty()) << "no slot holds anything";
  for (ExpertIndex expert = 0; expert < 2; expert++) subject->cache->insert(expert, 1 - expert);
  for (ExpertIndex expert = 0; expert < 2; expert++) subject->cache->evict(1 - expert);
  EXPECT_TRUE(subject->cache->victims(0, 2).empty());
}

TEST_P(PolicyConformance, AskingTwiceGivesTheSameAnswer) {
  const PolicyShape shape{.n_layers = 3, .n_expert = 16, .n_slots = 12};
  Random random(test::test_seed());
  const auto lookups = test::random_lookups(random, shape, 600, 4, 2);
  const auto subject = make(shape, lookups);
  for (const TestLookup& lookup : lookups) {
    for (const size_t n : {size_t{1}, size_t{3}, size_t{12}}) {
      const auto first = subject->cache->victims(lookup.layer_index, n);
      const auto second = subject->cache->victims(lookup.layer_index, n);
      ASSERT_EQ(first.size(), second.size());
      for (size_t i = 0; i < first.size(); i++) {
        EXPECT_EQ(first[i].slot, second[i].slot);
        EXPECT_EQ(first[i].rank, second[i].rank);
        EXPECT_EQ(first[i].score, second[i].score);
        EXPECT_EQ(first[i].score, subject->policy->score(first[i].expert));
        EXPECT_FALSE(subject->policy->explain(first[i]).empty());
      }
    }
    for (const ExpertIndex expert : lookup.experts) {
      EXPECT_EQ(subject->policy->score_after_use(expert), subject->policy->score_after_use(expert));
    }
    step(*subject, lookup);
  }
  EXPECT_FALSE(subject->policy->explain().empty());
}

TEST_P(PolicyConformance, AskingChangesNoLaterDecision) {
  const PolicyShape shape{.n_layers = 3, .n_expert = 16, .n_slots = 12};
  Random random(test::test_seed());
  const auto lookups = test::random_lookups(random, shape, 900, 4, 2);
  const auto asked = make(shape, lookups);
  const auto silent = make(shape, lookups);
  for (const TestLookup& lookup : lookups) {
    for (int32_t layer = 0; layer < 3; layer++) {
      asked->cache->victims(layer, 1 + random.below(12));
    }
    ASSERT_EQ(step(*asked, lookup), step(*silent, lookup));
  }
}

TEST_P(PolicyConformance, AShorterListIsTheBeginningOfALongerOne) {
  const PolicyShape shape{.n_layers = 2, .n_expert = 16, .n_slots = 10};
  Random random(test::test_seed());
  const auto lookups = test::random_lookups(random, shape, 300, 3, 1);
  const auto subject = make(shape, lookups);
  for (const TestLookup& lookup : lookups) {
    const auto all = subject->cache->victims(lookup.layer_index, 10);
    const auto some = subject->cache->victims(lookup.layer_index, 4);
    ASSERT_EQ(some.size(), std::min<size_t>(4, all.size()));
    for (size_t i = 0; i < some.size(); i++) EXPECT_EQ(some[i].slot, all[i].slot);
    step(*subject, lookup);
  }
}

TEST_P(PolicyConformance, EqualLookupsGiveEqualDecisions) {
  const PolicyShape shape{.n_layers = 4, .n_expert = 12, .n_slots = 15};
  Random random(test::test_seed());
  const auto lookups = test::random_lookups(random, shape, 1200, 4, 3);
  const auto first = make(shape, lookups);
  const auto second = make(shape, lookups);
  for (const TestLookup& lookup : lookups) ASSERT_EQ(step(*first, lookup), step(*second, lookup));
}

TEST_P(PolicyConformance, ScoresAreExpectedUsesPerToken) {
  // One expert used on every token scores near 1, one never used scores 0, in between in between.
  const PolicyShape shape{.n_layers = 1, .n_expert = 4, .n_slots = 2};
  std::vector<TestLookup> lookups;
  for (int i = 0; i < 1000; i++) {
    lookups.push_back(
        {0, 1, i % 4 == 0 ? std::vector<ExpertIndex>{0, 1} : std::vector<ExpertIndex>{0}});
  }
  const auto subject = make(shape, lookups);
  for (int i = 0; i < 996; i++) step(*subject, lookups[i]);
  const std::string name = GetParam();
  if (name == "unbounded") return;  // it has no scores
  const Policy& policy = *subject->policy;
  EXPECT_EQ(policy.score(3), 0);
  EXPECT_GE(policy.score(0), policy.score(1));
  EXPECT_GE(policy.score_after_use(0), policy.score_after_use(1));
  const bool has_no_memory = name == "crf:1" || name == "crf:2" || name == "crf:65536";
  if (name.starts_with("belady") || has_no_memory) return;
  EXPECT_NEAR(policy.score(0), 1, 0.1);
  EXPECT_NEAR(policy.score_after_use(1), 0.3, 0.15);
}

INSTANTIATE_TEST_SUITE_P(Policies, PolicyConformance, ::testing::ValuesIn(all_policies()),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::ranges::replace_if(
                               text, [](char c) { return c == '-' || c == ':'; }, '_');
                           return text;
                         });

}  // namespace
}  // namespace hotset::policy
