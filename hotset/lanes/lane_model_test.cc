#include "hotset/lanes/lane_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "hotset/base/random.h"

namespace hotset::lanes {
namespace {

using testing::HasSubstr;

constexpr Bytes kExpert{1'000'000};

LaneModel make(LaneModelOptions options = {}) {
  options.expert_bytes = kExpert;
  auto model = LaneModel::create(options);
  EXPECT_TRUE(model) << model.error().message;
  return *model;
}

// `n` lookups of 1 to 8 experts on a link of `gb_per_s` and 10 us per launch.
void upload(LaneModel& model, LaneUse use, double gb_per_s, int n) {
  for (int i = 0; i < n; ++i) {
    const Bytes bytes = kExpert * (1 + i % 8);
    const double us = 10 + static_cast<double>(bytes.count) / (1000 * gb_per_s);
    ASSERT_TRUE(model.observe_upload(use, bytes, us));
  }
}

// The same for the CPU lane, 5 us a turn.
void compute(LaneModel& model, LaneUse use, double gb_per_s, int n) {
  for (int i = 0; i < n; ++i) {
    const double work = 1 + i % 8;
    const double us = 5 + work * static_cast<double>(kExpert.count) / (1000 * gb_per_s);
    ASSERT_TRUE(model.observe_cpu(use, work, us));
  }
}

double upload_gb(const LinearCost& line) { return 1e-3 / line.per_unit; }
double cpu_gb(const ExpertCost& cost) {
  return 1e-3 * static_cast<double>(kExpert.count) / cost.expert_us.at(1);
}

TEST(LaneModel, IsThePriorBeforeItHasSeenAnything) {
  LaneModelOptions options;
  options.prior = *costs_from_rates({.link_gb_per_s = 10,
                                     .cpu_gb_per_s = 30,
                                     .device_gb_per_s = 200,
                                     .launch_us = 15,
                                     .turn_us = 3,
                                     .rows_us = 2,
                                     .device_launch_us = 4},
                                    kExpert);
  const LaneModel model = make(options);
  EXPECT_DOUBLE_EQ(model.costs().upload_solo_us.at(1e6), 115);
  EXPECT_DOUBLE_EQ(model.costs().cpu_solo.expert_us.at(1), 1000.0 / 30);
  EXPECT_DOUBLE_EQ(model.costs().pairs.turn_us, 4);
  EXPECT_DOUBLE_EQ(model.costs().rows_us, 2);
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 8.8, 1e-9);
  EXPECT_NEAR(cpu_gb(model.costs().cpu_concurrent), 26.4, 1e-9);
  EXPECT_NEAR(model.no_cache_us(8), 3 + 8 * 1000.0 / 30 + 2, 1e-9);
  EXPECT_EQ(model.no_cache_us(0), 0);
}

TEST(LaneModel, DerivesConcurrentRatesUntilTheyAreMeasured) {
  LaneModel model = make();
  upload(model, LaneUse::kSolo, 10, 64);
  compute(model, LaneUse::kSolo, 30, 64);
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 8.8, 1e-6);
  EXPECT_NEAR(cpu_gb(model.costs().cpu_concurrent), 26.4, 1e-6);
  // Three measurements are not enough, eight are.
  upload(model, LaneUse::kConcurrent, 5, 3);
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 8.8, 1e-6);
  upload(model, LaneUse::kConcurrent, 5, 5);
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 5, 1e-3);
  EXPECT_NEAR(upload_gb(model.costs().upload_solo_us), 10, 1e-6);
}

TEST(LaneModel, HoldsBothLanesToMemorysRate) {
  LaneModel model = make({.memory_gb_per_s = 20});
  upload(model, LaneUse::kSolo, 10, 64);
  compute(model, LaneUse::kSolo, 30, 64);
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 5, 1e-6);
  EXPECT_NEAR(cpu_gb(model.costs().cpu_concurrent), 15, 1e-6);
}

TEST(LaneModel, IsNeverFasterWithTheOtherLaneThanAlone) {
  LaneModel model = make();
  upload(model, LaneUse::kSolo, 10, 32);
  upload(model, LaneUse::kConcurrent, 20, 16);  // the link recovered; seen last, so believed
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 20, 1e-3);
  EXPECT_NEAR(upload_gb(model.costs().upload_solo_us), 20, 1e-3);
  upload(model, LaneUse::kSolo, 10, 1);  // it did not
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 10, 1e-3);
  EXPECT_NEAR(upload_gb(model.costs().upload_solo_us), 10, 1e-3);
}

TEST(LaneModel, TriesAgainWhatWasGivenUpUnderOtherConditions) {
  LaneModel model = make();
  upload(model, LaneUse::kSolo, 10, 64);
  upload(model, LaneUse::kConcurrent, 1, 64);
  upload(model, LaneUse::kSolo, 10, 63);
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 1, 1e-3);
  upload(model, LaneUse::kSolo, 10, 1);
  EXPECT_NEAR(upload_gb(model.costs().upload_concurrent_us), 8.8, 1e-3);
  // And the other way round: never seen alone since.
  upload(model, LaneUse::kConcurrent, 0.5, 1000);
  EXPECT_NEAR(upload_gb(model.costs().upload_solo_us), 0.5 / 0.88, 1e-3);
}

TEST(LaneModel, FollowsALinkThatDropsToATenth) {
  LaneModel model = make();
  upload(model, LaneUse::kSolo, 10, 1000);
  upload(model, LaneUse::kSolo, 1, 640);
  EXPECT_NEAR(upload_gb(model.costs().upload_solo_us), 1, 0.01);
}

