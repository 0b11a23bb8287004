#include "hotset/measure/speed_bound.h"

#include <gtest/gtest.h>

namespace hotset::measure {
namespace {

constexpr MachineRates kRates = {.link = 10, .cpu = 15, .device = 200};

TEST(SpeedBound, IsTheSlowerOfHitsAndMissesAndTheDenseWeights) {
  // 88 MB of misses at 0.88 * 25 GB/s are 4000 us; 400 MB of hits at 200 GB/s 2000; 200 MB dense
  // 1000.
  const ReadBytes bytes = {.hits = 400e6, .misses = 88e6, .dense = 200e6};
  EXPECT_DOUBLE_EQ(bound_us_per_token(bytes, kRates), 5000);
  EXPECT_DOUBLE_EQ(bound_us_per_token({.hits = 1600e6, .misses = 88e6, .dense = 200e6}, kRates),
                   9000);
}

TEST(SpeedBound, HostMemoryLimitsBothLanes) {
  const ReadBytes bytes = {.misses = 88e6};
  MachineRates rates = kRates;
  rates.memory = 11;
  EXPECT_DOUBLE_EQ(bound_us_per_token(bytes, rates), 8000);
  rates.memory = 100;
  EXPECT_DOUBLE_EQ(bound_us_per_token(bytes, rates), 4000);
}

TEST(SpeedBound, IsNotToldWhereARateIsMissing) {
  EXPECT_EQ(bound_us_per_token({}, kRates), 0);
  EXPECT_EQ(bound_us_per_token({.dense = 1}, {.link = 1, .cpu = 1}), 0);
  EXPECT_EQ(bound_us_per_token({.misses = 1}, {.device = 1}), 0);
  // What is not read needs no rate.
  EXPECT_GT(bound_us_per_token({.misses = 1}, {.cpu = 1}), 0);
  EXPECT_GT(bound_us_per_token({.hits = 1}, {.device = 1}), 0);
}

}  // namespace
}  // namespace hotset::measure
