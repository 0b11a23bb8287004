#include "hotset/sim/time_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "hotset/base/random.h"

namespace hotset::sim {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

// Two cache sizes at shares 0, 0.5 and 0.95: what `tune` measures. The misses of a token are 1 GiB
// with the small cache and 0.4 GiB with the large one.
std::vector<TimedRun> tune_runs(const TimeModel& truth) {
  std::vector<TimedRun> runs;
  for (const double misses_gib : {1.0, 0.4}) {
    for (const double share : {0.0, 0.5, 0.95}) {
      TimedRun run = {
          .up_gib = (1 - share) * misses_gib, .cpu_gib = share * misses_gib, .share = share};
      run.ms_per_token = truth.ms_per_token(run.up_gib, run.cpu_gib, share);
      runs.push_back(run);
    }
  }
  return runs;
}

TimeModelFit fit(const std::vector<TimedRun>& runs) {
  auto result = fit_time_model(runs);
  EXPECT_TRUE(result) << result.error().message;
  return std::move(*result);
}

std::string error_of(const std::vector<TimedRun>& runs) {
  const auto result = fit_time_model(runs);
  if (result) return "accepted";
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  return result.error().message;
}

TEST(TimeModel, IsTheFormula) {
  const TimeModel model = {
      .base_ms = 10, .up_ms = 30, .cpu_ms = 20, .split_ms = 1.5, .overlap_ms = -15};
  EXPECT_DOUBLE_EQ(model.ms_per_token(0, 0, 0), 10);
  EXPECT_DOUBLE_EQ(model.ms_per_token(2, 0, 0), 70);
  EXPECT_DOUBLE_EQ(model.ms_per_token(2, 1, 0.3), 10 + 60 + 20 + 1.5 - 15);
}

TEST(WhyUnphysical, ChecksEachCondition) {
  const TimeModel good = {.base_ms = 4, .up_ms = 30, .cpu_ms = 20, .overlap_ms = -20};
  EXPECT_THAT(why_unphysical(good, 20), IsEmpty());
  TimeModel bad = good;
  bad.up_ms = 0;
  EXPECT_THAT(why_unphysical(bad, 20), HasSubstr("up_ms is 0, expected above 0"));
  bad = good;
  bad.cpu_ms = -2;
  EXPECT_THAT(why_unphysical(bad, 20), HasSubstr("cpu_ms is -2, expected above 0"));
  EXPECT_EQ(why_unphysical(good, 20.5),
            "base is 4 ms, expected at least 4.1, a fifth of the fastest run");
  for (const double overlap : {-20.5, 20.5}) {
    bad = good;
    bad.overlap_ms = overlap;
    EXPECT_THAT(why_unphysical(bad, 20),
                HasSubstr("expected at most that of the cheaper path, 20"));
  }
  bad = {.base_ms = std::nan(""), .up_ms = std::nan(""), .cpu_ms = 1, .overlap_ms = std::nan("")};
  EXPECT_THAT(why_unphysical(bad, 20), AllOf(HasSubstr("base"), HasSubstr("up_ms is nan")));
}

TEST(FitTimeModel, RecoversAnExactModelWithItsOverlap) {
  for (const double overlap : {-15.0, 0.0, 8.0}) {
    const TimeModel truth = {
        .base_ms = 10, .up_ms = 30, .cpu_ms = 20, .split_ms = 1.5, .overlap_ms = overlap};
    const TimeModelFit result = fit(tune_runs(truth));
    EXPECT_TRUE(result.has_overlap);
    EXPECT_TRUE(result.is_physical);
    EXPECT_NEAR(result.model.base_ms, 10, 1e-9);
    EXPECT_NEAR(result.model.up_ms, 30, 1e-9);
    EXPECT_NEAR(result.model.cpu_ms, 20, 1e-9);
    EXPECT_NEAR(result.model.split_ms, 1.5, 1e-9);
    EXPECT_NEAR(result.model.overlap_ms, overlap, 1e-9);
    EXPECT_LT(result.worst_error, 1e-12);
  }
}

TEST(FitTimeModel, DropsAnOverlapThatSavesMoreThanTheCheaperPath) {
  const TimeModel impossible = {
      .base_ms = 10, .up_ms = 30, .cpu_ms = 20, .split_ms = 1.5, .overlap_ms = -25};
  const TimeModelFit result = fit(tune_runs(impossible));
  EXPECT_FALSE(result.has_overlap);
  EXPECT_EQ(result.model.overlap_ms, 0);
  EXPECT_THAT(result.why_no_overlap, HasSubstr("overlap is -25, expected at most"));
  EXPECT_TRUE(result.is_physical) << result.why_unphysical;
  EXPECT_GT(result.worst_error, 0.01);
}

TEST(FitTimeModel, WeighsRelativeErrorsAsWorkedOutByHand) {
  // Four situations, each measured twice, the second time twice as slow. The p that minimises
  // ((p - y) / y)^2 + ((p - 2 y) / (2 y))^2 is (1/y + 1/2y) / (1/y^2 + 1/4y^2) = 1.2 y: 24, 30, 36
  // and 42 ms. So up is 6 a GiB, base 18, and, with the same for the CPU, the split 36 - 18 - 6
  // - 6.
  std::vector<TimedRun> runs;
  for (const double factor : {1.0, 2.0}) {
    runs.push_back({.up_gib = 1, .cpu_gib = 0, .share = 0, .ms_per_token = 20 * factor});
    runs.push_back({.up_gib = 2, .cpu_gib = 0, .share = 0, .ms_per_token = 25 * factor});
    runs.push_back({.up_gib = 1, .cpu_gib = 1, .share = 0.5, .ms_per_token = 30 * factor});
    runs.push_back({.up_gib = 1, .cpu_gib = 2, .share = 0.5, .ms_per_token = 35 * factor});
  }
  const TimeModelFit result = fit(runs);
  // The smaller of both is 1 wherever the share is above 0: no telling from the split.
  EXPECT_FALSE(result.has_overlap);
  EXPECT_EQ(result.why_no_overlap, "the runs cannot tell it from the other terms");
  EXPECT_NEAR(result.model.base_ms, 18, 1e-9);
  EXPECT_NEAR(result.model.up_ms, 6, 1e-9);
  EXPECT_NEAR(result.model.cpu_ms, 6, 1e-9);
  EXPECT_NEAR(result.model.split_ms, 6, 1e-9);
  EXPECT_TRUE(result.is_physical);
  ASSERT_EQ(result.relative_error.size(), 8U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(result.relative_error[i], 0.2, 1e-12);
    EXPECT_NEAR(result.relative_error[i + 4], -0.4, 1e-12);
  }
  EXPECT_NEAR(result.worst_error, 0.4, 1e-12);
  EXPECT_GE(result.worst_run, 4U);
}

TEST(FitTimeModel, NeedsNoOverlapTermWithFourRuns) {
  const TimeModel truth = {.base_ms = 18, .up_ms = 6, .cpu_ms = 5, .split_ms = 2};
  std::vector<TimedRun> runs = {{.up_gib = 1}, {.up_gib = 2}, {1, 1, 0.5, 0}, {1, 2, 0.5, 0}};
  for (TimedRun& run : runs) {
    run.ms_per_token = truth.ms_per_token(run.up_gib, run.cpu_gib, run.share);
  }
  const TimeModelFit result = fit(runs);
  EXPECT_FALSE(result.has_overlap);
  EXPECT_EQ(result.why_no_overlap, "4 runs are too few for 5 terms");
  EXPECT_NEAR(result.model.cpu_ms, 5, 1e-9);
  EXPECT_NEAR(result.model.split_ms, 2, 1e-9);
  EXPECT_THAT(result.report(runs).back(), "as many runs as terms (4): the errors say nothing");
}

TEST(FitTimeModel, SaysThatAFitIsUnphysical) {
  // Uploads that make tokens faster.
  const TimeModel wrong = {.base_ms = 100, .up_ms = -20, .cpu_ms = 20, .split_ms = 1};
  const TimeModelFit negative = fit(tune_runs(wrong));
  EXPECT_FALSE(negative.is_physical);
  EXPECT_FALSE(negative.has_overlap);
  EXPECT_THAT(negative.why_unphysical, HasSubstr("up_ms is -20, expected above 0"));
  // A base of nearly nothing.
  const TimeModelFit no_base = fit(tune_runs({.base_ms = 0.5, .up_ms = 30, .cpu_ms = 20}));
  EXPECT_FALSE(no_base.is_physical);
  EXPECT_THAT(no_base.why_unphysical, HasSubstr("base is 0.5 ms, expected at least"));
}

TEST(FitTimeModel, ComesNearTheTruthUnderNoise) {
  const TimeModel truth = {
      .base_ms = 20, .up_ms = 60, .cpu_ms = 40, .split_ms = 2, .overlap_ms = -20};
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<TimedRun> runs;
    for (int repeat = 0; repeat < 8; ++repeat) {
      for (TimedRun run : tune_runs(truth)) {
        run.ms_per_token *= 1 + 0.01 * std::clamp(random.normal(), -3.0, 3.0);
        runs.push_back(run);
      }
    }
    const TimeModelFit result = fit(runs);
    ASSERT_TRUE(result.is_physical) << result.why_unphysical;
    ASSERT_LT(result.worst_error, 0.05);
    for (const TimedRun& run : tune_runs(truth)) {
      ASSERT_NEAR(result.model.ms_per_token(run.up_gib, run.cpu_gib, run.share) / run.ms_per_token,
                  1, 0.03);
    }
  }
}

