#include "hotset/lanes/never_slower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

#include "hotset/base/random.h"

namespace hotset::lanes {
namespace {

using testing::HasSubstr;

NeverSlower make(const NeverSlowerOptions& options = {}) {
  auto guard = NeverSlower::create(options);
  EXPECT_TRUE(guard) << guard.error().message;
  return *guard;
}

// `n` tokens that were no probes; the changes they brought about.
std::vector<CacheUseChange> run(NeverSlower& guard, int n, double token_us, double no_cache_us,
                                double cache_us) {
  std::vector<CacheUseChange> changes;
  for (int i = 0; i < n; ++i) {
    const auto change =
        guard.observe({.token_us = token_us, .no_cache_us = no_cache_us, .cache_us = cache_us});
    EXPECT_TRUE(change);
    if (*change) changes.push_back(**change);
  }
  return changes;
}

// ---- At load

TEST(ChooseBaseline, TakesTheFasterOfPlainAndRepacked) {
  const auto repacked =
      choose_baseline({.plain_us = 20'000, .repacked_us = 12'000, .cache_us = 10'000});
  ASSERT_TRUE(repacked);
  EXPECT_EQ(repacked->baseline, Baseline::kRepacked);
  EXPECT_TRUE(repacked->use_cache);
  EXPECT_EQ(describe(*repacked),
            "cache: 10.000 ms a token predicted, 12.000 ms with repacked experts on the CPU");
  const auto plain =
      choose_baseline({.plain_us = 12'000, .repacked_us = 12'000, .cache_us = 12'000});
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->baseline, Baseline::kPlain);
  EXPECT_FALSE(plain->use_cache);
}

TEST(ChooseBaseline, LeavesTheCacheOffWhereTheBaselineWins) {
  const auto choice =
      choose_baseline({.plain_us = 20'000, .repacked_us = 12'000, .cache_us = 15'000});
  ASSERT_TRUE(choice);
  EXPECT_FALSE(choice->use_cache);
  EXPECT_EQ(describe(*choice),
            "no cache: 12.000 ms a token with repacked experts on the CPU, 15.000 ms predicted "
            "with the cache");
  EXPECT_TRUE(choose_baseline({.plain_us = 20'000, .cache_us = 15'000})->use_cache);
}

TEST(ChooseBaseline, RefusesWhatIsOutsideItsRange) {
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(choose_baseline({.plain_us = bad, .cache_us = 1}).error().message,
                HasSubstr("plain_us: found"));
    EXPECT_THAT(choose_baseline({.plain_us = 1, .cache_us = bad}).error().message,
                HasSubstr("cache_us: found"));
    EXPECT_THAT(choose_baseline({.plain_us = 1, .repacked_us = bad, .cache_us = 1}).error().message,
                HasSubstr("repacked_us: found"));
  }
}

// ---- Stop and resume

TEST(NeverSlower, StopsAfterTwoSlowWindows) {
  NeverSlower guard = make();
  EXPECT_TRUE(guard.uploads_allowed());
  EXPECT_TRUE(run(guard, 127, 1030, 1000, 900).empty());
  EXPECT_TRUE(guard.uploads_allowed());
  const auto changes = run(guard, 1, 1030, 1000, 900);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].from, CacheUse::kFull);
  EXPECT_EQ(changes[0].to, CacheUse::kHits);
  EXPECT_EQ(guard.use(), CacheUse::kHits);
  EXPECT_FALSE(guard.uploads_allowed());
  EXPECT_EQ(changes[0].token, 128);
  EXPECT_DOUBLE_EQ(changes[0].cache_us, 1030);
  EXPECT_DOUBLE_EQ(changes[0].no_cache_us, 1000);
  EXPECT_EQ(describe(changes[0]),
            "uploads and fills stopped after 128 tokens: 1.030 ms a token measured with them, "
            "1.000 ms without a cache (2 windows in a row)");
}

TEST(NeverSlower, LeavesAMarginOfTwoPercent) {
  NeverSlower guard = make();
  EXPECT_TRUE(run(guard, 6400, 1020, 1000, 900).empty());
  EXPECT_TRUE(guard.uploads_allowed());
}

TEST(NeverSlower, ForgivesASingleSlowWindow) {
  NeverSlower guard = make();
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(run(guard, 64, 2000, 1000, 900).empty());
    EXPECT_TRUE(run(guard, 64, 1000, 1000, 900).empty());
  }
}

TEST(NeverSlower, ResumesAfterTwoWindowsPredictedFaster) {
  NeverSlower guard = make();
  run(guard, 128, 1030, 1000, 990);
  ASSERT_FALSE(guard.uploads_allowed());
  // How much faster it is without uploads does not count, only what is predicted with them; 0.98
  // itself is not below it.
  EXPECT_TRUE(run(guard, 640, 500, 1000, 980).empty());
  EXPECT_TRUE(run(guard, 127, 1020, 1000, 970).empty());
  const auto changes = run(guard, 1, 1020, 1000, 970);
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].from, CacheUse::kHits);
  EXPECT_EQ(changes[0].to, CacheUse::kFull);
  EXPECT_TRUE(guard.uploads_allowed());
  EXPECT_DOUBLE_EQ(changes[0].cache_us, 970);
  EXPECT_EQ(describe(changes[0]),
            "uploads and fills resumed after 896 tokens: 0.970 ms a token predicted with them, "
            "1.000 ms without a cache (2 windows in a row)");
}

// `n` tokens of a machine where one takes so much with uploads and with hits alone, and 1000 us
// without a cache; `predicted_us` with uploads. Probes as the guard wants them.
struct World {
  double full_us = 1000;
  double hits_us = 1000;
  double predicted_us = 1000;
};
std::vector<CacheUseChange> run(NeverSlower& guard, int n, const World& world) {
  std::vector<CacheUseChange> changes;
  for (int i = 0; i < n; ++i) {
    const bool is_probe = guard.wants_probe(1000);
    const CacheUse use = guard.use();
    const double us = (use == CacheUse::kNone) != is_probe ? 1000
                      : use == CacheUse::kFull             ? world.full_us
                                                           : world.hits_us;
    const auto change = guard.observe({.is_probe = is_probe,
                                       .token_us = us,
                                       .no_cache_us = 1000,
                                       .cache_us = world.predicted_us});
    EXPECT_TRUE(change);
    if (*change) changes.push_back(**change);
  }
  return changes;
}

TEST(NeverSlower, WaitsLongerAfterEachResumeThatFails) {
  NeverSlower guard = make({.max_probe_share = 0, .max_windows_to_resume = 8});
  // Predictions that never come true: slow when measured, fast when predicted.
  std::vector<int64_t> stops;
  std::vector<int64_t> resumes;
  const World world = {.full_us = 1100, .hits_us = 990, .predicted_us = 900};
  for (const CacheUseChange& change : run(guard, 64 * 60, world)) {
    (change.to == CacheUse::kFull ? resumes : stops).push_back(change.token / 64);
  }
  // Stops two windows after each resume; resumes after 2, 4, 8, 8 windows.
  EXPECT_THAT(stops, testing::ElementsAre(2, 6, 12, 22, 32, 42, 52));
  EXPECT_THAT(resumes, testing::ElementsAre(4, 10, 20, 30, 40, 50, 60));
}

TEST(NeverSlower, ForgetsFailedResumesOnceOneLasts) {
  NeverSlower guard = make({.max_probe_share = 0});
  const World bad = {.full_us = 1100, .hits_us = 990, .predicted_us = 900};
  run(guard, 64 * 6, bad);  // stop at 2, resume at 4, stop at 6
  ASSERT_FALSE(guard.uploads_allowed());
  EXPECT_EQ(run(guard, 64 * 4, bad).size(), 1U);  // resume at 10, after 4 windows
  EXPECT_TRUE(run(guard, 64 * 10, {.full_us = 900, .predicted_us = 900}).empty());  // it lasts
  EXPECT_EQ(run(guard, 64 * 2, bad).size(), 1U);
  ASSERT_FALSE(guard.uploads_allowed());
  EXPECT_EQ(run(guard, 64 * 2, bad).size(), 1U);  // two windows again
  EXPECT_TRUE(guard.uploads_allowed());
}

// ---- Without hits

TEST(NeverSlower, LeavesHitsToTheCpuWhereTheyAreSlow) {
  NeverSlower guard = make();
  const World slow = {.full_us = 1300, .hits_us = 1300, .predicted_us = 1300};
  const auto changes = run(guard, 256, slow);
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].to, CacheUse::kHits);
  EXPECT_EQ(changes[0].token, 128);
  EXPECT_EQ(changes[1].from, CacheUse::kHits);
  EXPECT_EQ(changes[1].to, CacheUse::kNone);
  EXPECT_EQ(changes[1].token, 256);
  EXPECT_EQ(describe(changes[1]),
            "resident experts are left unused after 256 tokens: 1.300 ms a token measured with "
            "them, 1.000 ms without a cache (2 windows in a row)");
  // It stays so for as long as it is so, and costs next to nothing: one token in a hundred.
  EXPECT_TRUE(run(guard, 12'800, slow).empty());
  EXPECT_EQ(guard.use(), CacheUse::kNone);
  EXPECT_LE(guard.n_probes(), 131);
  EXPECT_GE(guard.n_probes(), 95);
}

TEST(NeverSlower, ReturnsToHitsAfterTwoFastProbesAndThenToUploads) {
  NeverSlower guard = make();
  run(guard, 256, {.full_us = 1300, .hits_us = 1300, .predicted_us = 1300});
  ASSERT_EQ(guard.use(), CacheUse::kNone);
  const auto changes = run(guard, 600, {.full_us = 700, .hits_us = 800, .predicted_us = 700});
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[0].from, CacheUse::kNone);
  EXPECT_EQ(changes[0].to, CacheUse::kHits);
  EXPECT_LE(changes[0].token, 256 + 2 * 131);
  EXPECT_THAT(describe(changes[0]),
              testing::MatchesRegex("resident experts are used again after [0-9]+ tokens: 0.700 ms "
                                    "a token with them, 1.000 ms "
                                    "without a cache .2 probes in a row."));
  EXPECT_EQ(changes[1].to, CacheUse::kFull);
  EXPECT_EQ(changes[1].token, changes[0].token + 128);
}

