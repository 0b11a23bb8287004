#include "hotset/lanes/lane_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hotset::lanes {
namespace {

using testing::HasSubstr;

TEST(ConcurrentRates, TogetherReachTheirShareOfTheSum) {
  const ConcurrentRates both = concurrent_rates(10, 30, 0);
  EXPECT_DOUBLE_EQ(both.link_gb_per_s, 8.8);
  EXPECT_DOUBLE_EQ(both.cpu_gb_per_s, 26.4);
}

TEST(ConcurrentRates, NeverExceedMemorysRate) {
  // 0.88 * 40 = 35.2 is more than the memory gives; 20 of 40 is half of each.
  const ConcurrentRates both = concurrent_rates(10, 30, 20);
  EXPECT_DOUBLE_EQ(both.link_gb_per_s, 5);
  EXPECT_DOUBLE_EQ(both.cpu_gb_per_s, 15);
  // A memory that is faster than both changes nothing.
  EXPECT_DOUBLE_EQ(concurrent_rates(10, 30, 500).cpu_gb_per_s, 26.4);
}

TEST(CostsFromRates, AreThoseWorkedOutByHand) {
  const LaneRates rates = {.link_gb_per_s = 10,
                           .cpu_gb_per_s = 30,
                           .device_gb_per_s = 200,
                           .memory_gb_per_s = 20,
                           .launch_us = 15,
                           .turn_us = 3,
                           .rows_us = 2,
                           .device_launch_us = 4,
                           .further_token = 0.25};
  const auto costs = costs_from_rates(rates, Bytes{6'000'000});
  ASSERT_TRUE(costs) << costs.error().message;
  // 6 MB: 600 us over 10 GB/s, 1200 at 5; 200 us on the CPU at 30, 400 at 15; 30 on the device.
  EXPECT_DOUBLE_EQ(costs->upload_solo_us.at(6e6), 615);
  EXPECT_DOUBLE_EQ(costs->upload_concurrent_us.at(6e6), 1215);
  EXPECT_DOUBLE_EQ(costs->cpu_solo.turn_us, 3);
  EXPECT_DOUBLE_EQ(costs->cpu_solo.expert_us.at(1), 200);
  EXPECT_DOUBLE_EQ(costs->cpu_solo.expert_us.at(3), 300);
  EXPECT_DOUBLE_EQ(costs->cpu_concurrent.expert_us.at(1), 400);
  EXPECT_DOUBLE_EQ(costs->rows_us, 2);
  EXPECT_DOUBLE_EQ(costs->pairs.turn_us, 4);
  EXPECT_DOUBLE_EQ(costs->pairs.expert_us.at(1), 30);
  EXPECT_DOUBLE_EQ(costs->pairs.expert_us.at(5), 60);
}

TEST(CostsFromRates, RefuseWhatIsOutsideItsRange) {
  const LaneRates good = {.link_gb_per_s = 10, .cpu_gb_per_s = 30, .device_gb_per_s = 200};
  const auto message = [](LaneRates rates, Bytes bytes = Bytes{1000}) {
    const auto costs = costs_from_rates(rates, bytes);
    if (costs) return std::string();
    EXPECT_EQ(costs.error().code, ErrorCode::kInvalidArgument);
    return costs.error().message;
  };
  EXPECT_EQ(message(good), "");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {0.0, -1.0, 1e-12, 1e12, nan, infinity}) {
    LaneRates rates = good;
    rates.link_gb_per_s = bad;
    EXPECT_THAT(message(rates), HasSubstr("link_gb_per_s: found"));
    rates = good;
    rates.cpu_gb_per_s = bad;
    EXPECT_THAT(message(rates), HasSubstr("cpu_gb_per_s: found"));
    rates = good;
    rates.device_gb_per_s = bad;
    EXPECT_THAT(message(rates), HasSubstr("device_gb_per_s: found"));
  }
  for (const double bad : {-1.0, 1e-12, 1e12, nan, infinity}) {
    LaneRates rates = good;
    rates.memory_gb_per_s = bad;
    EXPECT_THAT(message(rates), HasSubstr("memory_gb_per_s: found"));
  }
  for (const double bad : {-1.0, 1e30, nan, infinity}) {
    for (double LaneRates::* field :
         {&LaneRates::launch_us, &LaneRates::turn_us, &LaneRates::rows_us,
          &LaneRates::device_launch_us, &LaneRates::further_token}) {
      LaneRates rates = good;
      rates.*field = bad;
      EXPECT_THAT(message(rates), HasSubstr("found"));
    }
  }
  EXPECT_THAT(message(good, Bytes{0}), HasSubstr("expert_bytes: found 0"));
  EXPECT_THAT(message(good, Bytes{-5}), HasSubstr("expert_bytes: found -5"));
}

TEST(ValidateCosts, NamesTheField) {
  EXPECT_TRUE(validate(LaneCosts{}));
  EXPECT_TRUE(is_valid(LaneCosts{}));
  LaneCosts costs;
  costs.cpu_concurrent.expert_us.per_unit = -1;
  EXPECT_FALSE(is_valid(costs));
  EXPECT_THAT(validate(costs).error().message,
              HasSubstr("cpu_concurrent.expert_us.per_unit: found -1"));
  costs = {};
  costs.rows_us = std::nan("");
  EXPECT_FALSE(is_valid(costs));
  EXPECT_THAT(validate(costs).error().message, HasSubstr("rows_us: found nan"));
}

}  // namespace
}  // namespace hotset::lanes
