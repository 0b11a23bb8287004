#include "hotset/lanes/estimator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <vector>

#include "hotset/base/random.h"

namespace hotset::lanes {
namespace {

using testing::HasSubstr;

LineEstimator make(const LineEstimatorOptions& options = {}) {
  auto estimator = LineEstimator::create(options);
  EXPECT_TRUE(estimator) << estimator.error().message;
  return *estimator;
}

// The weighted normal equations over every sample, in long double, and the constraint by trying all
// three active sets.
LinearCost exact_line(const std::deque<LineSample>& samples, long double half_life) {
  long double w_sum = 0, x_sum = 0, y_sum = 0;
  std::vector<long double> weights;
  for (size_t i = 0; i < samples.size(); ++i) {
    const long double w = exp2l(-static_cast<long double>(samples.size() - 1 - i) / half_life);
    weights.push_back(w);
    w_sum += w;
    x_sum += w * static_cast<long double>(samples[i].x);
    y_sum += w * static_cast<long double>(samples[i].y);
  }
  const long double x_mean = x_sum / w_sum;
  const long double y_mean = y_sum / w_sum;
  long double xx = 0, xy = 0, raw_xx = 0, raw_xy = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const auto x = static_cast<long double>(samples[i].x);
    const auto y = static_cast<long double>(samples[i].y);
    xx += weights[i] * (x - x_mean) * (x - x_mean);
    xy += weights[i] * (x - x_mean) * (y - y_mean);
    raw_xx += weights[i] * x * x;
    raw_xy += weights[i] * x * y;
  }
  const auto error = [&](long double a, long double b) {
    long double sum = 0;
    for (size_t i = 0; i < samples.size(); ++i) {
      const long double rest =
          static_cast<long double>(samples[i].y) - a - b * static_cast<long double>(samples[i].x);
      sum += weights[i] * rest * rest;
    }
    return sum;
  };
  const long double b = xy / xx;
  const long double a = y_mean - b * x_mean;
  if (a >= 0 && b >= 0) return {static_cast<double>(a), static_cast<double>(b)};
  const long double b_origin = raw_xy / raw_xx;
  if (error(y_mean, 0) <= error(0, b_origin)) return {static_cast<double>(y_mean), 0};
  return {0, static_cast<double>(b_origin)};
}

TEST(LineEstimator, FindsAnExactLine) {
  LineEstimator estimator = make({.half_life = 1});
  ASSERT_TRUE(estimator.observe(1, 13));
  ASSERT_TRUE(estimator.observe(3, 19));
  EXPECT_DOUBLE_EQ(estimator.fit().fixed, 10);
  EXPECT_DOUBLE_EQ(estimator.fit().per_unit, 3);
  EXPECT_DOUBLE_EQ(estimator.weight(), 1.5);
}

TEST(LineEstimator, WeighsSamplesAsWorkedOutByHand) {
  // Half-life 1: weights 1/4, 1/2, 1, sum 7/4; means 20/7 and 12/7;
  // S_xx = 18 - 5 * 5 / (7/4) = 26/7, S_xy = 10 - 5 * 3 / (7/4) = 10/7.
  LineEstimator estimator = make({.half_life = 1});
  ASSERT_TRUE(estimator.observe(0, 0));
  ASSERT_TRUE(estimator.observe(2, 2));
  ASSERT_TRUE(estimator.observe(4, 2));
  EXPECT_DOUBLE_EQ(estimator.fit().per_unit, 5.0 / 13);
  EXPECT_DOUBLE_EQ(estimator.fit().fixed, 8.0 / 13);
}

TEST(LineEstimator, SeedsCountAlike) {
  LineEstimator estimator = make({.half_life = 1});
  const std::vector<LineSample> samples = {{0, 1}, {0, 3}, {2, 6}, {2, 8}};
  ASSERT_TRUE(estimator.seed(samples));
  EXPECT_DOUBLE_EQ(estimator.weight(), 4);
  EXPECT_DOUBLE_EQ(estimator.fit().fixed, 2);
  EXPECT_DOUBLE_EQ(estimator.fit().per_unit, 2.5);
}

TEST(LineEstimator, KeepsBothNumbersAboveZero) {
  // Falling: the best line that does not fall is flat, at the mean.
  LineEstimator falling = make();
  ASSERT_TRUE(falling.seed(std::vector<LineSample>{{1, 9}, {2, 5}, {3, 1}}));
  EXPECT_EQ(falling.fit(), (LinearCost{5, 0}));
  // Steep: the best line that does not start below zero goes through it, sum xy / sum xx.
  LineEstimator steep = make();
  ASSERT_TRUE(steep.seed(std::vector<LineSample>{{1, 0}, {2, 3}, {3, 6}}));
  EXPECT_EQ(steep.fit().fixed, 0);
  EXPECT_DOUBLE_EQ(steep.fit().per_unit, 24.0 / 14);
}

TEST(LineEstimator, IsThePriorUntilSomethingIsSeen) {
  const LinearCost prior = {12, 0.5};
  LineEstimator estimator = make({.prior = prior});
  EXPECT_EQ(estimator.fit(), prior);
  EXPECT_EQ(estimator.weight(), 0);
  ASSERT_TRUE(estimator.seed({}));
  EXPECT_EQ(estimator.fit(), prior);
}

TEST(LineEstimator, ScalesWhatItKnewWhenAllSamplesHaveOneX) {
  LineEstimator estimator = make({.prior = {10, 2}});
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(estimator.observe(5, 60));  // the prior says 20 there
  EXPECT_NEAR(estimator.fit().fixed, 30, 1e-9);
  EXPECT_NEAR(estimator.fit().per_unit, 6, 1e-9);

  LineEstimator unknown = make();
  ASSERT_TRUE(unknown.observe(5, 60));
  EXPECT_EQ(unknown.fit(), (LinearCost{0, 12}));

  LineEstimator nothing = make({.prior = {0, 2}});
  ASSERT_TRUE(nothing.observe(0, 7));
  EXPECT_EQ(nothing.fit(), (LinearCost{7, 2}));
}

TEST(LineEstimator, KeepsTheLineOfItsSamplesOnceTheyStandStill) {
  LineEstimator estimator = make({.prior = {999, 0.001}});
  for (int i = 0; i < 500; ++i) ASSERT_TRUE(estimator.observe(1 + i % 8, 10 + 20 * (1 + i % 8)));
  EXPECT_NEAR(estimator.fit().fixed, 10, 1e-6);
  // A million lookups of one expert each, at the same rate: still the same line.
  for (int i = 0; i < 1'000'000; ++i) ASSERT_TRUE(estimator.observe(1, 30));
  EXPECT_NEAR(estimator.fit().fixed, 10, 1e-6);
  EXPECT_NEAR(estimator.fit().per_unit, 20, 1e-6);
  // Three times slower, still one expert each: the whole line is.
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(estimator.observe(1, 90));
  EXPECT_NEAR(estimator.fit().fixed, 30, 1e-6);
  EXPECT_NEAR(estimator.fit().per_unit, 60, 1e-6);
}

TEST(LineEstimator, FollowsARateThatDropsToATenth) {
  LineEstimator estimator = make();
  Random random(5);
  const auto observe = [&](double rate, int n) {
    for (int i = 0; i < n; ++i) {
      const double x = 1 + static_cast<double>(random.below(8));
      ASSERT_TRUE(estimator.observe(x, 10 + x / rate));
    }
  };
  observe(1, 1000);
  EXPECT_NEAR(estimator.fit().per_unit, 1, 1e-6);
  observe(0.1, 64);
  EXPECT_GT(estimator.fit().per_unit, 4);  // half of the weight is new
  observe(0.1, 64 * 8);
  EXPECT_NEAR(estimator.fit().per_unit, 10, 0.1);
}

TEST(LineEstimator, EqualsTheExactNormalEquations) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const double half_life = seed % 3 == 0 ? 4 : 64;
    LineEstimator estimator = make({.half_life = half_life});
    // Slopes and intercepts of either sign of the true line, so that every active set comes up.
    const double true_a = 100 * (random.uniform() - 0.3);
    const double true_b = 10 * (random.uniform() - 0.3);
    const double x_scale = std::exp(20 * (random.uniform() - 0.3));
    std::deque<LineSample> samples;
    for (int i = 0; i < 400; ++i) {
      const double x = x_scale * (1 + static_cast<double>(random.below(10)));
      const double y = std::max(0.0, 50 + true_a + true_b * x / x_scale + 5 * random.normal());
      samples.push_back({x, y});
      ASSERT_TRUE(estimator.observe(x, y));
      if (i < 20 || i % 50 != 0) continue;
      const LinearCost exact = exact_line(samples, half_life);
      ASSERT_NEAR(estimator.fit().fixed, exact.fixed, 1e-9 * 100) << i;
      ASSERT_NEAR(estimator.fit().per_unit * x_scale, exact.per_unit * x_scale, 1e-9 * 100) << i;
      ASSERT_GE(estimator.fit().fixed, 0);
      ASSERT_GE(estimator.fit().per_unit, 0);
    }
  }
}

