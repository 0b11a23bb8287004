#include "hotset/lanes/upload_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "hotset/base/random.h"

namespace hotset::lanes {
namespace {

using testing::HasSubstr;

TEST(DecayedMean, HalvesWeightsOverItsHalfLife) {
  DecayedMean mean(1, 0, 0);
  EXPECT_EQ(mean.weight(), 0);
  mean.observe(8);
  EXPECT_EQ(mean.mean(), 8);
  mean.observe(2);  // (8 / 2 + 2) / 1.5
  EXPECT_DOUBLE_EQ(mean.mean(), 4);
  mean.observe(11);  // (8 / 4 + 2 / 2 + 11) / 1.75
  EXPECT_DOUBLE_EQ(mean.mean(), 8);
  EXPECT_DOUBLE_EQ(mean.weight(), 1.75);
}

TEST(DecayedMean, GivesThePriorItsWeight) {
  DecayedMean mean(1, 10, 2);
  EXPECT_EQ(mean.mean(), 10);
  mean.observe(4);  // (10 * 1 + 4) / 2
  EXPECT_DOUBLE_EQ(mean.mean(), 7);
}

TEST(DecayedMean, EqualsTheWeightedSum) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  DecayedMean mean(64, 0, 0);
  std::vector<double> values;
  for (int i = 0; i < 2000; ++i) {
    values.push_back(1e6 + random.normal());
    mean.observe(values.back());
  }
  long double sum = 0;
  long double weights = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const long double weight = exp2l(-static_cast<long double>(values.size() - 1 - i) / 64);
    sum += weight * static_cast<long double>(values[i]);
    weights += weight;
  }
  EXPECT_NEAR(mean.mean(), static_cast<double>(sum / weights), 1e-6);
  EXPECT_NEAR(mean.weight(), static_cast<double>(weights), 1e-9);
}

TEST(UsesPerToken, IsOneForAnExpertThatEveryTokenUses) {
  for (const double half_life : {1.0, 8.0, 128.0, 1e9}) {
    double crf = 0;
    // 60 half-lives of use, in closed form: the geometric sum's limit.
    crf = 1 / -std::expm1(-std::log(2.0) / half_life);
    EXPECT_NEAR(uses_per_token(crf, half_life), 1, 1e-12) << half_life;
  }
  EXPECT_DOUBLE_EQ(uses_per_token(1, 1), 0.5);
  EXPECT_EQ(uses_per_token(0, 128), 0);
}

TEST(UploadValue, IsTheProductWorkedOutByHand) {
  const auto value = UploadValue::create({.saving_us = 50, .residency_tokens = 200});
  ASSERT_TRUE(value);
  EXPECT_DOUBLE_EQ(value->value_us(0.25, 0.0), 50 * 200 * 0.25);
  EXPECT_DOUBLE_EQ(value->value_us(0.25, 0.125), 50 * 200 * 0.125);
  EXPECT_EQ(value->value_us(0.125, 0.25), 0);
  EXPECT_EQ(value->value_us(0.25, 0.25), 0);
}

TEST(UploadValue, FollowsWhatIsObserved) {
  auto value = UploadValue::create({.saving_us = 50, .residency_tokens = 200});
  ASSERT_TRUE(value);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(value->observe_saving(80));
    ASSERT_TRUE(value->observe_residency(1000));
  }
  EXPECT_NEAR(value->saving_us(), 80, 1e-6);
  EXPECT_NEAR(value->residency_tokens(), 1000, 1e-4);
}

TEST(UploadValue, IsNothingWhileMissesAreNotSlowerThanHits) {
  auto value = UploadValue::create({.saving_us = 1, .residency_tokens = 200, .prior_weight = 1});
  ASSERT_TRUE(value);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(value->observe_saving(-30));
  EXPECT_EQ(value->saving_us(), 0);
  EXPECT_EQ(value->value_us(1, 0), 0);
}

TEST(UploadValue, StaysWithinWhatTheChooserTakes) {
  const auto value = UploadValue::create({.saving_us = kMaxCost, .residency_tokens = kMaxCost});
  ASSERT_TRUE(value);
  EXPECT_EQ(value->value_us(1, 0), kMaxCost);
  EXPECT_EQ(value->value_us(std::nan(""), 0), 0);
}

TEST(UploadValue, RefusesWhatIsOutsideItsRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(UploadValue::create({.saving_us = -1}).error().message,
              HasSubstr("saving_us: found -1"));
  EXPECT_THAT(UploadValue::create({.residency_tokens = nan}).error().message,
              HasSubstr("residency_tokens: found nan"));
  EXPECT_THAT(UploadValue::create({.half_life_savings = 0}).error().message,
              HasSubstr("half_life_savings: found 0"));
  EXPECT_THAT(UploadValue::create({.half_life_residencies = nan}).error().message,
              HasSubstr("half_life_residencies: found nan"));
  auto value = UploadValue::create({.saving_us = 50, .residency_tokens = 200});
  ASSERT_TRUE(value);
  EXPECT_FALSE(value->observe_saving(nan));
  EXPECT_FALSE(value->observe_saving(-std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(value->observe_residency(-1));
  EXPECT_FALSE(value->observe_residency(nan));
  EXPECT_EQ(value->saving_us(), 50);
  EXPECT_EQ(value->residency_tokens(), 200);
}

TEST(AdmitsFill, WantsABetterScoreAndAnIdleLink) {
  const FillState good = {.p = 0.5, .p_victim = 0.25, .copy_us = 10, .layer_us = 100};
  EXPECT_TRUE(admits_fill(good));
  FillState state = good;
  state.link_is_idle = false;
  EXPECT_FALSE(admits_fill(state));
  state = good;
  state.p = 0.25;
  EXPECT_FALSE(admits_fill(state));
  state.slot_is_empty = true;
  EXPECT_TRUE(admits_fill(state));
}

TEST(AdmitsFill, KeepsAtMostALayerTimeOutstanding) {
  FillState state = {.p = 1, .outstanding_us = 90, .copy_us = 10, .layer_us = 100};
  EXPECT_TRUE(admits_fill(state));
  state.outstanding_us = 91;
  EXPECT_FALSE(admits_fill(state));
  // One is always let in, or a slow link would never fill the cache.
  state = {.p = 1, .outstanding_us = 0, .copy_us = 5000, .layer_us = 100};
  EXPECT_TRUE(admits_fill(state));
}

}  // namespace
}  // namespace hotset::lanes