// At the least squares the errors are orthogonal to every term: the normal equations.
TEST(FitTimeModel, SolvesTheNormalEquations) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    std::vector<TimedRun> runs(6 + random.below(20));
    for (size_t i = 0; i < runs.size(); ++i) {
      const double share = i % 3 == 0 ? 0 : random.uniform();
      const double gib = 0.01 + random.uniform() * std::exp(3 * random.uniform());
      runs[i] = {.up_gib = gib * (1 - share),
                 .cpu_gib = gib * share,
                 .share = share,
                 .ms_per_token = 1 + 200 * random.uniform()};
    }
    const auto result = fit_time_model(runs);
    ASSERT_TRUE(result) << result.error().message;
    long double along[5] = {};
    long double norms[5] = {};
    for (size_t i = 0; i < runs.size(); ++i) {
      const TimedRun& run = runs[i];
      const long double terms[5] = {1, run.up_gib, run.cpu_gib, run.share > 0 ? 1.0L : 0.0L,
                                    std::min(run.up_gib, run.cpu_gib)};
      for (int j = 0; j < (result->has_overlap ? 5 : 4); ++j) {
        const long double term = terms[j] / static_cast<long double>(run.ms_per_token);
        along[j] += term * static_cast<long double>(result->relative_error[i]);
        norms[j] += term * term;
      }
    }
    for (int j = 0; j < 5; ++j) {
      ASSERT_NEAR(static_cast<double>(along[j]), 0,
                  1e-9 * static_cast<double>(std::sqrt(norms[j]) + 1e-9L))
          << "term " << j;
    }
    ASSERT_EQ(result->is_physical, result->why_unphysical.empty());
    const auto worst = std::ranges::max_element(result->relative_error, {},
                                                [](double error) { return std::abs(error); });
    ASSERT_EQ(result->worst_error, std::abs(*worst));
    ASSERT_EQ(result->worst_error, std::abs(result->relative_error[result->worst_run]));
  }
}