TEST(LaneModel, CostsFurtherTokensAsTheCalibrationSays) {
  LaneModel model = make({.cpu_further_token = 0.25, .device_further_token = 0.5});
  for (int i = 0; i < 100; ++i) {
    const double work = expert_work(1 + i % 4, 0.25) + expert_work(2, 0.25);
    ASSERT_TRUE(model.observe_cpu(LaneUse::kSolo, work, 7 + 40 * work));
    ASSERT_TRUE(model.observe_pairs(work, 3 + 8 * work));
    ASSERT_TRUE(model.observe_hits(work, 2 + 6 * work));
  }
  EXPECT_NEAR(model.costs().cpu_solo.turn_us, 7, 1e-6);
  EXPECT_NEAR(model.costs().cpu_solo.expert_us.at(1), 40, 1e-6);
  EXPECT_NEAR(model.costs().cpu_solo.expert_us.at(5), 80, 1e-6);
  EXPECT_NEAR(model.costs().pairs.turn_us, 3, 1e-6);
  EXPECT_NEAR(model.costs().pairs.expert_us.at(3), 16, 1e-6);
  EXPECT_NEAR(model.hit_us(4), 26, 1e-6);
  EXPECT_EQ(model.hit_us(0), 0);
}

TEST(LaneModel, AveragesWhatHasNoSlope) {
  LaneModel model = make();
  ASSERT_TRUE(model.observe_shared(40));
  ASSERT_TRUE(model.observe_rows(6));
  EXPECT_EQ(model.shared_us(), 40);
  EXPECT_EQ(model.costs().rows_us, 6);
}

TEST(LaneModel, SaysWhatItKnows) {
  LaneModel model = make();
  EXPECT_EQ(model.describe(),
            "link no time + 0.0 us (no time with the CPU), CPU no time + 0.0 us (no time with the "
            "link)");
  upload(model, LaneUse::kSolo, 10, 64);
  compute(model, LaneUse::kSolo, 30, 64);
  EXPECT_EQ(model.describe(),
            "link 10.0 GB/s + 10.0 us (8.8 GB/s with the CPU), CPU 30.0 GB/s + 5.0 us (26.4 GB/s "
            "with the link)");
}

TEST(LaneModel, AlwaysHasCostsThatTheChooserTakes) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    LaneModel model = make({.memory_gb_per_s = seed % 2 == 0 ? 0.0 : 20.0});
    const auto any_us = [&] {
      constexpr double kTimes[] = {0, 1e-320, 1e-12, 1, 100, 1e6, 1e12};
      return kTimes[random.below(7)];
    };
    for (int i = 0; i < 2000; ++i) {
      const LaneUse use = random.below(2) == 0 ? LaneUse::kSolo : LaneUse::kConcurrent;
      const auto amount = static_cast<int64_t>(1 + random.below(uint64_t{1} << random.below(60)));
      switch (random.below(4)) {
        case 0:
          ASSERT_TRUE(model.observe_upload(use, Bytes{amount}, any_us()));
          break;
        case 1:
          ASSERT_TRUE(model.observe_cpu(use, 1 + static_cast<double>(amount % 64), any_us()));
          break;
        case 2:
          ASSERT_TRUE(model.observe_pairs(1 + static_cast<double>(amount % 64), any_us()));
          break;
        default:
          ASSERT_TRUE(model.observe_rows(any_us()));
      }
      const Status status = validate(model.costs());
      ASSERT_TRUE(status) << status.error().message << " after " << i;
    }
  }
}

TEST(LaneModel, RefusesWhatIsOutsideItsRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(LaneModel::create({}).error().message, HasSubstr("expert_bytes: found 0"));
  EXPECT_FALSE(LaneModel::create({.expert_bytes = kExpert, .half_life = 0}));
  EXPECT_FALSE(LaneModel::create({.expert_bytes = kExpert, .memory_gb_per_s = -1}));
  EXPECT_FALSE(LaneModel::create({.expert_bytes = kExpert, .cpu_further_token = 2}));
  EXPECT_FALSE(LaneModel::create({.expert_bytes = kExpert, .device_further_token = nan}));
  EXPECT_FALSE(LaneModel::create({.expert_bytes = kExpert, .min_concurrent_weight = nan}));
  LaneModelOptions options = {.expert_bytes = kExpert};
  options.prior.rows_us = -1;
  EXPECT_THAT(LaneModel::create(options).error().message, HasSubstr("rows_us: found -1"));

  LaneModel model = make();
  for (const double bad : {-1.0, nan, std::numeric_limits<double>::infinity(), 1e15}) {
    EXPECT_THAT(model.observe_upload(LaneUse::kSolo, kExpert, bad).error().message,
                HasSubstr("upload (bytes): found"));
    EXPECT_FALSE(model.observe_cpu(LaneUse::kSolo, 1, bad));
    EXPECT_FALSE(model.observe_hits(1, bad));
    EXPECT_FALSE(model.observe_pairs(1, bad));
    EXPECT_FALSE(model.observe_shared(bad));
    EXPECT_FALSE(model.observe_rows(bad));
  }
  EXPECT_FALSE(model.observe_upload(LaneUse::kSolo, Bytes{0}, 1));
  EXPECT_FALSE(model.observe_cpu(LaneUse::kSolo, 0, 1));
  EXPECT_FALSE(model.observe_hits(nan, 1));
  EXPECT_EQ(model.costs(), LaneCosts{});
}

}  // namespace
}  // namespace hotset::lanes
