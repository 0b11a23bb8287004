#include "hotset/sim/tuning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "hotset/sim/sim_testing.h"

namespace hotset::sim {
namespace {

using testing::HasSubstr;

// A machine whose times are the time model's, and whose share auto is on a line.
constexpr sim::TimeModel kTruth = {
    .base_ms = 10, .up_ms = 4000, .cpu_ms = 2500, .split_ms = 0.4, .overlap_ms = -1500};
constexpr AutoLine kAutoTruth = {.base_ms = 10.2, .ms_per_gib = 1400};

class TuningTest : public testing::Test {
 protected:
  TuningTest() : trace_(*synth_trace()) {
    options_.trace = trace_.opener();
    options_.rules.policy = "class_lru";
    options_.counted.skip_tokens = 50;
    options_.table_sizes = {mib(2), mib(4), mib(8)};
    options_.table_shares = {0.0, 0.5, 0.95, 1.0};
  }

  static Result<std::vector<std::byte>> synth_trace();

  // A run as the truth has it.
  TuneRun run(Bytes cache, lanes::CpuShare share) {
    const auto header = options_.trace()->header();
    const auto replayed = replay_setting(options_, header, cache, share, nullptr);
    EXPECT_TRUE(replayed) << replayed.error().message;
    TuneRun run{.cache = cache, .share = share};
    run.up_gib = replayed->upload_gib_per_token() - replayed->fill_gib_per_token();
    run.cpu_gib = replayed->cpu_gib_per_token();
    run.hit_rate = replayed->hit_rate();
    run.ms_per_token =
        share ? kTruth.ms_per_token(run.up_gib, run.cpu_gib, *share)
              : kAutoTruth.base_ms + kAutoTruth.ms_per_gib * (run.up_gib + run.cpu_gib);
    return run;
  }

  void add_runs(bool with_auto) {
    for (const Bytes cache : {mib(8), mib(2)}) {
      for (const double share : {0.0, 0.5, 0.95}) {
        options_.runs.push_back(run(cache, share));
      }
      if (with_auto) options_.runs.push_back(run(cache, {}));
    }
    if (with_auto) options_.table_shares.emplace_back();
  }

  TuneResult tuned() {
    auto result = tune(options_);
    EXPECT_TRUE(result) << result.error().message;
    return result ? *std::move(result) : TuneResult{};
  }