TEST(NeverSlower, ReturnsWhereOnlyUploadsWouldGain) {
  // What was resident is no longer asked for: with it alone nothing is gained.
  NeverSlower guard = make();
  run(guard, 256, {.full_us = 1300, .hits_us = 1300, .predicted_us = 1300});
  const auto changes = run(guard, 600, {.full_us = 700, .hits_us = 1000, .predicted_us = 700});
  ASSERT_EQ(changes.size(), 2U);
  EXPECT_EQ(changes[1].to, CacheUse::kFull);
}

TEST(NeverSlower, WaitsLongerAfterEachReturnThatFails) {
  NeverSlower guard = make({.max_probes_to_return = 8});
  // Predictions with uploads never come true.
  const World world = {.full_us = 1300, .hits_us = 1300, .predicted_us = 900};
  std::vector<int64_t> returns;
  std::vector<int64_t> ends;
  int64_t n_with_cache = 0;
  constexpr int kTokens = 20'000;
  for (int i = 0; i < kTokens; ++i) {
    n_with_cache += guard.use() == CacheUse::kNone ? 0 : 1;
    for (const CacheUseChange& change : run(guard, 1, world)) {
      if (change.from == CacheUse::kNone) returns.push_back(change.token);
      if (change.to == CacheUse::kNone) ends.push_back(change.token);
    }
  }
  ASSERT_GE(returns.size(), 5U);
  std::vector<int64_t> probes;  // that each return took, about
  for (size_t i = 0; i < returns.size(); ++i) probes.push_back((returns[i] - ends[i] + 50) / 131);
  EXPECT_THAT(std::span(probes).first(5), testing::ElementsAre(2, 4, 8, 8, 8));
  EXPECT_LT(n_with_cache, kTokens / 3);
}