TEST(FitTimeModel, TakesALittleMoreThanCompleteOverlapForComplete) {
  // Lanes that overlap completely, and times that are off by a few percent.
  for (const bool link_is_cheaper : {false, true}) {
    const TimeModel truth = {.base_ms = 12,
                             .up_ms = link_is_cheaper ? 20.0 : 30.0,
                             .cpu_ms = link_is_cheaper ? 30.0 : 20.0,
                             .split_ms = 1,
                             .overlap_ms = -20};
    std::vector<TimedRun> runs = tune_runs(truth);
    runs[1].ms_per_token *= 0.98;
    runs[4].ms_per_token *= 0.985;
    const TimeModelFit found = fit(runs);
    EXPECT_TRUE(found.is_physical) << found.why_unphysical;
    EXPECT_TRUE(found.has_overlap) << found.why_no_overlap;
    EXPECT_NEAR(found.model.overlap_ms, -20, 2);
    EXPECT_EQ(-found.model.overlap_ms, std::min(found.model.up_ms, found.model.cpu_ms));
    EXPECT_LT(found.worst_error, 0.03);
  }
}

TEST(FitTimeModel, RefusesTooFewRuns) {
  EXPECT_EQ(error_of({}), "runs: found 0, expected at least 4: the time model has that many terms");
  EXPECT_THAT(error_of({{1, 0, 0, 10}, {2, 0, 0, 12}, {1, 1, 0.5, 14}}), HasSubstr("found 3"));
}

