// Every decision of the engine's cache is the one that a replay of its routing makes, and that the
// planner makes when it is driven by hand, for every setting; so are the counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hotset/engine/run/routing_recorder.h"
#include "hotset/lanes/lookup_planner.h"
#include "hotset/report/cache_report.h"
#include "hotset/sim/replay.h"
#include "hotset/sim/trace_cache.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::RoutingRecorder;

const char kDemo[] = "demo";

std::filesystem::path path_of(const std::string& model) {
  return model == kDemo ? demo_model() : model_of(model);
}

// Writes down what is decided, a line per lookup.
class Decisions final : public lanes::PlanInterceptor {
 public:
  void planned(const cache::Lookup&, lanes::PlannedLookup& plan) override {
    const auto list = [](const auto& items, auto text) {
      std::string line;
      for (const auto& item : items) line += " " + text(item);
      return line;
    };
    const auto expert = [](int32_t e) { return std::to_string(e); };
    const auto placed = [](const auto& at) { return fmt::format("{}>{}", at.expert, at.slot); };
    const auto keyed = [](const auto& at) {
      return fmt::format("{}.{}>{}", at.key.layer, at.key.expert, at.slot);
    };
    lines_.push_back(fmt::format(
        "layer {} of {} tokens: hits{}, uploads{}, streamed{}, cpu{}, evicts{}, fills{}: {} by {}, "
        "{:.9g} us, at best {:.9g}",
        plan.layer, plan.n_tokens, list(plan.hits, placed), list(plan.uploads, placed),
        list(plan.streamed, expert), list(plan.cpu, expert), list(plan.evictions, keyed),
        list(plan.fills, keyed), lanes::split_name(plan.split), lanes::reason_name(plan.reason),
        plan.predicted_us, plan.cheapest_us));
  }

  std::vector<std::string> take() { return std::exchange(lines_, {}); }

 private:
  std::vector<std::string> lines_;
};

// What a planner that is driven by hand decides for the lookups of a trace.
std::vector<std::string> decided_by_hand(trace::TraceReader trace,
                                         const sim::ReplayOptions& options) {
  Decisions decisions;
  std::vector<cache::CacheGroup> groups;
  for (size_t g = 0; g < trace.header().groups.size(); ++g) {
    groups.push_back(
        {.spec = sim::group_spec(trace.header().groups[g]), .n_slots = options.slots[g]});
  }
  auto cache = cache::ExpertCache::create(std::move(groups), options.rules.policy);
  EXPECT_TRUE(cache);
  auto planner = lanes::LookupPlanner::create(*std::move(cache),
                                              {.cache = options.rules, .interceptor = &decisions});
  EXPECT_TRUE(planner);
  while (true) {
    const auto lookup = trace.next();
    if (!lookup || *lookup == nullptr) break;
    EXPECT_TRUE(planner->complete_fills());
    EXPECT_TRUE(planner->plan((*lookup)->layer, (*lookup)->ids, (*lookup)->n_tokens(),
                              (*lookup)->experts_per_token));
  }
  return decisions.take();
}

void expect_equal(const engine::Engine& engine, const sim::ReplayResult& replayed) {
  const cache::CacheCounts counts = engine.cache()->core().total_counts();
  EXPECT_GT(counts.lookups, 0U);
  // All that is decided; a replay knows nothing of times and of what becomes of fills.
  for (const cache::CountField& field : cache::count_fields()) {
    const bool is_decided = field.unit == "lookups" || field.unit == "tokens" ||
                            (field.unit == "experts" && !field.name.starts_with("fills_"));
    if (!is_decided) continue;
    EXPECT_EQ(cache::number(counts, field), cache::number(replayed.counts, field)) << field.name;
  }
  EXPECT_EQ(counts.hits + counts.uploads + counts.cpu + counts.streamed, counts.selected);

  const Bytes expert = engine.cache()->core().spec(0).bytes_per_expert();
  const auto times = [&](uint64_t n) { return expert * static_cast<int64_t>(n); };
  EXPECT_EQ(counts.filled_bytes, times(counts.fills));
  // A prefill's inserts pass as streamed ones.
  EXPECT_EQ(counts.uploaded_bytes + counts.streamed_bytes, times(counts.uploads + counts.streamed));
  // Where the CPU computes everything, resident experts too.
  EXPECT_GE(counts.cpu_bytes, times(counts.cpu));
  if (counts.split_all_on_cpu == 0) {
    EXPECT_EQ(counts.cpu_bytes, times(counts.cpu));
  }
  EXPECT_EQ(replayed.upload_bytes(), times(counts.uploads + counts.streamed + counts.fills));
  EXPECT_EQ(replayed.counts.cpu_bytes, times(counts.cpu));
}

