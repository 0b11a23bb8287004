#include "hotset/policy/future.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace hotset::policy {
namespace {

TEST(RecordedFuture, SaysWhenAnExpertIsUsedNext) {
  RecordedFuture future(4);
  ASSERT_TRUE(future.append(std::vector<ExpertIndex>{0, 1, 0}));
  ASSERT_TRUE(future.append(std::vector<ExpertIndex>{2}));
  ASSERT_TRUE(future.append(std::vector<ExpertIndex>{0}));
  future.rewind();
  EXPECT_EQ(future.n_lookups(), 3U);
  EXPECT_EQ(future.now(), 0U);
  EXPECT_EQ(future.next_use(0).lookup, 2U) << "not the use of the lookup being planned";
  EXPECT_EQ(future.next_use(1).lookup, kNeverUsed);
  future.advance();
  EXPECT_EQ(future.next_use(2).lookup, kNeverUsed);
  future.advance();
  EXPECT_EQ(future.now(), 2U);
  EXPECT_EQ(future.next_use(0).lookup, kNeverUsed);
  future.advance();
  EXPECT_EQ(future.next_use(0).lookup, kNeverUsed) << "beyond the recording nothing is used";
  future.rewind();
  EXPECT_EQ(future.next_use(0).lookup, 2U);
}

TEST(RecordedFuture, RanksExpertsOfOneLookupByWhatFollows) {
  RecordedFuture future(6);
  const std::vector<std::vector<ExpertIndex>> lookups = {
      {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}, {5}, {2, 3, 1}, {3}, {1}};
  for (const auto& experts : lookups) ASSERT_TRUE(future.append(experts));
  future.rewind();
  // All are used by lookup 1; from there 3, 1 and 2 by lookup 3, and from there 3 first, then 1.
  for (ExpertIndex expert = 0; expert < 5; expert++) {
    EXPECT_EQ(future.next_use(expert).lookup, 1U);
  }
  EXPECT_LT(future.next_use(3), future.next_use(1));
  EXPECT_LT(future.next_use(1), future.next_use(2));
  EXPECT_LT(future.next_use(2), future.next_use(0));
  EXPECT_EQ(future.next_use(0), future.next_use(4)) << "both never again";
  EXPECT_LT(future.next_use(4), future.next_use(5)) << "the sooner lookup comes first";
}

TEST(RecordedFuture, RefusesExpertsOutOfRange) {
  RecordedFuture future(4);
  for (const ExpertIndex expert : {-1, 4}) {
    const Status status = future.append(std::vector<ExpertIndex>{0, expert});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.error().message, ::testing::HasSubstr("expected 0 to 3"));
  }
  EXPECT_EQ(future.n_lookups(), 0U);
  ASSERT_TRUE(future.append(std::vector<ExpertIndex>{3}));
  future.rewind();
  EXPECT_EQ(future.next_use(0).lookup, kNeverUsed) << "nothing of the refused lookups was kept";
}

}  // namespace
}  // namespace hotset::policy
