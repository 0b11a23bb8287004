// `hotset bench` where every time is computed: on the emulated device's virtual clock.
#include "hotset/measure/bench_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hotset/base/log.h"
#include "tests/cached_decode.h"
#include "tests/test_files.h"

namespace hotset::cli {
namespace {

using testing::HasSubstr;

constexpr const char* kEmu = "emu:clock=virtual,us=1,gbps=2,cpu_gbps=4,dev_gbps=50";

// Small: under sanitizers, too.
measure::BenchOptions small_options() {
  measure::BenchOptions options;
  options.model.model = test::model_of("qwen3moe").string();
  options.devices = {kEmu};
  options.threads = {1};

  options.n_prompts = {0};
  options.n_gens = {8};
  options.n_repetitions = 2;
  return options;
}

measure::BenchResult measured(const measure::BenchOptions& options) {
  auto result = measure::run_bench(options);
  EXPECT_TRUE(result) << result.error().message;
  return result ? *std::move(result) : measure::BenchResult{};
}

TEST(BenchCases, AreEveryCombinationThatMakesADifference) {
  measure::BenchOptions options = small_options();
  options.devices = {"none", "emu", "mib=64", "us=1", "emu:us=2"};
  options.cache_mib = {"0", "0.0", "1"};
  options.cpu_shares = {"0", "auto"};
  options.n_prompts = {16, 0};
  options.n_gens = {4};
  options.depths = {0, 5};
  const auto cases = measure::bench_cases(options);
  ASSERT_TRUE(cases) << cases.error().message;
  // none: one cache; an emulated one: 0 twice without shares, 1 with two. Each with 2 tests, 2
  // depths.
  EXPECT_EQ(cases->size(), (1U + 2 * (1 + 1 + 2)) * 4);
  EXPECT_EQ((*cases)[0].device, "");
  EXPECT_EQ((*cases)[4].device, "emu:mib=64,us=1");
  EXPECT_EQ((*cases)[8].cache_mib, "0");
  EXPECT_EQ(cases->back().device, "emu:us=2");
}

TEST(BenchCases, RefusesWhatCannotBeMeasured) {
  const auto error = [](auto change) {
    measure::BenchOptions options = small_options();
    change(options);
    const auto cases = measure::bench_cases(options);
    EXPECT_FALSE(cases);
    return cases ? std::string() : cases.error().message;
  };
  EXPECT_THAT(error([](measure::BenchOptions& o) { o.n_gens = {0}; }),
              HasSubstr("nothing to measure"));
  EXPECT_THAT(error([](measure::BenchOptions& o) { o.n_gens = {-1}; }),
              HasSubstr("--n-gen: found -1"));
  EXPECT_THAT(error([](measure::BenchOptions& o) { o.n_parallels = {65}; }),
              HasSubstr("--parallel: found 65, expected 1 to 64"));
  EXPECT_THAT(error([](measure::BenchOptions& o) { o.devices = {}; }),
              HasSubstr("--device: found no"));
  EXPECT_THAT(error([](measure::BenchOptions& o) { o.cpu_shares = {"2"}; }),
              HasSubstr("--moe-cache-cpu-share: found 2"));
  EXPECT_THAT(error([](measure::BenchOptions& o) { o.n_repetitions = 0; }),
              HasSubstr("--repetitions"));
}

TEST(RunBench, CountsWhatTheLanesMovedAndTellsABoundThatIsNotPassed) {
  measure::BenchOptions options = small_options();
  const auto model = test::model_of("qwen3moe");
  const double slots16 = test::budget_for(model, 16).mib();
  options.cache_mib = {"0", fmt::format("{}", slots16), "auto"};
  options.cpu_shares = {"0", "1"};
  options.n_prompts = {40};
  options.n_parallels = {1, 3};
  const measure::BenchResult result = measured(options);
  // 0 has no shares; 4 tests each.
  ASSERT_EQ(result.rows.size(), 5U * 4);
  for (const measure::BenchRow& row : result.rows) {
    SCOPED_TRACE(fmt::format("{} {} {}", measure::test_name(row.what), row.what.cache_mib,
                             row.what.cpu_share));
    EXPECT_TRUE(row.virtual_clock);
    EXPECT_EQ(row.tokens_per_s.size(), 2U);
    EXPECT_GT(row.mean(), 0);
    if (row.bound_tokens_per_s > 0) {
      EXPECT_LE(row.mean(), row.bound_tokens_per_s);
    }
    const bool decodes_one = row.what.n_gen > 0 && row.what.n_parallel == 1;
    if (decodes_one) {
      EXPECT_GT(row.bound_tokens_per_s, 0);
    }
    if (row.what.cache_mib == "0") {
      EXPECT_FALSE(row.hit_rate);
      EXPECT_EQ(row.n_slots, 0);
    } else if (row.what.cache_mib == "auto") {  // everything fits
      EXPECT_EQ(row.n_slots, row.n_experts);
      EXPECT_EQ(row.hit_rate, 1);
      EXPECT_EQ(row.bytes.linked, 0);
    } else {
      EXPECT_EQ(row.n_slots, 16);
      ASSERT_TRUE(row.hit_rate);
      EXPECT_GE(*row.hit_rate, 0);
      EXPECT_LT(*row.hit_rate, 1);
      if (decodes_one && row.what.cpu_share == "0") {
        EXPECT_EQ(row.bytes.cpu, 0);
        EXPECT_GT(row.bytes.linked, 0);
      }
      if (decodes_one && row.what.cpu_share == "1") {
        EXPECT_GT(row.bytes.cpu, 0);
      }
    }
    if (decodes_one) {
      // Every token reads as many experts, wherever they are.
      const double experts = static_cast<double>(test::expert_bytes(model).count) *
                             static_cast<double>(result.context.n_expert_used) * test::kLayers;
      EXPECT_NEAR(row.bytes.reads.hits + row.bytes.reads.misses, experts, 1e-6 * experts);
    }
  }
}

TEST(RunBench, VirtualTimesAreTheSameAgain) {
  measure::BenchOptions options = small_options();
  options.cache_mib = {"0.2"};
  options.cpu_shares = {"0.5"};
  const measure::BenchResult a = measured(options);
  const measure::BenchResult b = measured(options);
  ASSERT_EQ(a.rows.size(), 1U);
  ASSERT_EQ(b.rows.size(), 1U);
  EXPECT_EQ(a.rows[0].tokens_per_s, b.rows[0].tokens_per_s);
}

TEST(RunBench, LeavesOutWhatDoesNotFitAndSaysSo) {
  measure::BenchOptions options = small_options();
  options.devices = {std::string(kEmu) + ",mib=1"};
  options.cache_mib = {"0.2", "50"};
  std::string said;
  set_log_sink([&](LogLevel, std::string_view message) { said += message; });
  const auto result = measure::run_bench(options);
  set_log_sink({});
  if (result) {
    EXPECT_THAT(said, HasSubstr("left out"));
    EXPECT_LT(result->rows.size(), 2U);
  } else {
    EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory);
  }
}

TEST(RunBench, MeasuresTheCpuAlone) {
  measure::BenchOptions options = small_options();
  options.devices = {"none"};
  options.n_prompts = {5};
  const measure::BenchResult result = measured(options);
  ASSERT_EQ(result.rows.size(), 2U);
  EXPECT_EQ(result.rows[1].device_name, "none");
  EXPECT_GT(result.rows[1].rates.memory, 0);
  EXPECT_GT(result.rows[1].bound_tokens_per_s, 0);
  EXPECT_EQ(result.context.tokens, "random");  // the model has no tokenizer
}

TEST(RunBench, RefusesAContextThatIsTooSmall) {
  measure::BenchOptions options = small_options();
  options.model.engine.context.n_ctx = 7;
  const auto result = measure::run_bench(options);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("--ctx-size: found 7, expected at least 8"));
}

TEST(BenchTokens, AreTheTextsOwnAndBeginAgain) {
  const auto path = test::demo_model();
  const auto engine =
      test::make_engine(test::describe(path), {.n_threads = 1, .context = {.n_ctx = 64}});
  ASSERT_NE(engine, nullptr);
  auto tokens = measure::BenchTokens::create(engine->model().description(), {});
  ASSERT_TRUE(tokens) << tokens.error().message;
  EXPECT_EQ(tokens->name(), "text");
  const auto first = tokens->take(50);
  const auto second = tokens->take(50);
  EXPECT_NE(first, second);
  tokens->rewind();
  EXPECT_EQ(tokens->take(50), first);
  EXPECT_FALSE(tokens->was_repeated());
  EXPECT_EQ(tokens->take(100000).size(), 100000U);
  EXPECT_TRUE(tokens->was_repeated());
  auto random = measure::BenchTokens::create(engine->model().description(),
                                             {.random = true, .random_seed = 5});
  ASSERT_TRUE(random);
  EXPECT_EQ(random->name(), "random");
  const auto drawn = random->take(50);
  random->rewind();
  EXPECT_EQ(random->take(50), drawn);
}

}  // namespace
}  // namespace hotset::cli