TEST(NeverSlower, LearnsWhatATokenTakesWithoutACache) {
  // Predicted are 1000 us, but the CPU takes 1500: hits at 1400 are no loss.
  NeverSlower guard = make({.max_probe_share = 0.02});
  run(guard, 256, {.full_us = 1400, .hits_us = 1400, .predicted_us = 1400});
  ASSERT_EQ(guard.use(), CacheUse::kNone);
  std::vector<CacheUseChange> changes;
  for (int i = 0; i < 2000 && changes.empty(); ++i) {
    const bool is_probe = guard.wants_probe(1000);
    const auto change = guard.observe({.is_probe = is_probe,
                                       .token_us = is_probe ? 1400.0 : 1500.0,
                                       .no_cache_us = 1000,
                                       .cache_us = 1400});
    ASSERT_TRUE(change);
    if (*change) changes.push_back(**change);
  }
  ASSERT_EQ(changes.size(), 1U);
  EXPECT_EQ(changes[0].to, CacheUse::kHits);
  EXPECT_NEAR(guard.no_cache_correction(), 1.5, 0.1);
}

// ---- Probes

TEST(NeverSlower, ProbesOneTokenInAHundred) {
  NeverSlower guard = make();
  std::vector<int64_t> probes;
  for (int i = 1; i <= 1000; ++i) {
    const bool is_probe = guard.wants_probe(1000);
    EXPECT_EQ(guard.wants_probe(1000), is_probe);  // asking changes nothing
    if (is_probe) probes.push_back(i);
    ASSERT_TRUE(guard.observe({.is_probe = is_probe,
                               .token_us = is_probe ? 1000.0 : 1010.0,
                               .no_cache_us = 1000,
                               .cache_us = 1010}));
  }
  EXPECT_THAT(probes, testing::ElementsAre(100, 200, 300, 400, 500, 600, 700, 800, 900, 1000));
  EXPECT_EQ(guard.n_probes(), 10);
  EXPECT_EQ(guard.n_tokens(), 1000);
}