TEST(LineEstimator, StaysExactOverMillionsOfUpdates) {
  constexpr uint64_t kSeed = 3;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  LineEstimator estimator = make();
  // Far from the origin with little spread: what naive sums of squares cannot hold.
  std::deque<LineSample> recent;
  for (int i = 0; i < 2'000'000; ++i) {
    const double x = 1e9 + 1e7 * random.uniform();
    const double y = 14 + x * 8e-5 + random.normal();
    ASSERT_TRUE(estimator.observe(x, y));
    recent.push_back({x, y});
    if (recent.size() > 4096) recent.pop_front();  // 64 half-lives: older samples weigh nothing
  }
  const LinearCost exact = exact_line(recent, 64);
  EXPECT_NEAR(estimator.fit().per_unit / exact.per_unit, 1, 1e-6);
  EXPECT_NEAR(estimator.fit().at(1.005e9) / exact.at(1.005e9), 1, 1e-12);
  EXPECT_NEAR(estimator.weight(), 1 / (1 - std::exp2(-1.0 / 64)), 1e-6);
}

TEST(LineEstimator, SurvivesAnyFiniteSample) {
  Random random(17);
  LineEstimator estimator = make({.prior = {1, 1}});
  const double values[] = {0, 1e-300, 1e-100, 1, 1e18, 1e100};
  for (int i = 0; i < 20000; ++i) {
    ASSERT_TRUE(estimator.observe(values[random.below(6)], values[random.below(6)]));
    ASSERT_GE(estimator.fit().fixed, 0) << i;
    ASSERT_GE(estimator.fit().per_unit, 0) << i;
  }
}

TEST(LineEstimator, RefusesWhatIsOutsideItsRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -1.0, nan, infinity}) {
    EXPECT_THAT(LineEstimator::create({.half_life = bad}).error().message,
                HasSubstr("half_life: found"));
  }
  for (const double bad : {-1.0, nan, infinity}) {
    EXPECT_THAT(LineEstimator::create({.prior = {bad, 0}}).error().message,
                HasSubstr("prior: found"));
    EXPECT_THAT(LineEstimator::create({.prior = {0, bad}}).error().message,
                HasSubstr("prior: found"));
  }
  LineEstimator estimator = make();
  ASSERT_TRUE(estimator.observe(2, 6));
  const LinearCost before = estimator.fit();
  for (const double bad : {-1.0, nan, infinity, 1e200}) {
    EXPECT_FALSE(estimator.observe(bad, 1));
    EXPECT_FALSE(estimator.observe(1, bad));
    EXPECT_FALSE(estimator.seed(std::vector<LineSample>{{1, 1}, {bad, 1}}));
  }
  EXPECT_EQ(estimator.fit(), before);
  EXPECT_EQ(estimator.weight(), 1);
}

}  // namespace
}  // namespace hotset::lanes
