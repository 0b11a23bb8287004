// What the engine's cache counted is what a replay of its routing counts, for every setting: both
// drive the same objects.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "hotset/engine/routing_recorder.h"
#include "hotset/sim/replay.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::RoutingRecorder;

const char kDemo[] = "demo";

std::filesystem::path path_of(const std::string& model) {
  return model == kDemo ? demo_model() : model_of(model);
}

sim::ReplayOptions replay_options(const engine::CachedExperts& cache) {
  sim::ReplayOptions options{.policy = cache.options().policy,
                             .share = {.is_auto = !cache.options().cpu_share,
                                       .fixed = cache.options().cpu_share.value_or(0)},
                             .skip_tokens = 0,
                             .max_decode_tokens = cache.options().max_decode_tokens,
                             .fills = cache.options().fills,
                             .rates = cache.options().rates.value()};
  for (int32_t g = 0; g < cache.core().n_groups(); ++g) {
    options.slots.push_back(cache.core().slots(g).n_slots());
  }
  return options;
}

engine::LaneTotals lane_totals(const engine::Engine& engine) {
  engine::LaneTotals total;
  for (int64_t layer = 0; layer < engine.spec().n_layer; ++layer) {
    for (int i = 0; i < kBatchClasses; ++i) {
      total += engine.cache()->totals(layer, static_cast<BatchClass>(i));
    }
  }
  return total;
}

void expect_equal(const engine::Engine& engine, const sim::ReplayResult& replayed) {
  const LookupCounts counts = engine.cache()->core().total_statistics();
  EXPECT_GT(counts.lookups, 0U);
  EXPECT_EQ(counts.lookups, static_cast<uint64_t>(replayed.lookups));
  EXPECT_EQ(counts.hits, static_cast<uint64_t>(replayed.hits));
  // What a prefill streams crosses the link in a replay.
  EXPECT_EQ(counts.uploads + counts.streamed, static_cast<uint64_t>(replayed.uploads));
  EXPECT_EQ(counts.cpu, static_cast<uint64_t>(replayed.cpu));
  EXPECT_EQ(counts.evictions, static_cast<uint64_t>(replayed.evictions));
  EXPECT_EQ(counts.fills, static_cast<uint64_t>(replayed.fills));
  EXPECT_EQ(counts.hits + counts.uploads + counts.cpu + counts.streamed, counts.selected);

  const Bytes expert = engine.cache()->core().spec(0).bytes_per_expert();
  const auto times = [&](uint64_t n) { return expert * static_cast<int64_t>(n); };
  const engine::LaneTotals lanes = lane_totals(engine);
  EXPECT_EQ(lanes.filled, times(counts.fills));
  EXPECT_GE(lanes.uploaded + lanes.streamed, times(counts.uploads));
  EXPECT_GE(lanes.cpu_read, times(counts.cpu));
  EXPECT_EQ(lanes.uploaded + lanes.cpu_read + lanes.streamed,
            times(counts.uploads + counts.cpu + counts.streamed));
}

// Decodes the script with a cache, and replays what the recorder wrote and what it kept.
void expect_replay_counts(const std::filesystem::path& model, EngineOptions options) {
  const TemporaryFolder folder;
  const std::string trace = folder / "trace.mct";
  RoutingRecorder recorder({.path = trace, .memory = mib(64)});
  options.observe_routing = recorder.observer();
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

  for (const bool from_file : {true, false}) {
    SCOPED_TRACE(from_file ? "file" : "memory");
    const auto replayed =
        sim::replay([&] { return from_file ? TraceReader::open(trace) : recorder.kept(); },
                    replay_options(*engine->cache()));
    ASSERT_TRUE(replayed) << replayed.error().message;
    expect_equal(*engine, *replayed);
  }
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
        options.cache = {
            .policy = policy, .cpu_share = share, .fills = fills, .rates = lanes::kTypicalRates};
        expect_replay_counts(path, options);
      }
    }
  }
}

TEST_P(EngineCounts, AreThoseOfAReplayForOtherPrefillLimits) {
  const auto& [model, n_slots] = GetParam();
  const auto path = path_of(model);
  for (const int32_t max_decode_tokens : {1, 3, 200}) {
    SCOPED_TRACE(max_decode_tokens);
    EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, n_slots));
    options.cache.max_decode_tokens = max_decode_tokens;
    options.cache.rates = lanes::kTypicalRates;
    options.cache.cpu_share = 0.5;
    expect_replay_counts(path, options);
  }
}

std::string test_name(const testing::TestParamInfo<std::tuple<std::string, int64_t>>& p) {
  return std::get<0>(p.param) + "_" + std::to_string(std::get<1>(p.param));
}

INSTANTIATE_TEST_SUITE_P(Random, EngineCounts,
                         testing::Combine(testing::Values("qwen3moe", "qwen2moe", "olmoe", "llama"),
                                          testing::Values(4, 12, 24)),
                         test_name);
INSTANTIATE_TEST_SUITE_P(Demo, EngineCounts,
                         testing::Combine(testing::Values(kDemo), testing::Values(4, 26, 128)),
                         test_name);

// Layers on the CPU are none of the cache's, and the trace leaves them out.
TEST(EngineCounts, AreThoseOfAReplayWithLayersOnTheCpu) {
  const auto path = model_of("qwen3moe");
  EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, 12));
  options.n_gpu_layers = 2;
  options.cache.rates = lanes::kTypicalRates;
  expect_replay_counts(path, options);
}

}  // namespace
}  // namespace hotset::test
