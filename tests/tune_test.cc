// `hotset tune` on machines whose times are computed: what it recommends is beside the best of an
// exhaustive search, and what it predicts is what is measured.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "hotset/base/log.h"
#include "hotset/base/text_file.h"
#include "hotset/measure/tune_measure.h"
#include "hotset/measure/tune_record.h"
#include "hotset/measure/tune_report.h"
#include "hotset/measure/tune_run.h"
#include "tests/cached_decode.h"
#include "tests/test_files.h"

namespace hotset::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kMostBehindBest = 1.03;
constexpr double kMostPredictionError = 0.08;

measure::TuneCommandOptions demo_options(const std::string& device,
                                         const test::TemporaryFolder& records) {
  measure::TuneCommandOptions options;
  options.model.model = test::demo_model().string();
  options.model.device = device;
  options.model.engine.n_threads = 2;
  options.model.engine.context.n_ctx = 256;
  options.n_tokens = 96;
  options.n_warm_up = 64;
  options.max_mib = 8;
  options.record_folder = records.path().string();
  return options;
}

struct Machine {
  double link_gbps = 0;
  double cpu_gbps = 0;

  std::string device() const {
    return fmt::format("emu:clock=virtual,us=1,dev_gbps=40,gbps={},cpu_gbps={}", link_gbps,
                       cpu_gbps);
  }
};

std::vector<Machine> grid() {
  std::vector<Machine> machines;
  for (const double link : test::values<double>({0.5, 1, 3, 8}, 1)) {
    for (const double cpu : test::values<double>({0.5, 2, 8}, 1)) machines.push_back({link, cpu});
  }
  return machines;
}

class TuneGrid : public testing::TestWithParam<Machine> {};

// The fastest of all settings, in ms per token.
double exhaustive_best(measure::TuneMeasure& measure) {
  double best = HUGE_VAL;
  const auto consider = [&](Bytes cache, lanes::CpuShare share) {
    const auto m = measure.run(cache, share);
    ASSERT_TRUE(m) << m.error().message;
    best = std::min(best, m->ms_per_token);
  };
  const Bytes most = measure.most_cache();
  for (const Bytes cache : test::values<Bytes>({most, sim::round_cache_size(most / 2)}, 1)) {
    for (const double share : test::values<double>({0, 0.25, 0.5, 0.75, 0.9, 1}, 3)) {
      consider(cache, share);
    }
    consider(cache, {});
  }
  consider({}, {});
  return best;
}

