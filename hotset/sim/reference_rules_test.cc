#include "hotset/sim/reference_rules.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>

namespace hotset::sim {
namespace {

trace::TraceLookup lookup_of(const std::vector<int32_t>& ids, int32_t k) {
  return {.layer = 0, .experts_per_token = k, .ids = ids};
}

TEST(ReferenceZeroSlots, OnlyWithAShareAndAtMost64) {
  EXPECT_EQ(reference_zero_slots(0, 8), 0);
  EXPECT_EQ(reference_zero_slots(0.01, 8), 8);
  EXPECT_EQ(reference_zero_slots(1, 100), 64);
}

TEST(ReferenceBypasses, WhatMightNotFit) {
  const std::vector<int32_t> ids(8, 0);
  EXPECT_FALSE(reference_bypasses(lookup_of(ids, 4), 64, 8));
  EXPECT_TRUE(reference_bypasses(lookup_of(ids, 4), 64, 7));
  EXPECT_FALSE(reference_bypasses(lookup_of(ids, 4), 6, 7));  // only 6 experts there are
  EXPECT_TRUE(reference_bypasses(lookup_of(ids, 4), 64, 0));
  EXPECT_FALSE(reference_bypasses(lookup_of(std::vector<int32_t>(32, 0), 1), 8, 8));
  EXPECT_TRUE(reference_bypasses(lookup_of(std::vector<int32_t>(33, 0), 1), 8, 8));
}

TEST(ZeroSlotLimit, KeepsAllOfOneToken) {
  ZeroSlotLimit limit(4);
  const std::vector<int32_t> ids = {3, 1, 2, 0};
  std::vector<int32_t> experts = {2, 3, 1, 0};
  EXPECT_EQ(limit.apply(ids, 4, experts), 4U);
  EXPECT_EQ(experts, (std::vector<int32_t>{2, 3, 1, 0}));
}

TEST(ZeroSlotLimit, SwapsWithTheLastOneNotTried) {
  // With two zero slots: 0 takes slot 0 of both tokens, 1 slot 1 of both; 2 finds none and changes
  // places with 4, which has none either; then 3 has none.
  ZeroSlotLimit limit(2);
  const std::vector<int32_t> ids = {0, 1, 2, 3, 0, 1, 2, 4};
  std::vector<int32_t> experts = {0, 1, 2, 3, 4};
  EXPECT_EQ(limit.apply(ids, 4, experts), 2U);
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 3, 4, 2}));
}

TEST(ZeroSlotLimit, SharesASlotBetweenExpertsOfDifferentTokens) {
  ZeroSlotLimit limit(1);
  const std::vector<int32_t> ids = {0, 1, 2, 3};
  std::vector<int32_t> experts = {0, 2, 3};
  EXPECT_EQ(limit.apply(ids, 2, experts), 2U);
  EXPECT_EQ(experts, (std::vector<int32_t>{0, 2, 3}));
}

TEST(ZeroSlotLimit, CountsBeyondOneWordOfBits) {
  std::vector<int32_t> ids(200);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<int32_t> experts = ids;
  EXPECT_EQ(ZeroSlotLimit(150).apply(ids, 200, experts), 150U);
  EXPECT_EQ(ZeroSlotLimit(0).apply(ids, 200, experts), 0U);
  EXPECT_EQ(std::set<int32_t>(experts.begin(), experts.end()).size(), 200U);
}

}  // namespace
}  // namespace hotset::sim
