// How fast a trace is read and replayed. items_per_second are routed ids per second and core: a
// replay is one thread.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/sim/replay.h"
#include "hotset/sim/trace_cache.h"
#include "hotset/trace/reader.h"
#include "hotset/trace/synth.h"

namespace hotset {
namespace {

// Shapes of Qwen3-30B-A3B and of Qwen3.8-Flash-Next.
struct Shape {
  const char* name;
  uint32_t n_expert;
  uint32_t experts_per_token;
};
constexpr Shape kShapes[] = {{"128_experts_top_8", 128, 8}, {"512_experts_top_10", 512, 10}};
constexpr uint32_t kLayers = 48;
constexpr int64_t kTokens = 400;
constexpr double kCachePart = 0.2;  // of the bytes of all experts

struct Trace {
  trace::TraceHeader header;
  std::vector<std::byte> bytes;
  int64_t n_ids = 0;

  Result<trace::TraceReader> open() const {
    return trace::TraceReader::from(std::make_unique<trace::MemorySource>(bytes), "memory");
  }
};

Trace make_trace(const Shape& shape) {
  const trace::SynthOptions options{.n_layer = kLayers,
                                    .n_expert = shape.n_expert,
                                    .experts_per_token = shape.experts_per_token,
                                    .n_tokens = kTokens};
  Trace trace{.header = trace::synth_header(options).value(),
              .bytes = trace::synthesize_bytes(options).value(),
              .n_ids = int64_t{kLayers} * kTokens * shape.experts_per_token};
  return trace;
}

void read_trace(benchmark::State& state, const Trace& trace) {
  for (auto _ : state) {
    trace::TraceReader reader = trace.open().value();
    int64_t n_ids = 0;
    while (const trace::TraceLookup* lookup = reader.next().value())
      n_ids += std::ssize(lookup->ids);
    if (n_ids != trace.n_ids) state.SkipWithError("ids are missing");
  }
  state.SetItemsProcessed(state.iterations() * trace.n_ids);
  state.SetBytesProcessed(state.iterations() * std::ssize(trace.bytes));
}

void replay_trace(benchmark::State& state, const Trace& trace, const std::string& policy,
                  lanes::CpuShare share) {
  const Bytes budget{
      static_cast<int64_t>(kCachePart * static_cast<double>(trace.header.host_bytes().count))};
  const sim::ReplayOptions options{.rules = {.policy = policy, .cpu_share = share},
                                   .slots = sim::slots_for_trace(trace.header, budget, 0).value(),
                                   .counted = {.skip_tokens = 0}};
  double hit_rate = 0;
  for (auto _ : state) {
    const auto result = sim::replay([&] { return trace.open(); }, options);
    if (!result) {
      state.SkipWithError(result.error().message);
      return;
    }
    hit_rate = result->hit_rate();
  }
  state.counters["hit_rate"] = hit_rate;
  state.SetItemsProcessed(state.iterations() * trace.n_ids);
}

const int kRegistered = [] {
  for (const Shape& shape : kShapes) {
    const auto trace = std::make_shared<const Trace>(make_trace(shape));
    benchmark::RegisterBenchmark(fmt::format("read/{}", shape.name), [trace](auto& state) {
      read_trace(state, *trace);
    })->Unit(benchmark::kMillisecond);
    const auto add = [&](const std::string& policy, const char* suffix, lanes::CpuShare share) {
      benchmark::RegisterBenchmark(fmt::format("replay/{}/{}{}", shape.name, policy, suffix),
                                   [=](auto& state) { replay_trace(state, *trace, policy, share); })
          ->Unit(benchmark::kMillisecond);
    };
    for (const char* policy : {"class_lru", "crf", "crf-auto", "lru", "belady", "belady-demand"}) {
      add(policy, "", {});
    }
    add("class_lru", "/share_half", 0.5);
    add("class_lru", "/share_auto", {});
  }
  return 0;
}();

}  // namespace
}  // namespace hotset
