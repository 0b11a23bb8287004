#include "hotset/lanes/cache_prediction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hotset::lanes {
namespace {

using testing::HasSubstr;

constexpr Bytes kExpert{2'000'000};

LaneCosts costs_of(const LaneRates& rates) {
  auto costs = costs_from_rates(rates, kExpert);
  return costs.has_value() ? *costs : LaneCosts();
}

TEST(CachePrediction, TypicalHitRatesGrowWithTheSlots) {
  EXPECT_EQ(typical_hit_rate(0), 0);
  EXPECT_EQ(typical_hit_rate(1), 1);
  EXPECT_NEAR(typical_hit_rate(0.1), 0.41, 0.005);
  EXPECT_LT(typical_hit_rate(0.1), typical_hit_rate(0.2));
}

TEST(CachePrediction, IsTheHitsAloneIfAllAreResident) {
  // 8 experts of 2 MB at 200 GB/s: 80 us.
  const LaneCosts costs =
      costs_of({.link_gb_per_s = 12, .cpu_gb_per_s = 20, .device_gb_per_s = 200});
  EXPECT_NEAR(*predicted_layer_us(costs, kExpert, 8, 1), 80, 1e-9);
}

TEST(CachePrediction, LiesBetweenTheSplitsOfNeighbouringNumbersOfMisses) {
  // The CPU is far faster than the link, the device takes nothing: each miss is 100 us of the CPU.
  const LaneCosts costs =
      costs_of({.link_gb_per_s = 0.001, .cpu_gb_per_s = 20, .device_gb_per_s = 1e9});
  for (const double share : {0.05, 0.1, 0.3}) {
    EXPECT_NEAR(*predicted_layer_us(costs, kExpert, 8, share),
                8 * (1 - typical_hit_rate(share)) * 100, 1e-3);
  }
}

TEST(CachePrediction, IsNeverMoreThanEverythingOnTheCpu) {
  const LaneCosts costs =
      costs_of({.link_gb_per_s = 0.1, .cpu_gb_per_s = 20, .device_gb_per_s = 0.1});
  EXPECT_LE(*predicted_layer_us(costs, kExpert, 8, 0.5), 8 * 100 + 1e-9);
}

TEST(CachePrediction, RefusesWhatIsOutOfRange) {
  EXPECT_THAT(predicted_layer_us({}, kExpert, 0, 0.5).error().message, HasSubstr("n_used"));
  EXPECT_THAT(predicted_layer_us({}, kExpert, 8, 1.5).error().message, HasSubstr("slot_share"));
}

}  // namespace
}  // namespace hotset::lanes
