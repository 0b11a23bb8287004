#include "hotset/lanes/cache_rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace hotset::lanes {
namespace {

using ::testing::HasSubstr;

std::string error_of(const CacheRules& rules) {
  const Status status = check(rules);
  return status ? std::string("no error") : status.error().message;
}

TEST(CacheRules, AreWithinTheirRanges) {
  EXPECT_TRUE(check({}));
  EXPECT_TRUE(check({.policy = "belady", .cpu_share = 1, .cache_batch = kMaxCacheBatch}));
  EXPECT_TRUE(check({.cpu_share = 0, .cache_batch = 1, .fills = false, .rates = kTypicalRates}));
  EXPECT_THAT(error_of({.policy = "mru"}), HasSubstr("mru"));
  EXPECT_THAT(error_of({.policy = "crf:0"}), HasSubstr("0"));
  for (const double share : {-0.1, 1.5, std::nan("")}) {
    EXPECT_THAT(error_of({.cpu_share = share}), HasSubstr("expected 0 to 1 or auto"));
  }
  for (const int32_t n : {-1, 0, kMaxCacheBatch + 1}) {
    EXPECT_THAT(error_of({.cache_batch = n}), HasSubstr("expected auto or 1 to 65536"));
  }
  EXPECT_THAT(error_of({.rates = LaneRates{}}), HasSubstr("link"));
}

TEST(CacheRules, HaveABatchOfTheirOwnWhereNoneIsAskedFor) {
  EXPECT_EQ(CacheRules{}.most_in_batch(), kDefaultCacheBatch);
  EXPECT_EQ(CacheRules{.cache_batch = 7}.most_in_batch(), 7);
}

}  // namespace
}  // namespace hotset::lanes