// Decodes the script with a cache, and replays what the recorder wrote and what it kept.
void expect_replay_counts(const std::filesystem::path& model, EngineOptions options) {
  const TemporaryFolder folder;
  const std::string trace = folder / "trace.mct";
  RoutingRecorder recorder({.path = trace, .most_kept = mib(64)});
  Decisions decisions;
  options.observe_routing = recorder.observer();
  options.cache.interceptor = &decisions;
  const auto engine = make_engine(describe(model), options);
  ASSERT_NE(engine, nullptr);
  ASSERT_NE(engine->cache(), nullptr);
  auto header = engine::trace_header(*engine);
  ASSERT_TRUE(header) << header.error().message;
  const Status begun = recorder.begin(*header, engine::served_layers(*engine));
  ASSERT_TRUE(begun) << begun.error().message;
  run_script(*engine);
  const Status ended = recorder.end();
  ASSERT_TRUE(ended) << ended.error().message;

  const std::vector<std::string> decided = decisions.take();
  sim::ReplayOptions replay = report::replay_options(*engine->cache());
  replay.interceptor = &decisions;
  for (const bool from_file : {true, false}) {
    SCOPED_TRACE(from_file ? "file" : "memory");
    const auto replayed = sim::replay(
        [&] { return from_file ? trace::TraceReader::open(trace) : recorder.kept(); }, replay);
    ASSERT_TRUE(replayed) << replayed.error().message;
    expect_equal(*engine, *replayed);
    EXPECT_EQ(decisions.take(), decided);
  }
  auto reader = trace::TraceReader::open(trace);
  ASSERT_TRUE(reader);
  EXPECT_EQ(decided_by_hand(*std::move(reader), replay), decided);
}

class EngineCounts : public testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(EngineCounts, AreThoseOfAReplay) {
  const auto& [model, n_slots] = GetParam();
  const auto path = path_of(model);
  for (const std::optional<double> share :
       {std::optional(0.0), std::optional(0.5), std::optional(1.0), std::optional<double>()}) {
    for (const auto& policy : values<std::string>({"crf-auto", "class_lru", "crf", "lru"}, 1)) {
      for (const bool fills : {false, true}) {
        if (!fills && share == 0) continue;  // nothing to fill
        SCOPED_TRACE(fmt::format("share {}, {}, fills {}", share.value_or(-1), policy, fills));
        EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, n_slots));
        options.cache = {.rules = {.policy = policy,
                                   .cpu_share = share,
                                   .fills = fills,
                                   .rates = lanes::kTypicalRates}};
        expect_replay_counts(path, options);
      }
    }
  }
}

TEST_P(EngineCounts, AreThoseOfAReplayForOtherPrefillLimits) {
  const auto& [model, n_slots] = GetParam();
  const auto path = path_of(model);
  for (const int32_t cache_batch : {1, 3, 200}) {
    SCOPED_TRACE(cache_batch);
    EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, n_slots));
    options.cache.rules.cache_batch = cache_batch;
    options.cache.rules.rates = lanes::kTypicalRates;
    options.cache.rules.cpu_share = 0.5;
    expect_replay_counts(path, options);
  }
}

std::string test_name(const testing::TestParamInfo<std::tuple<std::string, int64_t>>& p) {
  std::string name = std::get<0>(p.param) + "_" + std::to_string(std::get<1>(p.param));
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Random, EngineCounts,
                         testing::Combine(testing::Values("qwen3moe", "qwen2moe", "olmoe", "llama"),
                                          testing::Values(4, 12, 24)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(OtherRandom, EngineCounts,
                         testing::Combine(testing::Values("gpt-oss", "glm4moe", "granitemoe",
                                                          "deepseek2", "dots1"),
                                          testing::Values(12)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Demo, EngineCounts,
                         testing::Combine(testing::Values(kDemo), testing::Values(4, 26, 128)),
                         test_name);

// Layers on the CPU are none of the cache's, and the trace leaves them out.
TEST(EngineCounts, AreThoseOfAReplayWithLayersOnTheCpu) {
  const auto path = model_of("qwen3moe");
  EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, 12));
  options.n_gpu_layers = 2;
  options.cache.rules.rates = lanes::kTypicalRates;
  expect_replay_counts(path, options);
}

}  // namespace
}  // namespace hotset::test