  MemoryTrace trace_;
  TuneOptions options_;
};

Result<std::vector<std::byte>> TuningTest::synth_trace() {
  trace::SynthOptions synth;
  synth.n_layer = 4;
  synth.n_expert = 32;
  synth.experts_per_token = 4;
  synth.n_tokens = 300;
  synth.tensor_expert_bytes = {Bytes{100'000}, Bytes{100'000}};
  return trace::synthesize_bytes(synth);
}

TEST_F(TuningTest, PredictsExactlyWhatTheMachineTakes) {
  add_runs(true);
  const TuneResult result = tuned();
  ASSERT_TRUE(result.fit);
  EXPECT_TRUE(result.why_not.empty()) << result.why_not;
  EXPECT_LT(result.fit->worst_error, 1e-9);
  EXPECT_NEAR(result.fit->model.up_ms, kTruth.up_ms, 1e-4);
  ASSERT_TRUE(result.auto_line);
  EXPECT_NEAR(result.auto_line->ms_per_gib, kAutoTruth.ms_per_gib, 1e-4);
  ASSERT_EQ(result.table.size(), 3U * 5);
  for (const TunePrediction& p : result.table) {
    EXPECT_NEAR(p.ms_per_token, run(p.cache, p.share).ms_per_token, 1e-6);
  }
  ASSERT_EQ(result.checks.size(), options_.runs.size());
  for (size_t i = 0; i < result.checks.size(); ++i) {
    EXPECT_EQ(result.checks[i].replayed_hit_rate, options_.runs[i].hit_rate);
    EXPECT_NEAR(result.checks[i].predicted_ms_per_token, options_.runs[i].ms_per_token, 1e-6);
  }
}

TEST_F(TuningTest, RecommendsTheLowestShareNearTheFastest) {
  add_runs(false);
  options_.share_tolerance = 0;
  const TuneResult exact = tuned();
  ASSERT_TRUE(exact.recommended);
  const TunePrediction& fastest = exact.table[*exact.recommended];
  for (const TunePrediction& p : exact.table) EXPECT_GE(p.ms_per_token, fastest.ms_per_token);
  options_.share_tolerance = 10;  // everything is near
  const TuneResult loose = tuned();
  ASSERT_TRUE(loose.recommended);
  EXPECT_EQ(loose.table[*loose.recommended].share, 0.0);
  EXPECT_EQ(loose.table[*loose.recommended].cache, fastest.cache);
}

TEST_F(TuningTest, AutoIsPredictedOnlyWhereItWasMeasured) {
  add_runs(false);
  options_.table_shares.emplace_back();
  const TuneResult result = tuned();
  EXPECT_FALSE(result.auto_line);
  EXPECT_EQ(result.table.size(), 3U * 4);
}

TEST_F(TuningTest, AutoMeasuredOnceIsMovedByTheCheaperLane) {
  add_runs(false);
  options_.table_shares.emplace_back();
  options_.runs.push_back(run(mib(8), {}));
  const TuneResult result = tuned();
  ASSERT_TRUE(result.auto_line);
  EXPECT_NEAR(result.auto_line->ms_per_gib, kTruth.cpu_ms, 1e-3);
  EXPECT_NEAR(result.checks.back().predicted_ms_per_token, options_.runs.back().ms_per_token, 1e-9);
}

TEST_F(TuningTest, RecommendsNoCacheWhereThatIsFaster) {
  add_runs(false);
  options_.no_cache_ms_per_token = 1;
  const TuneResult result = tuned();
  EXPECT_TRUE(result.no_cache_is_faster);
  EXPECT_FALSE(result.recommended);
  EXPECT_THAT(result.why_not, HasSubstr("--moe-cache-mib 0"));
  options_.no_cache_ms_per_token = 1000;
  EXPECT_TRUE(tuned().recommended);
}

TEST_F(TuningTest, RecommendsNothingFromRunsThatDoNotFit) {
  add_runs(false);
  const std::vector<TuneRun> good = options_.runs;
  options_.runs[1].ms_per_token *= 2;
  TuneResult result = tuned();
  EXPECT_FALSE(result.recommended);
  EXPECT_FALSE(result.why_not.empty());
  EXPECT_FALSE(result.table.empty());  // it is shown all the same
  // The more a run uploads, the faster it is.
  options_.runs = good;
  for (TuneRun& run : options_.runs) run.ms_per_token = 50 - 1000 * run.up_gib;
  result = tuned();
  EXPECT_FALSE(result.recommended);
  EXPECT_THAT(result.why_not, HasSubstr("not physical: up_ms is -"));
  options_.runs = {good[0], good[1]};
  result = tuned();
  EXPECT_THAT(result.why_not, HasSubstr("found 2, expected at least 4"));
  EXPECT_TRUE(result.table.empty());
  options_.runs = {good[0], good[0], good[0], good[0]};
  EXPECT_THAT(tuned().why_not, HasSubstr("collinear"));
}

TEST_F(TuningTest, WholeLayersHoldWhatTheirMemoryHolds) {
  add_runs(false);
  const Bytes layer = Bytes{200'000} * 32;
  options_.table_sizes = {layer - Bytes{1}, layer, layer * 3};
  const TuneResult result = tuned();
  ASSERT_EQ(result.layers.size(), 3U);
  EXPECT_EQ(result.layers[0].n_layers, 0);
  EXPECT_EQ(result.layers[1].n_layers, 1);
  EXPECT_EQ(result.layers[2].n_layers, 3);
  EXPECT_DOUBLE_EQ(result.layers[2].hit_rate, 0.75);
  const double one_layer_gib = (Bytes{200'000} * 4).gib();
  EXPECT_NEAR(result.layers[2].ms_per_token,
              kTruth.base_ms + kTruth.split_ms + kTruth.cpu_ms * one_layer_gib, 1e-6);
}

TEST_F(TuningTest, RefusesNumbersOutOfRange) {
  add_runs(false);
  options_.runs[3].up_gib = std::nan("");
  auto result = tune(options_);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("run 3: up_gib: found nan"));
  options_.runs.clear();
  options_.table_sizes.clear();
  EXPECT_FALSE(tune(options_));
}

TEST_F(TuningTest, StopsWhenCancelled) {
  add_runs(false);
  const std::atomic<bool> cancelled = true;
  options_.cancelled = &cancelled;
  const auto result = tune(options_);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
}

TEST(TuneSizes, SpanTheRangeInOrder) {
  const auto sizes = tune_sizes(mib(1), mib(100), 5, {mib(25), mib(200)});
  ASSERT_EQ(sizes.size(), 6U);
  EXPECT_EQ(sizes.front(), mib(1));
  EXPECT_EQ(sizes.back(), mib(100));
  EXPECT_TRUE(std::ranges::is_sorted(sizes));
  EXPECT_NE(std::ranges::find(sizes, mib(25)), sizes.end());
  for (const Bytes size : sizes) EXPECT_EQ(round_cache_size(size), size);
  EXPECT_EQ(round_cache_size(mib(20) + Bytes{5}), mib(20));
  EXPECT_EQ(round_cache_size(mib(1) + Bytes{5}), mib(1));
}

}  // namespace
}  // namespace hotset::sim