TEST_P(TuneGrid, RecommendsTheBestAndPredictsItsSpeed) {
  const test::TemporaryFolder records;
  const measure::TuneCommandOptions options = demo_options(GetParam().device(), records);
  const auto outcome = measure::run_tune(options);
  ASSERT_TRUE(outcome) << outcome.error().message;
  ASSERT_TRUE(outcome->chosen) << outcome->why_not << "\n" << measure::tune_text(*outcome);
  auto measure = measure::TuneMeasure::start(options);
  ASSERT_TRUE(measure) << measure.error().message;
  const double best_ms = exhaustive_best(**measure);
  const auto chosen = (*measure)->run(outcome->chosen->cache, outcome->chosen->share);
  ASSERT_TRUE(chosen) << chosen.error().message;
  RecordProperty("behind_best", fmt::format("{:.4f}", chosen->ms_per_token / best_ms));
  EXPECT_LE(chosen->ms_per_token, best_ms * kMostBehindBest) << measure::tune_text(*outcome);
  if (outcome->chosen->cache > Bytes{}) {
    EXPECT_NEAR(chosen->ms_per_token / outcome->chosen->predicted_ms, 1, kMostPredictionError)
        << measure::tune_text(*outcome);
  }
  if (outcome->predicted) {
    EXPECT_NEAR(outcome->predicted->measured_ms / outcome->predicted->predicted_ms, 1,
                kMostPredictionError)
        << measure::tune_text(*outcome);
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, TuneGrid, testing::ValuesIn(grid()), [](const auto& at) {
  std::string name = fmt::format("Link{}Cpu{}", at.param.link_gbps, at.param.cpu_gbps);
  std::ranges::replace(name, '.', '_');
  return name;
});

TEST(Tune, ReusesEarlierRunsOfTheSameCommandOnly) {
  const test::TemporaryFolder records;
  measure::TuneCommandOptions options =
      demo_options("emu:clock=virtual,us=1,gbps=2,cpu_gbps=4", records);
  options.n_tokens = 32;
  options.n_warm_up = 16;
  std::vector<std::string> said;
  const auto runs = [&](const measure::TuneCommandOptions& o) {
    said.clear();
    const auto outcome =
        measure::run_tune(o, [&](const std::string& what) { said.push_back(what); });
    EXPECT_TRUE(outcome) << outcome.error().message;
    return std::ranges::count_if(said, [](const auto& line) { return line.starts_with("run "); });
  };
  EXPECT_EQ(runs(options), 9);
  EXPECT_EQ(runs(options), 0);
  EXPECT_THAT(said, testing::Contains(HasSubstr("8 earlier runs")));
  measure::TuneCommandOptions other = options;
  other.n_tokens = 33;
  EXPECT_EQ(runs(other), 9);
  other = options;
  other.fresh = true;
  EXPECT_EQ(runs(other), 9);
  // What was interrupted goes on: as if two runs were missing.
  for (const auto& entry : std::filesystem::directory_iterator(records.path())) {
    if (entry.path().extension() != ".json") continue;
    auto record = measure::parse_tune_record("record", *read_text(entry.path().string()));
    ASSERT_TRUE(record) << record.error().message;
    record->runs.resize(6);
    ASSERT_TRUE(measure::save_tune_record(
        (entry.path().parent_path() / entry.path().stem()).string(), *record));
  }
  EXPECT_EQ(runs(options), 2);
}

TEST(Tune, FindsHowManyThreadsAreEnough) {
  const test::TemporaryFolder records;
  // One thread reads 0.5 GB/s: four are as fast as there is memory for.
  measure::TuneCommandOptions options = demo_options(
      "emu:clock=virtual,us=1,dev_gbps=40,gbps=0.5,cpu_gbps=2,cpu_thread_gbps=0.5", records);
  options.model.engine.n_threads = 0;
  options.cores = measure::CoreCount{.n_cores = 16, .n_logical = 32};
  int n_searched = 0;
  const auto tune = [&] {
    n_searched = 0;
    return measure::run_tune(options, [&](const std::string& what) {
      n_searched += what.starts_with("searching threads: ") ? 1 : 0;
    });
  };
  const auto outcome = tune();
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(n_searched, 5);  // 16, 15, 8, 4, 2
  EXPECT_EQ(outcome->record.n_threads, 4);
  EXPECT_THAT(measure::tune_command_line(*outcome), HasSubstr(" -t 4 "));
  EXPECT_THAT(measure::tune_config(*outcome, options), HasSubstr("threads = 4\n"));
  EXPECT_THAT(measure::tune_text(*outcome), HasSubstr("4 are enough"));
  EXPECT_THAT(measure::tune_html(*outcome), HasSubstr("4 are enough"));
  // All that was measured is of the threads that are recommended.
  const double cpu_gbps = outcome->record.rates.cpu_gb_per_s;
  EXPECT_NEAR(cpu_gbps, 2, 0.02);
  // No other number is more than the tolerance faster.
  auto measure = measure::TuneMeasure::start(options);
  ASSERT_TRUE(measure) << measure.error().message;
  double best_ms = HUGE_VAL;
  double chosen_ms = 0;
  for (const int n : {1, 2, 3, 4, 5, 8, 16, 32}) {
    ASSERT_TRUE((*measure)->set_threads(n));
    const auto m = (*measure)->run(outcome->chosen->cache, outcome->chosen->share);
    ASSERT_TRUE(m) << m.error().message;
    best_ms = std::min(best_ms, m->ms_per_token);
    if (n == 4) chosen_ms = m->ms_per_token;
  }
  EXPECT_LE(chosen_ms, best_ms * kMostBehindBest);
  // Known the next time.
  const auto again = tune();
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(n_searched, 0);
  EXPECT_EQ(again->record.n_threads, 4);
  EXPECT_EQ(again->record.thread_trials, outcome->record.thread_trials);
  EXPECT_EQ(measure::tune_command_line(*again), measure::tune_command_line(*outcome));
}

TEST(Tune, PinsMemoryOnlyWhereThatIsFaster) {
  const test::TemporaryFolder records;
  const auto tune = [&](const std::string& device, const std::string& load_mode) {
    measure::TuneCommandOptions options = demo_options("emu:clock=virtual,us=1," + device, records);
    options.n_tokens = 32;
    options.n_warm_up = 32;
    EXPECT_TRUE(set_setting(measure::model_settings(), "load-mode", load_mode, options.model));
    auto outcome = measure::run_tune(options);
    EXPECT_TRUE(outcome) << outcome.error().message;
    if (!outcome) return measure::TuneOutcome{};
    EXPECT_THAT(measure::tune_command_line(*outcome),
                HasSubstr("--load-mode " + measure::recommended_load_mode(*outcome)));
    EXPECT_THAT(measure::tune_config(*outcome, options),
                HasSubstr("load-mode = " + measure::recommended_load_mode(*outcome)));
    return *std::move(outcome);
  };
  // The host copies at half the rate of the link.
  const measure::TuneOutcome slow_copies = tune("gbps=8,cpu_gbps=1,host_gbps=4", "auto");
  EXPECT_EQ(slow_copies.load_mode, "pinned");
  ASSERT_EQ(slow_copies.load_mode_trials.size(), 2);
  EXPECT_GT(slow_copies.load_mode_trials[0].ms_per_token,
            slow_copies.load_mode_trials[1].ms_per_token * 1.03);
  EXPECT_THAT(measure::tune_text(slow_copies),
              HasSubstr("load mode pinned: uploads come straight"));
  const measure::TuneOutcome fast_copies = tune("gbps=8,cpu_gbps=1", "auto");
  EXPECT_EQ(fast_copies.record.load_mode, "pinned");
  EXPECT_EQ(fast_copies.load_mode, "mmap");
  EXPECT_THAT(measure::tune_text(fast_copies), HasSubstr("load mode mmap: as fast"));
  const measure::TuneOutcome refused = tune("gbps=8,cpu_gbps=1,refuse_pinned=1", "auto");
  EXPECT_EQ(refused.load_mode, "mmap");
  EXPECT_THAT(refused.why_load_mode, HasSubstr("has no pinned memory"));
  // What was given stays.
  for (const char* given : {"mmap", "pinned"}) {
    const measure::TuneOutcome outcome = tune("gbps=8,cpu_gbps=1,host_gbps=4", given);
    EXPECT_EQ(measure::recommended_load_mode(outcome), given);
    EXPECT_TRUE(outcome.load_mode_trials.empty());
  }
}

TEST(Tune, SaysThatNoCacheIsNeededWhereAllExpertsFit) {
  const test::TemporaryFolder records;
  measure::TuneCommandOptions options = demo_options("emu:clock=virtual,us=1", records);
  options.n_tokens = 16;
  options.n_warm_up = 0;
  options.max_mib = 64;
  const auto outcome = measure::run_tune(options);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_TRUE(outcome->record.all_fit);
  ASSERT_TRUE(outcome->chosen);
  EXPECT_THAT(outcome->why_chosen, HasSubstr("no cache is needed"));
  EXPECT_THAT(measure::tune_command_line(*outcome), HasSubstr("--moe-cache-mib auto"));
  EXPECT_THAT(measure::tune_html(*outcome), HasSubstr("no cache is needed"));
}

TEST(Tune, TakesPromptsAndLongOnesAreNotTimed) {
  const test::TemporaryFolder records;
  measure::TuneCommandOptions options =
      demo_options("emu:clock=virtual,us=1,gbps=2,cpu_gbps=4", records);
  options.n_tokens = 64;
  options.n_warm_up = 32;
  const std::filesystem::path prompts = records / "prompts.txt";
  std::ofstream(prompts) << "The king and the sea\n\n" << std::string(150, 'a') << " long\n";
  options.prompts_file = prompts.string();
  const auto outcome = measure::run_tune(options);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_GT(outcome->record.prefill_tokens_per_s, 0);
  ASSERT_TRUE(outcome->result && outcome->result->checks.size() == outcome->record.runs.size());
  for (size_t i = 0; i < outcome->record.runs.size(); ++i) {
    EXPECT_NEAR(outcome->result->checks[i].replayed_hit_rate, outcome->record.runs[i].hit_rate,
                0.03);
  }
}

TEST(Tune, SaysWhereAutoLeavesTheCacheUnused) {
  const test::TemporaryFolder records;
  measure::TuneCommandOptions options =
      demo_options("emu:clock=virtual,us=1,gbps=2,cpu_gbps=8,dev_gbps=2", records);
  options.n_tokens = 16;
  options.n_warm_up = 0;
  const auto outcome = measure::run_tune(options);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_THAT(measure::tune_text(*outcome), HasSubstr("share auto left the cache unused"));
  EXPECT_THAT(measure::tune_text(*outcome), HasSubstr("tokens: text, 16"));
}

TEST(Tune, SaysThatRandomTokensWereMeasured) {
  const test::TemporaryFolder records;
  measure::TuneCommandOptions options =
      demo_options("emu:clock=virtual,us=1,gbps=2,cpu_gbps=4", records);
  options.model.model = test::model_of("qwen3moe").string();
  options.n_tokens = 16;
  options.n_warm_up = 0;
  options.max_mib = 1;
  const auto outcome = measure::run_tune(options);
  ASSERT_TRUE(outcome) << outcome.error().message;
  EXPECT_EQ(outcome->record.tokens, "random");
}

TEST(Tune, RefusesWhatHasNoCache) {
  const test::TemporaryFolder records;
  const auto error = [&](auto change) {
    measure::TuneCommandOptions options = demo_options("emu:clock=virtual,us=1", records);
    change(options);
    const auto outcome = measure::run_tune(options);
    EXPECT_FALSE(outcome);
    return outcome ? std::string() : outcome.error().message;
  };
  EXPECT_THAT(error([](auto& o) { o.model.device = "none"; }), HasSubstr("tune: found no device"));
  EXPECT_THAT(error([](auto& o) { o.model.engine.n_gpu_layers = 0; }),
              HasSubstr("no cache to tune"));
  EXPECT_THAT(error([](auto& o) { o.model.model = "none.gguf"; }), HasSubstr("none.gguf"));
  EXPECT_THAT(error([](auto& o) { o.prompts_file = "none.txt"; }), HasSubstr("none.txt"));
}

TEST(ReadPrompts, TakesLinesOrJson) {
  const test::TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    std::ofstream(folder / "prompts") << text;
    return measure::read_prompts((folder / "prompts").string());
  };
  EXPECT_EQ(*read("a\r\n\nb c\n"), (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(*read(" [\"a\\nb\", \"c\"]"), (std::vector<std::string>{"a\nb", "c"}));
  EXPECT_THAT(read("[1]").error().message, HasSubstr("prompt 0: found number, expected a string"));
  EXPECT_THAT(read("[nonsense").error().message, HasSubstr("no JSON array"));
  EXPECT_THAT(read("\n\n").error().message, HasSubstr("found no prompt"));
}

// --- Recorded runs: tests/data/tune, made by scripts/tune_data

std::filesystem::path data_file(const std::string& name) {
  return test::assets_dir().parent_path() / "tests" / "data" / "tune" / name;
}

measure::TuneOutcome outcome_of(const std::string& name) {
  const std::string path = data_file(name + ".json").string();
  auto record = measure::parse_tune_record(path, *read_text(path));
  EXPECT_TRUE(record) << record.error().message;
  measure::TuneOutcome outcome;
  outcome.record = *record;
  outcome.record.trace = data_file("demo.mct").string();
  auto result = measure::tune_from_record(outcome.record, mib(1) / 2, {});
  EXPECT_TRUE(result) << result.error().message;
  outcome.result = *std::move(result);
  // The measurement of what is recommended is what was predicted, exactly.
  const Status chosen = choose(outcome, [&](Bytes cache, lanes::CpuShare share) -> Result<double> {
    for (const auto& p : outcome.result->table) {
      if (p.cache == cache && p.share == share) return p.ms_per_token;
    }
    return make_error(ErrorCode::kInternal, "not in the table");
  });
  EXPECT_TRUE(chosen);
  return outcome;
}

void expect_equal(const nlohmann::json& found, const nlohmann::json& expected,
                  const std::string& where) {
  ASSERT_EQ(found.type_name(), std::string(expected.type_name())) << where;
  if (expected.is_object() || expected.is_array()) {
    ASSERT_EQ(found.size(), expected.size()) << where;
  }
  if (expected.is_number()) {
    const double value = expected.get<double>();
    EXPECT_NEAR(found.get<double>(), value, 1e-9 * (std::abs(value) + 1e-3)) << where;
  } else if (expected.is_object()) {
    for (const auto& [key, value] : expected.items()) {
      ASSERT_TRUE(found.contains(key)) << where << "." << key;
      expect_equal(found[key], value, where + "." + key);
    }
  } else if (expected.is_array()) {
    for (size_t i = 0; i < expected.size(); ++i) {
      expect_equal(found[i], expected[i], fmt::format("{}[{}]", where, i));
    }
  } else {
    EXPECT_EQ(found, expected) << where;
  }
}

class RecordedRuns : public testing::TestWithParam<const char*> {};

TEST_P(RecordedRuns, GiveExactlyTheFitTheReplayAndTheRecommendationOfBefore) {
  const std::string json = measure::tune_json(outcome_of(GetParam()));
  const std::filesystem::path expected = data_file(std::string(GetParam()) + ".expected.json");
  if (std::getenv("HOTSET_WRITE_EXPECTED") != nullptr) std::ofstream(expected) << json;
  expect_equal(nlohmann::json::parse(json), nlohmann::json::parse(*read_text(expected.string())),
               "outcome");
}

INSTANTIATE_TEST_SUITE_P(Data, RecordedRuns,
                         testing::Values("quiet", "slow-link", "noisy", "unphysical", "few"),
                         [](const auto& at) {
                           std::string name = at.param;
                           std::erase(name, '-');
                           return name;
                         });

TEST(Tune, RecommendsNothingFromRunsThatDoNotFit) {
  const measure::TuneOutcome noisy = outcome_of("noisy");
  EXPECT_FALSE(noisy.chosen);
  EXPECT_THAT(noisy.why_not, HasSubstr("do not fit one time model"));
  EXPECT_THAT(noisy.why_not, HasSubstr("expected at most 10%"));
  EXPECT_THAT(measure::tune_text(noisy), HasSubstr("none: the runs do not fit"));
  EXPECT_GT(noisy.result->fit->worst_error, 0.1);
  const measure::TuneOutcome unphysical = outcome_of("unphysical");
  EXPECT_FALSE(unphysical.chosen);
  EXPECT_THAT(unphysical.why_not, HasSubstr("not physical: "));
  const measure::TuneOutcome few = outcome_of("few");
  EXPECT_FALSE(few.chosen);
  EXPECT_THAT(few.why_not, HasSubstr("found 3, expected at least 4"));
  EXPECT_TRUE(few.result->table.empty());
  // Every report can be made of them.
  for (const measure::TuneOutcome* outcome : {&noisy, &unphysical, &few}) {
    EXPECT_THAT(measure::tune_markdown(*outcome), HasSubstr("## Recommendation"));
    EXPECT_THAT(measure::tune_html(*outcome), HasSubstr("</html>"));
  }
}

TEST(Tune, SaysWhereEveryRunWithACacheWasSlower) {
  measure::TuneOutcome outcome = outcome_of("unphysical");
  ASSERT_LE(outcome.result->fit->worst_error, 0.1);
  const auto never = [](Bytes, lanes::CpuShare) -> Result<double> {
    return make_error(ErrorCode::kInternal, "nothing is to be measured");
  };
  const double fastest_ms =
      std::ranges::min(outcome.record.runs, {}, &sim::TuneRun::ms_per_token).ms_per_token;
  for (const double ratio : {1.01, 0.99}) {
    outcome.record.no_cache_ms = fastest_ms * ratio;
    ASSERT_TRUE(choose(outcome, never));
    EXPECT_FALSE(outcome.chosen);
    EXPECT_EQ(outcome.why_not.find("no run with a cache was faster") != std::string::npos,
              ratio < 1);
  }
}

TEST(Tune, RecommendsNoDeviceWhereTheCpuAloneIsFaster) {
  measure::TuneOutcome outcome = outcome_of("quiet");
  outcome.chosen = measure::TuneChoice{.measured_ms = 2};
  outcome.cpu_alone = measure::CpuAloneTrial{.ms_per_token = 1, .n_threads = 7};
  EXPECT_THAT(measure::tune_text(outcome), HasSubstr("(--device none, 7 threads): 1000 tokens/s"));
  EXPECT_THAT(measure::tune_command_line(outcome), Not(HasSubstr("--device none")));
  outcome.without_device = true;
  EXPECT_THAT(measure::tune_command_line(outcome),
              HasSubstr("--moe-cache-mib 0 --device none -t 7 --load-mode mmap"));
  measure::TuneCommandOptions options;
  options.model.model = "model.gguf";
  options.model.device = "emu";
  EXPECT_THAT(measure::tune_config(outcome, options), HasSubstr("device = none\n"));
  EXPECT_THAT(measure::tune_config(outcome, options), HasSubstr("threads = 7\n"));
}

TEST(TuneMeasure, MeasuresTheCpuAloneWithTheSameTokens) {
  const test::TemporaryFolder records;
  const measure::TuneCommandOptions options = demo_options("emu:clock=virtual,us=1", records);
  auto measure = measure::TuneMeasure::start(options);
  ASSERT_TRUE(measure) << measure.error().message;
  const auto alone = (*measure)->run_without_device(1);
  ASSERT_TRUE(alone) << alone.error().message;
  EXPECT_GT(alone->ms_per_token, 0);
  EXPECT_EQ((*measure)->engine().device(), nullptr);
  EXPECT_EQ((*measure)->engine().n_threads(), 1);
}

TEST(TuneRecord, SurvivesItsFile) {
  const measure::TuneRecord record = outcome_of("quiet").record;
  const auto again = measure::parse_tune_record("x", measure::tune_record_json(record));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->runs, record.runs);
  EXPECT_EQ(measure::tune_record_json(*again), measure::tune_record_json(record));
}

TEST(TuneRecord, RefusesDamage) {
  const std::string good = *read_text(data_file("quiet.json").string());
  const auto error = [&](auto change) {
    auto json = nlohmann::ordered_json::parse(good);
    change(json);
    const auto record = measure::parse_tune_record("r.json", json.dump());
    EXPECT_FALSE(record);
    return record ? std::string() : record.error().message;
  };
  EXPECT_THAT(error([](auto& j) { j["version"] = 2; }), HasSubstr("version: found 2, expected 1"));
  EXPECT_THAT(error([](auto& j) { j.erase("key"); }), HasSubstr("r.json: key: missing"));
  EXPECT_THAT(error([](auto& j) { j["n_tokens"] = 1.5; }), HasSubstr("n_tokens: found 1.5"));
  EXPECT_THAT(error([](auto& j) { j["runs"] = 3; }), HasSubstr("runs: found 3, expected an array"));
  EXPECT_THAT(error([](auto& j) { j["runs"][1]["cpu_share"] = "some"; }),
              HasSubstr("run 1: cpu_share: found \"some\", expected a number or \"auto\""));
  EXPECT_FALSE(measure::parse_tune_record("r.json", "nonsense"));
}

}  // namespace
}  // namespace hotset::cli
