// What planning one lookup costs, with a fixed share and with share auto: batch 1, all layers in
// turn.
// items_per_second are lookups; `allocations` and `misses` are per lookup.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/lanes/lookup_planner.h"

namespace {
std::atomic<int64_t> n_allocations = 0;
}  // namespace

// Every allocation of C++ code counts. Not inlined: GCC would take the free() of an inlined
// operator delete for the counterpart of a library's operator new.
[[gnu::noinline]] void* operator new(size_t n_bytes) {
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(n_bytes == 0 ? 1 : n_bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace hotset {
namespace {

// Shapes of Qwen3-30B-A3B and of Qwen3.8-Flash-Next.
struct Shape {
  const char* name;
  int32_t n_expert;
  int32_t k;
};
constexpr Shape kShapes[] = {{"128_experts_top_8", 128, 8}, {"512_experts_top_10", 512, 10}};
constexpr int32_t kLayers = 48;
constexpr int32_t kTokens = 512;

// ids [n_tokens, n_layers, k]: k distinct experts each, uniform, so that the hit rate is the part
// of the experts that has slots.
std::vector<int32_t> make_ids(const Shape& shape) {
  Random random(1);
  std::vector<int32_t> ids;
  std::vector<int32_t> experts(static_cast<size_t>(shape.n_expert));
  for (size_t i = 0; i < experts.size(); i++) experts[i] = static_cast<int32_t>(i);
  for (int32_t lookup = 0; lookup < kTokens * kLayers; lookup++) {
    for (size_t i = 0; i < static_cast<size_t>(shape.k); i++) {
      std::swap(experts[i], experts[i + random.below(experts.size() - i)]);
      ids.push_back(experts[i]);
    }
  }
  return ids;
}

cache::ExpertCache make_cache(const Shape& shape, const std::string& policy, double cached_part) {
  cache::CacheGroup group;
  group.spec = {.n_expert = shape.n_expert,
                .layers = {},
                .group_host_bytes = mib(1),
                .device_host_bytes = mib(1),
                .expert_bytes = {mib(1)}};
  for (int32_t layer = 0; layer < kLayers; layer++) group.spec.layers.push_back(layer);
  group.n_slots = static_cast<int64_t>(cached_part * static_cast<double>(group.spec.n_experts()));
  std::vector<cache::CacheGroup> groups;
  groups.push_back(std::move(group));
  return cache::ExpertCache::create(std::move(groups), policy).value();
}

void plan_lookups(benchmark::State& state, const Shape& shape, const std::string& policy,
                  std::optional<double> share, double cached_part) {
  const std::vector<int32_t> ids = make_ids(shape);
  auto planner = lanes::LookupPlanner::create(make_cache(shape, policy, cached_part),
                                              {.cache = {.cpu_share = share}})
                     .value();
  const auto k = static_cast<size_t>(shape.k);
  const size_t n_lookups = ids.size() / k;
  const auto plan = [&](size_t i) {
    const std::span<const int32_t> of_lookup = std::span(ids).subspan(i * k, k);
    const auto layer = static_cast<int32_t>(i % kLayers);
    if (!planner.complete_fills() || !planner.plan(layer, of_lookup, 1, shape.k)) std::abort();
  };
  for (size_t i = 0; i < n_lookups; i++) plan(i);  // fills the cache
  planner.cache().reset_counts();
  const int64_t allocations_before = n_allocations;
  size_t i = 0;
  for (auto _ : state) {
    plan(i);
    if (++i == n_lookups) i = 0;
  }
  const int64_t allocations = n_allocations - allocations_before;
  const cache::CacheCounts counts = planner.cache().total_counts();
  state.SetItemsProcessed(state.iterations());
  state.counters["allocations"] =
      static_cast<double>(allocations) / static_cast<double>(counts.lookups);
  state.counters["misses"] =
      static_cast<double>(counts.uploads + counts.cpu) / static_cast<double>(counts.lookups);
}

const int kRegistered = [] {
  for (const Shape& shape : kShapes) {
    for (const char* policy : {"class_lru", "crf", "crf-blend", "crf-auto", "lru"}) {
      const auto add = [&](const char* share_name, std::optional<double> share, const char* name,
                           double cached_part) {
        benchmark::RegisterBenchmark(
            fmt::format("plan/{}/{}/{}/{}", shape.name, policy, share_name, name),
            [=](auto& state) { plan_lookups(state, shape, policy, share, cached_part); });
      };
      for (const auto& [name, cached_part] : {std::pair("all_hit", 1.0), {"30%_missing", 0.7}}) {
        add("share_0", 0.0, name, cached_part);
        add("share_auto", std::nullopt, name, cached_part);
      }
    }
  }
  return 0;
}();

}  // namespace
}  // namespace hotset
