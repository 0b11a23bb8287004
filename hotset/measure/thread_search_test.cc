#include "hotset/measure/thread_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace hotset::measure {
namespace {

using testing::ElementsAre;

struct Found {
  std::vector<int> tried;
  int best = 0;
};

// Searches where a token takes `ms(threads)`.
Found search(const CoreCount& cores, const std::function<double(int)>& ms) {
  std::vector<ThreadTrial> trials;
  Found found;
  while (const auto n = next_thread_trial(trials, cores)) {
    trials.push_back({.n_threads = *n, .ms_per_token = ms(*n)});
    found.tried.push_back(*n);
    if (trials.size() > 100) break;
  }
  found.best = fewest_threads(trials);
  return found;
}

TEST(ThreadSearch, TakesTheFewestThatAreEnough) {
  // Memory is busy with three of eight threads.
  const Found found = search({8, 16}, [](int n) { return 10 + 30.0 / std::min(n, 3); });
  EXPECT_EQ(found.best, 3);
  EXPECT_THAT(found.tried, ElementsAre(8, 7, 4, 2, 3));
}

TEST(ThreadSearch, GoesBeyondTheCoresWhereFewerAreSlower) {
  const Found found = search({8, 16}, [](int n) { return 100.0 / n; });
  EXPECT_EQ(found.best, 16);
  // Where that is slower, it stays with the cores.
  EXPECT_EQ(search({8, 16}, [](int n) { return n > 8 ? 50 : 100.0 / n; }).best, 8);
  EXPECT_EQ(search({8, 8}, [](int n) { return 100.0 / n; }).best, 8);
}

TEST(ThreadSearch, LeavesACoreToTheThreadThatDrivesTheDevice) {
  const Found found = search({8, 16}, [](int n) { return 100.0 / n + (n == 8 ? 20 : 0); });
  EXPECT_EQ(found.best, 7);
}

TEST(ThreadSearch, EndsOnEveryMachine) {
  for (int n_cores = 1; n_cores <= 128; ++n_cores) {
    for (const int enough : {1, 2, 5, n_cores / 3 + 1, n_cores, 1000}) {
      const Found found =
          search({n_cores, 2 * n_cores}, [&](int n) { return 1 + 100.0 / std::min(n, enough); });
      EXPECT_LE(found.tried.size(), 9) << n_cores << " cores, " << enough << " are enough";
      // No number twice.
      std::vector<int> sorted = found.tried;
      std::ranges::sort(sorted);
      EXPECT_EQ(std::ranges::adjacent_find(sorted), sorted.end());
      EXPECT_GE(sorted.front(), 1);
      // Close enough to what is enough.
      if (enough > n_cores) continue;
      EXPECT_LE(found.best, enough + std::max(1, n_cores / 8));
    }
  }
}

TEST(ThreadSearch, KnowsThisMachine) {
  const CoreCount cores = core_count();
  EXPECT_GE(cores.n_cores, 1);
  EXPECT_GE(cores.n_logical, cores.n_cores);
}

}  // namespace
}  // namespace hotset::measure
