// What planning costs per lookup: choosing the lanes of 1 to 16 misses, feeding the estimators, and
// watching a token.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/lanes/lane_chooser.h"
#include "hotset/lanes/lane_model.h"
#include "hotset/lanes/never_slower.h"

namespace hotset::lanes {
namespace {

constexpr Bytes kExpertBytes{6'000'000};

LaneCosts costs() {
  return costs_from_rates({.link_gb_per_s = 12,
                           .cpu_gb_per_s = 20,
                           .device_gb_per_s = 400,
                           .launch_us = 15,
                           .turn_us = 5,
                           .rows_us = 5,
                           .device_launch_us = 5},
                          kExpertBytes)
      .value();
}

// Many lookups in turn, so that branch predictors do not learn one by heart.
void choose_lanes(benchmark::State& state) {
  const auto n_misses = static_cast<size_t>(state.range(0));
  constexpr size_t kLookups = 256;
  Random random(1);
  std::vector<std::vector<UploadCandidate>> lookups(kLookups,
                                                    std::vector<UploadCandidate>(n_misses));
  for (std::vector<UploadCandidate>& misses : lookups) {
    for (size_t i = 0; i < n_misses; ++i) {
      misses[i] = {.expert = static_cast<int32_t>(i), .value_us = 500 * random.uniform()};
    }
  }
  const LaneCosts lane_costs = costs();
  const LookupWork work = {.expert_bytes = kExpertBytes, .shared_us = 20, .hit_us = 60};
  LaneChooser chooser(n_misses);
  size_t at = 0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(chooser.choose(lane_costs, work, lookups[at++ % kLookups]));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(choose_lanes)->DenseRange(1, 16)->Arg(64)->Arg(320);

// One lookup's measurements: uploads, CPU lane, uploaded pairs.
void observe_lanes(benchmark::State& state) {
  LaneModel model = LaneModel::create({.expert_bytes = kExpertBytes, .prior = costs()}).value();
  int64_t n = 0;
  for (auto _ : state) {
    const auto experts = static_cast<int64_t>(1 + (n++ % 8));
    const auto x = static_cast<double>(experts);
    benchmark::DoNotOptimize(
        model.observe_upload(LaneUse::kConcurrent, kExpertBytes * experts, 15 + 500 * x));
    benchmark::DoNotOptimize(model.observe_cpu(LaneUse::kConcurrent, x, 5 + 300 * x));
    benchmark::DoNotOptimize(model.observe_pairs(x, 5 + 15 * x));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(observe_lanes);

void watch_token(benchmark::State& state) {
  NeverSlower guard = NeverSlower::create({}).value();
  for (auto _ : state) {
    const bool is_probe = guard.wants_probe(30'000);
    benchmark::DoNotOptimize(guard.observe(
        {.is_probe = is_probe, .token_us = 25'000, .no_cache_us = 30'000, .cache_us = 25'000}));
  }
}
BENCHMARK(watch_token);

}  // namespace
}  // namespace hotset::lanes