TEST(FitTimeModel, RefusesCollinearRunsAndNamesTheTerms) {
  // Share 0 only: nothing about the CPU or the split.
  EXPECT_THAT(error_of({{1, 0, 0, 10}, {2, 0, 0, 12}, {3, 0, 0, 14}, {4, 0, 0, 16}}),
              HasSubstr("collinear: they cannot tell cpu_ms, split_ms from the other terms"));
  // One cache size and one split above 0: up, CPU and split move together.
  EXPECT_THAT(error_of({{1, 0, 0, 10}, {1, 0, 0, 10}, {0.5, 0.5, 0.5, 9}, {0.5, 0.5, 0.5, 9}}),
              HasSubstr("collinear: they cannot tell base, up_ms, cpu_ms, split_ms from"));
  // A share above 0 always: the split cannot be told from the base.
  EXPECT_THAT(error_of({{1, 1, 0.5, 10}, {2, 1, 0.5, 12}, {3, 2, 0.5, 14}, {4, 7, 0.5, 16}}),
              HasSubstr("collinear: they cannot tell base, split_ms from"));
  // The same run again and again.
  EXPECT_THAT(error_of(std::vector<TimedRun>(20, {1, 1, 0.5, 10})), HasSubstr("collinear"));
}

TEST(FitTimeModel, TakesCollinearOnlyForWhatIs) {
  // Nearly one cache size, a tenth apart: little to go by, but enough for exact times.
  const TimeModel truth = {.base_ms = 10, .up_ms = 30, .cpu_ms = 20, .split_ms = 1};
  std::vector<TimedRun> runs = {
      {1, 0, 0, 0}, {1.1, 0, 0, 0}, {0.5, 0.5, 0.5, 0}, {0.5, 0.6, 0.5, 0}};
  for (TimedRun& run : runs) {
    run.ms_per_token = truth.ms_per_token(run.up_gib, run.cpu_gib, run.share);
  }
  EXPECT_NEAR(fit(runs).model.up_ms, 30, 1e-6);
}

TEST(FitTimeModel, RefusesWhatIsOutsideItsRange) {
  const std::vector<TimedRun> good =
      tune_runs({.base_ms = 10, .up_ms = 30, .cpu_ms = 20, .split_ms = 1});
  for (const double bad : {-1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity(), 1e300}) {
    std::vector<TimedRun> runs = good;
    runs[2].up_gib = bad;
    EXPECT_THAT(error_of(runs), HasSubstr("run 2: up_gib: found"));
    runs = good;
    runs[2].cpu_gib = bad;
    EXPECT_THAT(error_of(runs), HasSubstr("run 2: cpu_gib: found"));
    runs = good;
    runs[5].share = bad;
    EXPECT_THAT(error_of(runs), HasSubstr("run 5: share: found"));
    runs = good;
    runs[0].ms_per_token = bad;
    EXPECT_THAT(error_of(runs), HasSubstr("run 0: ms_per_token: found"));
  }
  std::vector<TimedRun> runs = good;
  runs[0].ms_per_token = 0;
  EXPECT_THAT(error_of(runs), HasSubstr("run 0: ms_per_token: found 0"));
}

TEST(FitTimeModel, ReportsEveryRun) {
  const std::vector<TimedRun> runs =
      tune_runs({.base_ms = 10, .up_ms = 30, .cpu_ms = 20, .split_ms = 1, .overlap_ms = -25});
  const std::vector<std::string> lines = fit(runs).report(runs);
  ASSERT_EQ(lines.size(), 2 + runs.size());
  EXPECT_THAT(lines[0], testing::StartsWith("ms/token = "));
  EXPECT_THAT(lines[1], HasSubstr("without the overlap term: overlap is -25"));
  EXPECT_THAT(lines[2], HasSubstr("run 0: 1.0000 GiB up, 0.0000 GiB CPU, share 0.00: 40.000 ms "
                                  "measured"));
  EXPECT_EQ(std::ranges::count_if(
                lines, [](const std::string& line) { return line.ends_with("(worst)"); }),
            1);
}

}  // namespace
}  // namespace hotset::sim
