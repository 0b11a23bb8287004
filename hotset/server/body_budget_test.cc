#include "hotset/server/body_budget.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace hotset::server {
namespace {

const auto kStays = [] { return false; };

TEST(BodyBudget, HoldsSoManyBytesOfLongBodiesAndNoMore) {
  BodyBudget budget({.long_bytes = 10, .max_bytes = 100});
  BodyShare first(budget);
  EXPECT_TRUE(first.has_room(110));
  EXPECT_FALSE(first.has_room(111));
  EXPECT_TRUE(first.take(40));
  EXPECT_TRUE(first.take(70));
  {
    BodyShare second(budget);
    EXPECT_TRUE(second.take(50));
    EXPECT_FALSE(first.take(71));
    EXPECT_FALSE(second.take(SIZE_MAX));
    BodyShare brief(budget);
    EXPECT_TRUE(brief.take(10));
    EXPECT_FALSE(brief.has_room(11));
  }
  EXPECT_TRUE(first.take(110));
  first.give_back();
  EXPECT_TRUE(BodyShare(budget).take(110));
}

TEST(BodyBudget, LongOnesTakeTurnsAndShortOnesDoNotWait) {
  BodyBudget budget({.long_bytes = 10, .n_at_once = 1});
  BodyShare working(budget);
  ASSERT_TRUE(working.take(10));
  ASSERT_TRUE(working.wait_for_turn(kStays));

  BodyShare brief(budget);
  ASSERT_TRUE(brief.take(9));
  EXPECT_TRUE(brief.wait_for_turn(kStays));

  std::atomic<bool> has_turn = false;
  std::thread waiting([&] {
    BodyShare next(budget);
    ASSERT_TRUE(next.take(10));
    ASSERT_TRUE(next.wait_for_turn([&] {
      EXPECT_FALSE(has_turn);
      return false;
    }));
    has_turn = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(has_turn);
  working.give_back();
  waiting.join();
  EXPECT_TRUE(has_turn);
}

TEST(BodyBudget, WhoLeavesOrWaitsTooLongGetsNoTurn) {
  BodyBudget budget({.long_bytes = 10, .n_at_once = 1, .max_wait_s = 0.01});
  BodyShare working(budget);
  ASSERT_TRUE(working.take(10));
  ASSERT_TRUE(working.wait_for_turn(kStays));
  BodyShare next(budget);
  ASSERT_TRUE(next.take(10));
  EXPECT_FALSE(next.wait_for_turn([] { return true; }));
  EXPECT_FALSE(next.wait_for_turn(kStays));
  working.give_back();
  EXPECT_TRUE(next.wait_for_turn(kStays));
}

TEST(BodyBudget, NeverMoreAtOnceThanItSays) {
  BodyBudget budget({.long_bytes = 1, .n_at_once = 2});
  std::atomic<int> n_working = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        BodyShare share(budget);
        ASSERT_TRUE(share.take(1) && share.wait_for_turn(kStays));
        EXPECT_LE(++n_working, 2);
        --n_working;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace hotset::server