TEST(NeverSlower, ProbesSlowBaselinesByTimeNotByTokens) {
  NeverSlower guard = make();
  int64_t first = 0;
  for (int i = 1; i <= 2000 && first == 0; ++i) {
    if (guard.wants_probe(10'000)) first = i;
    ASSERT_TRUE(guard.observe({.token_us = 1000, .no_cache_us = 10'000, .cache_us = 1000}));
  }
  EXPECT_EQ(first, 991);  // 10,000 us are 1% of 990 tokens and the probe itself
}

TEST(NeverSlower, DoesNotSpendASavedBudgetInABurst) {
  NeverSlower guard = make();
  run(guard, 10'000, 1000, 1000, 900);
  int probes = 0;
  for (int i = 0; i < 100; ++i) {
    const bool is_probe = guard.wants_probe(1000);
    probes += is_probe ? 1 : 0;
    ASSERT_TRUE(guard.observe(
        {.is_probe = is_probe, .token_us = 1000, .no_cache_us = 1000, .cache_us = 900}));
  }
  EXPECT_EQ(probes, 1);
}

TEST(NeverSlower, DoesNotSpendSavedTimeOnProbesThatBecameSlow) {
  NeverSlower guard = make();
  run(guard, 100'000, 1000, 1000, 900);
  // 1% of all the time would be 50 such probes; 1% of the time since the last one is one in 1981
  // tokens.
  std::vector<int> probes;
  for (int i = 1; i <= 4000; ++i) {
    const bool is_probe = guard.wants_probe(20'000);
    if (is_probe) probes.push_back(i);
    ASSERT_TRUE(guard.observe({.is_probe = is_probe,
                               .token_us = is_probe ? 20'000.0 : 1000.0,
                               .no_cache_us = 20'000,
                               .cache_us = 900}));
  }
  EXPECT_THAT(probes, testing::ElementsAre(1, 1982, 3963));
}

TEST(NeverSlower, NeverProbesWithoutABudgetOrAPrediction) {
  NeverSlower off = make({.max_probe_share = 0});
  run(off, 1000, 1000, 1000, 900);
  EXPECT_FALSE(off.wants_probe(1));
  NeverSlower guard = make();
  run(guard, 1000, 1000, 1000, 900);
  EXPECT_TRUE(guard.wants_probe(1000));
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(guard.wants_probe(bad));
  }
}

TEST(NeverSlower, CorrectsThePredictionByItsProbes) {
  // Predicted 1000 us without a cache, but probes take 1500: 1400 with the cache is not slower.
  NeverSlower guard = make();
  int64_t changes = 0;
  for (int i = 0; i < 6400; ++i) {
    const bool is_probe = guard.wants_probe(1000);
    const auto change = guard.observe({.is_probe = is_probe,
                                       .token_us = is_probe ? 1500.0 : 1400.0,
                                       .no_cache_us = 1000,
                                       .cache_us = 900});
    ASSERT_TRUE(change);
    changes += change->has_value() ? 1 : 0;
  }
  EXPECT_NEAR(guard.no_cache_correction(), 1.5, 0.01);
  EXPECT_TRUE(guard.uploads_allowed());
  EXPECT_GE(changes, 2);  // stopped before the first probes, resumed by them
}

TEST(NeverSlower, LeavesProbesOutOfTheWindows) {
  NeverSlower guard = make({.window_tokens = 4, .max_probe_share = 1});
  for (int i = 0; i < 40; ++i) {
    // Every other token is a probe that takes ten times as long, as predicted.
    const bool is_probe = i % 2 == 0;
    const double us = is_probe ? 10'000 : 1000;
    const auto change =
        guard.observe({.is_probe = is_probe, .token_us = us, .no_cache_us = us, .cache_us = 900});
    ASSERT_TRUE(change);
    EXPECT_FALSE(*change);
  }
  // A window of probes alone says nothing.
  NeverSlower only_probes = make({.window_tokens = 1, .max_probe_share = 1});
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(*only_probes.observe(
        {.is_probe = true, .token_us = 9000, .no_cache_us = 1000, .cache_us = 900}));
  }
}

// ---- Invariants

// The windows judged afterwards from the whole history, with the options' defaults and no probes:
// then nothing leads back from kNone.
std::vector<CacheUseChange> judge(const std::vector<TokenTimes>& tokens) {
  std::vector<CacheUseChange> changes;
  CacheUse use = CacheUse::kFull;
  size_t to_resume = 2;
  size_t last_resume = 0;
  size_t first_window = 0;  // since the last change
  const size_t n_windows = tokens.size() / 64;
  std::vector<double> measured(n_windows), predicted(n_windows), no_cache(n_windows);
  for (size_t w = 0; w < n_windows; ++w) {
    for (size_t i = 64 * w; i < 64 * (w + 1); ++i) {
      measured[w] += tokens[i].token_us / 64;
      predicted[w] += tokens[i].cache_us / 64;
      no_cache[w] += tokens[i].no_cache_us / 64;
    }
  }
  for (size_t w = 0; w < n_windows && use != CacheUse::kNone; ++w) {
    const auto all_say = [&](size_t needed, auto says) {
      if (w + 1 < first_window + needed) return false;
      for (size_t v = w + 1 - needed; v <= w; ++v) {
        if (!says(v)) return false;
      }
      return true;
    };
    const auto is_slow = [&](size_t v) { return measured[v] > 1.02 * no_cache[v]; };
    const auto is_fast = [&](size_t v) { return predicted[v] < 0.98 * no_cache[v]; };
    CacheUseChange change = {.from = use,
                             .token = static_cast<int64_t>(64 * (w + 1)),
                             .cache_us = measured[w],
                             .no_cache_us = no_cache[w]};
    if (use == CacheUse::kFull && all_say(2, is_slow)) {
      to_resume =
          last_resume > 0 && w + 1 - last_resume <= 4 ? std::min<size_t>(64, 2 * to_resume) : 2;
      change.to = CacheUse::kHits;
    } else if (use == CacheUse::kHits && all_say(to_resume, is_fast)) {
      last_resume = w + 1;
      change.to = CacheUse::kFull;
      change.cache_us = predicted[w];
    } else if (use == CacheUse::kHits && all_say(2, is_slow)) {
      change.to = CacheUse::kNone;
    } else {
      continue;
    }
    changes.push_back(change);
    use = change.to;
    first_window = w + 1;
  }
  return changes;
}

TEST(NeverSlower, ChangesWhereTheWholeHistorySaysSo) {
  size_t n_changes = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    NeverSlower guard = make();
    std::vector<TokenTimes> tokens;
    std::vector<CacheUseChange> changes;
    double level = 1000;
    for (int i = 0; i < 64 * 100; ++i) {
      if (random.below(150) == 0) level = 900 + 200 * random.uniform();
      // Hits alone are slow with some seeds only, because that is the end of it.
      const double most_us = seed % 8 != 0 && !guard.uploads_allowed() ? 1000 : HUGE_VAL;
      tokens.push_back({.token_us = std::min(most_us, level) * (0.9 + 0.2 * random.uniform()),
                        .no_cache_us = 1000 * (0.9 + 0.2 * random.uniform()),
                        .cache_us = level * (0.9 + 0.2 * random.uniform())});
      const auto change = guard.observe(tokens.back());
      ASSERT_TRUE(change);
      if (*change) changes.push_back(**change);
    }
    const std::vector<CacheUseChange> expected = judge(tokens);
    ASSERT_EQ(changes.size(), expected.size());
    for (size_t i = 0; i < changes.size(); ++i) {
      EXPECT_EQ(changes[i].token, expected[i].token);
      EXPECT_EQ(changes[i].from, expected[i].from);
      EXPECT_EQ(changes[i].to, expected[i].to);
      EXPECT_NEAR(changes[i].cache_us, expected[i].cache_us, 1e-6);
      EXPECT_NEAR(changes[i].no_cache_us, expected[i].no_cache_us, 1e-6);
    }
    n_changes += changes.size();
  }
  EXPECT_GT(n_changes, 100U);
}

TEST(NeverSlower, HoldsItsPromisesWhateverTheTimes) {
  int64_t n_probes = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    NeverSlower guard = make();
    double total_us = 0;
    double probe_us = 0;
    int64_t tokens = 0;
    int64_t last_change = 0;
    CacheUse use = CacheUse::kFull;
    double scale = 1;
    for (int i = 0; i < 20'000; ++i) {
      if (random.below(500) == 0) scale = std::exp(6 * random.uniform() - 3);
      const double no_cache_us = 1000 * (0.5 + random.uniform());
      const bool is_probe = guard.wants_probe(no_cache_us);
      // A probe is asked for only within 1% of the time, as far as that was known.
      if (is_probe && use != CacheUse::kNone) {
        const double expected_us = no_cache_us * guard.no_cache_correction();
        ASSERT_LE(probe_us + expected_us, 0.01 * (total_us + expected_us) * (1 + 1e-9));
      }
      const double token_us = scale * 1000 * (0.5 + random.uniform());
      const auto change = guard.observe({.is_probe = is_probe,
                                         .token_us = token_us,
                                         .no_cache_us = no_cache_us,
                                         .cache_us = 1000 * (0.3 + random.uniform())});
      ASSERT_TRUE(change);
      ++tokens;
      total_us += token_us;
      probe_us += is_probe ? token_us : 0;
      ASSERT_LE(100 * guard.n_probes(), tokens);
      if (*change) {
        ASSERT_EQ((*change)->from, use) << "said twice";
        // One step at a time.
        ASSERT_EQ(std::abs(static_cast<int>((*change)->to) - static_cast<int>(use)), 1);
        ASSERT_EQ((*change)->token, tokens);
        // A return takes two probes, of which the first may be due at once.
        ASSERT_GE(tokens - last_change, use == CacheUse::kNone ? 100 : 2 * 64) << "flapping";
        use = (*change)->to;
        last_change = tokens;
      }
      ASSERT_EQ(guard.use(), use) << "changed without a word";
    }
    n_probes += guard.n_probes();
  }
  EXPECT_GT(n_probes, 1000);
}

TEST(NeverSlower, SurvivesAnyAcceptedTime) {
  Random random(9);
  NeverSlower guard = make({.window_tokens = 3});
  constexpr double kTimes[] = {1e-300, 1e-9, 1, 1e9, 1e18};
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(guard.observe({.is_probe = random.below(3) == 0,
                               .token_us = kTimes[random.below(5)],
                               .no_cache_us = kTimes[random.below(5)],
                               .cache_us = kTimes[random.below(5)]}));
    ASSERT_GT(guard.no_cache_correction(), 0);
    ASSERT_LE(guard.no_cache_correction(), 100);
  }
}

TEST(NeverSlower, RefusesWhatIsOutsideItsRange) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto message = [](const NeverSlowerOptions& options) {
    const auto guard = NeverSlower::create(options);
    return guard ? std::string("accepted") : guard.error().message;
  };
  EXPECT_EQ(message({}), "accepted");
  EXPECT_THAT(message({.window_tokens = 0}), HasSubstr("window_tokens: found 0"));
  EXPECT_THAT(message({.windows_to_stop = 0}), HasSubstr("windows_to_stop: found 0"));
  EXPECT_THAT(message({.windows_to_resume = -2}), HasSubstr("windows_to_resume: found -2"));
  EXPECT_THAT(message({.windows_to_stop = INT32_MAX}), HasSubstr("windows_to_stop: found"));
  EXPECT_THAT(message({.stop_ratio = 0.9}), HasSubstr("stop_ratio: found 0.9"));
  EXPECT_THAT(message({.resume_ratio = 1.1}), HasSubstr("resume_ratio: found 1.1"));
  EXPECT_THAT(message({.resume_ratio = nan}), HasSubstr("resume_ratio: found nan"));
  EXPECT_THAT(message({.max_probe_share = 2}), HasSubstr("max_probe_share: found 2"));
  EXPECT_THAT(message({.max_probe_share = 1e-300}), HasSubstr("max_probe_share: found"));
  EXPECT_THAT(message({.windows_to_resume = 3, .max_windows_to_resume = 2}),
              HasSubstr("max_windows_to_resume: found 2"));
  EXPECT_THAT(message({.probe_half_life = 0}), HasSubstr("probe_half_life: found 0"));

  NeverSlower guard = make();
  for (const double bad : {0.0, -1.0, nan, std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(guard.observe({.token_us = bad, .no_cache_us = 1, .cache_us = 1}).error().message,
                HasSubstr("token_us: found"));
    EXPECT_THAT(guard.observe({.token_us = 1, .no_cache_us = bad, .cache_us = 1}).error().message,
                HasSubstr("no_cache_us: found"));
    EXPECT_THAT(guard.observe({.token_us = 1, .no_cache_us = 1, .cache_us = bad}).error().message,
                HasSubstr("cache_us: found"));
  }
  EXPECT_EQ(guard.n_tokens(), 0);
}

}  // namespace
}  // namespace hotset::lanes
