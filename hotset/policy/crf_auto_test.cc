#include "hotset/policy/crf_auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "hotset/policy/policy_testing.h"

namespace hotset::policy {
namespace {

using test::TestCache;
using test::TestLookup;

constexpr PolicyShape kShape{.n_layers = 4, .n_expert = 48, .n_slots = 48};

// k experts per layer from a window of experts that moves on: what was used just now is used again,
// what was used long ago is not.
std::vector<TestLookup> moving(int n_tokens, Random& random) {
  std::vector<TestLookup> lookups;
  for (int token = 0; token < n_tokens; token++) {
    for (int32_t layer = 0; layer < kShape.n_layers; layer++) {
      TestLookup lookup{.layer_index = layer, .n_tokens = 1, .experts = {}};
      while (lookup.experts.size() < 4) {
        const auto expert =
            layer * 48 +
            static_cast<int32_t>((random.below(9) + static_cast<uint64_t>(token) / 3) % 48);
        if (!std::ranges::contains(lookup.experts, expert)) lookup.experts.push_back(expert);
      }
      lookups.push_back(std::move(lookup));
    }
  }
  return lookups;
}

// k experts per layer by fixed, skewed probabilities: only the count of uses says anything.
std::vector<TestLookup> stationary(int n_tokens, Random& random) {
  std::vector<TestLookup> lookups;
  for (int token = 0; token < n_tokens; token++) {
    for (int32_t layer = 0; layer < kShape.n_layers; layer++) {
      TestLookup lookup{.layer_index = layer, .n_tokens = 1, .experts = {}};
      while (lookup.experts.size() < 4) {
        const double skewed = random.uniform() * random.uniform() * 48;
        const auto expert = layer * 48 + static_cast<int32_t>(skewed);
        if (!std::ranges::contains(lookup.experts, expert)) lookup.experts.push_back(expert);
      }
      lookups.push_back(std::move(lookup));
    }
  }
  return lookups;
}

int64_t replay(TestCache& cache, const std::vector<TestLookup>& lookups) {
  int64_t hits = 0;
  for (const TestLookup& lookup : lookups) hits += std::ssize(cache.lookup(lookup).hits);
  return hits;
}

int64_t hits_of(std::string_view name, const std::vector<TestLookup>& lookups) {
  const auto policy = make_policy(name, {.shape = kShape}).value();
  TestCache cache(kShape, *policy);
  return replay(cache, lookups);
}

TEST(CrfAuto, FollowsThePolicyThatFitsTheText) {
  Random random(test::test_seed());
  CrfAuto policy(kShape);
  TestCache cache(kShape, policy);
  replay(cache, moving(1500, random));
  const Candidate for_moving = policy.followed();
  EXPECT_THAT(for_moving, ::testing::AnyOf(Candidate::kClassLru, Candidate::kCrf2, Candidate::kCrf8,
                                           Candidate::kBlend));
  replay(cache, stationary(3000, random));
  EXPECT_EQ(policy.followed(), Candidate::kCrf128) << policy.explain();
  EXPECT_GT(policy.n_switches(), 0);
  EXPECT_THAT(policy.explain(), ::testing::HasSubstr("following crf:128"));
}

TEST(CrfAuto, HitsAboutWhatItsBestCandidateHits) {
  Random random(test::test_seed());
  for (const auto& lookups : {moving(2500, random), stationary(2500, random)}) {
    int64_t best = 0;
    for (size_t i = 0; i < kCandidates; i++) {
      best = std::max(best, hits_of(candidate_name(static_cast<Candidate>(i)), lookups));
    }
    const int64_t hits = hits_of("crf-auto", lookups);
    EXPECT_GE(static_cast<double>(hits), 0.98 * static_cast<double>(best));
  }
}

// The sample covers this group whole, so a ghost hits what the candidate hits on its own.
TEST(CrfAuto, GhostsOfAWholeSampleHitWhatTheCandidatesHit) {
  static_assert(kShape.n_layers * kShape.n_expert <= CrfAuto::kSampledExperts);
  Random random(test::test_seed());
  const auto lookups = stationary(40, random);
  CrfAuto policy(kShape);
  TestCache cache(kShape, policy);
  for (size_t n_seen = 0; n_seen < lookups.size(); n_seen++) {
    cache.lookup(lookups[n_seen]);
    // Before the first review at the end of a round nothing has decayed.
    if (n_seen != 2) continue;
    const std::vector<TestLookup> seen(lookups.begin(), lookups.begin() + 3);
    for (size_t i = 0; i < kCandidates; i++) {
      const auto candidate = static_cast<Candidate>(i);
      EXPECT_DOUBLE_EQ(policy.ghost_hit_rate(candidate) * 12,
                       static_cast<double>(hits_of(candidate_name(candidate), seen)));
    }
  }
}

TEST(CrfAuto, PrefillIsNotJudged) {
  Random random(test::test_seed());
  CrfAuto policy(kShape);
  TestCache cache(kShape, policy);
  TestLookup prefill{.layer_index = 0, .n_tokens = CrfAuto::kJudgedTokens + 1, .experts = {}};
  for (int32_t expert = 0; expert < 48; expert++) prefill.experts.push_back(expert);
  for (prefill.layer_index = 0; prefill.layer_index < 4; prefill.layer_index++) {
    cache.lookup(prefill, {.max_inserts = 0});
    for (ExpertIndex& expert : prefill.experts) expert += 48;
  }
  for (size_t i = 0; i < kCandidates; i++) {
    EXPECT_EQ(policy.ghost_hit_rate(static_cast<Candidate>(i)), 0);
  }
  EXPECT_EQ(policy.n_switches(), 0);
}

TEST(CrfAuto, SamplesLargeGroups) {
  const PolicyShape large{.n_layers = 8, .n_expert = 256, .n_slots = 300};
  Random random(test::test_seed());
  CrfAuto policy(large);
  TestCache cache(large, policy);
  for (const TestLookup& lookup : test::random_lookups(random, large, 4000, 8, 1)) {
    cache.lookup(lookup);
  }
  EXPECT_THAT(policy.explain(), ::testing::HasSubstr("on 512 of 2048 experts"));
  for (size_t i = 0; i < kCandidates; i++) {
    EXPECT_GT(policy.ghost_hit_rate(static_cast<Candidate>(i)), 0);
    EXPECT_LT(policy.ghost_hit_rate(static_cast<Candidate>(i)), 1);
  }
}

}  // namespace
}  // namespace hotset::policy
