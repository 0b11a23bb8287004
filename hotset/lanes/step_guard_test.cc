// Never slower over whole steps, by tables on a clock that is given: what a step takes follows from
// what may be used of the cache and from how slow the device is.
#include "hotset/lanes/step_guard.h"

#include <gtest/gtest.h>

#include <vector>

namespace hotset::lanes {
namespace {

// Microseconds of a token's experts, and of everything else.
struct Machine {
  double attention_us = 1000;
  double cpu_us = 2000;    // all experts on the CPU
  double cache_us = 1000;  // with the cache, as planned
  double slowdown = 1;     // of the device, which no plan foresees
};

struct Outcome {
  int64_t n_bypassed = 0;
  double total_us = 0;
  std::vector<CacheUse> uses;  // after each change
};

class StepGuardTest : public testing::Test {
 protected:
  StepGuardTest() : guard_(StepGuard::create().value()) {}

  Outcome run(const Machine& machine, int n_tokens) {
    Outcome outcome;
    for (int i = 0; i < n_tokens; ++i) {
      guard_.begin(1);
      double us = machine.attention_us;
      if (guard_.bypasses_step()) {
        ++outcome.n_bypassed;
        guard_.bypassed(machine.cpu_us);
        us += machine.cpu_us;
      } else {
        guard_.planned(machine.cache_us, machine.cache_us, machine.cpu_us);
        us += machine.cache_us * machine.slowdown;
      }
      outcome.total_us += us;
      const auto change = guard_.end(us);
      EXPECT_TRUE(change);
      if (*change) outcome.uses.push_back((*change)->to);
    }
    return outcome;
  }

  StepGuard guard_;
};

TEST_F(StepGuardTest, LeavesACacheThatPaysInFullUse) {
  const Outcome outcome = run({}, 2000);
  EXPECT_TRUE(outcome.uses.empty());
  EXPECT_EQ(guard_.use(), CacheUse::kFull);
  EXPECT_LE(outcome.n_bypassed, 20);  // probes
}

TEST_F(StepGuardTest, TakesTheCacheBackStepByStepFromADeviceThatGotSlow) {
  run({}, 500);
  const Machine slow{.slowdown = 4};
  const Outcome outcome = run(slow, 2000);
  ASSERT_EQ(outcome.uses.size(), 2U);
  EXPECT_EQ(outcome.uses[0], CacheUse::kHits);
  EXPECT_EQ(outcome.uses[1], CacheUse::kNone);
  // From then on a token takes what it takes on the CPU, but for a probe in a hundred.
  const Outcome later = run(slow, 1000);
  EXPECT_LT(later.total_us / 1000, 1.02 * (slow.attention_us + slow.cpu_us));
}

TEST_F(StepGuardTest, ComesBackOnceTheDeviceIsFastAgain) {
  run({}, 500);
  run({.slowdown = 4}, 2000);
  ASSERT_EQ(guard_.use(), CacheUse::kNone);
  run({}, 2000);
  EXPECT_EQ(guard_.use(), CacheUse::kFull);
}

TEST_F(StepGuardTest, DoesNotJudgeStepsOfSeveralTokens) {
  for (int i = 0; i < 500; ++i) {
    guard_.begin(8);
    EXPECT_FALSE(guard_.bypasses_step());
    guard_.planned(1000, 1000, 2000);
    const auto change = guard_.end(50'000);
    ASSERT_TRUE(change);
    EXPECT_FALSE(*change);
  }
  EXPECT_EQ(guard_.use(), CacheUse::kFull);
}

TEST_F(StepGuardTest, AStepWithoutATimeChangesNothing) {
  for (int i = 0; i < 500; ++i) {
    guard_.begin(1);
    guard_.planned(1, 1, 2);
    const auto change = guard_.end(0);
    ASSERT_TRUE(change);
    EXPECT_FALSE(*change);
  }
  EXPECT_EQ(guard_.use(), CacheUse::kFull);
}

}  // namespace
}  // namespace hotset::lanes
