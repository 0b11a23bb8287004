// Planning allocates nothing in steady state: every allocation of the program is counted here.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "hotset/cache/expert_cache.h"
#include "hotset/policy/policy_testing.h"

namespace {
std::atomic<int64_t> n_allocations = 0;

void* counted(size_t n_bytes) noexcept {
  n_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(n_bytes == 0 ? 1 : n_bytes);
}

void* counted_or_throw(size_t n_bytes) {
  if (void* memory = counted(n_bytes)) return memory;
  throw std::bad_alloc();
}
}  // namespace

void* operator new(size_t n_bytes) { return counted_or_throw(n_bytes); }
void* operator new[](size_t n_bytes) { return counted_or_throw(n_bytes); }
void* operator new(size_t n_bytes, const std::nothrow_t&) noexcept { return counted(n_bytes); }
void* operator new[](size_t n_bytes, const std::nothrow_t&) noexcept { return counted(n_bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace hotset::cache {
namespace {

constexpr policy::PolicyShape kShape{.n_layers = 6, .n_expert = 64, .n_slots = 120};
constexpr int32_t kTopK = 6;

struct PlannedIds {
  int32_t layer = 0;
  int32_t n_tokens = 1;
  std::vector<int32_t> ids;
};

// Lookups of 1 token, of a few, and of a prefill that selects everything.
std::vector<PlannedIds> all_kinds(Random& random) {
  std::vector<PlannedIds> lookups;
  for (int i = 0; i < 3000; i++) {
    PlannedIds lookup{.layer = i % kShape.n_layers, .ids = {}};
    if (i % 10 == 0) lookup.n_tokens = 1 + static_cast<int32_t>(random.below(16));
    if (i % 500 == 499) lookup.n_tokens = 200;
    for (int32_t pair = 0; pair < lookup.n_tokens * kTopK; pair++) {
      const double skewed = random.uniform() * random.uniform() * kShape.n_expert;
      lookup.ids.push_back(static_cast<int32_t>(skewed));
    }
    lookups.push_back(std::move(lookup));
  }
  return lookups;
}

void plan(ExpertCache& cache, FixedShare& share, const PlannedIds& planned,
          std::vector<int32_t>& cpu) {
  const auto lookup = cache.classify(planned.layer, planned.ids, planned.n_tokens, kTopK);
  HOTSET_CHECK(lookup);
  if (planned.n_tokens > 32) {
    HOTSET_CHECK(cache.commit_prefill(*lookup, 8));
    return;
  }
  cpu.clear();
  for (const Miss& miss : lookup->misses.first(share.take(*lookup))) {
    cpu.push_back(miss.expert);
  }
  const auto committed = cache.commit(*lookup, {.cpu_experts = cpu, .max_fills = 2});
  HOTSET_CHECK(committed);
  for (size_t i = 0; i < committed->fills.size(); i++) {
    const Fill& fill = committed->fills[i];
    HOTSET_CHECK(i == 0 ? cache.complete_fill(fill.group, fill.slot).has_value()
                        : cache.cancel_fill(fill.group, fill.slot).has_value());
  }
}

class Allocation : public ::testing::TestWithParam<std::string> {};

TEST_P(Allocation, PlanningAllocatesNothing) {
  Random random(policy::test::test_seed());
  const std::vector<PlannedIds> lookups = all_kinds(random);
  std::vector<uint64_t> profile(static_cast<size_t>(kShape.n_experts()));
  for (uint64_t& uses : profile) uses = random.below(100);
  policy::RecordedFuture future(kShape.n_experts());
  for (const PlannedIds& lookup : lookups) {
    std::vector<policy::ExpertIndex> experts;
    for (const int32_t id : lookup.ids) experts.push_back(lookup.layer * kShape.n_expert + id);
    ASSERT_TRUE(future.append(experts));
  }
  future.rewind();
  CacheGroup group{.spec = {.n_expert = kShape.n_expert,
                            .layers = {0, 1, 2, 3, 4, 5},
                            .group_host_bytes = mib(1),
                            .device_host_bytes = mib(1),
                            .expert_bytes = {{1024}}},
                   .n_slots = kShape.n_slots,
                   .profile = profile,
                   .future = &future};
  ExpertCache cache = ExpertCache::create({group}, GetParam()).value();
  FixedShare share = FixedShare::create(0.3F, kShape.n_layers).value();
  std::vector<int32_t> cpu;
  cpu.reserve(kShape.n_expert);
  const int64_t before = n_allocations;
  for (const PlannedIds& lookup : lookups) {
    plan(cache, share, lookup, cpu);
    future.advance();
  }
  EXPECT_EQ(n_allocations - before, 0);
  EXPECT_GT(before, 0) << "the counter counts";
  const CacheCounts counts = cache.total_counts();
  EXPECT_GT(counts.hits, 0U);
  if (GetParam() != "unbounded") {
    EXPECT_GT(counts.cpu, 0U);
  }
}

std::vector<std::string> all_policies() {
  return {policy::policy_names().begin(), policy::policy_names().end()};
}

INSTANTIATE_TEST_SUITE_P(Policies, Allocation, ::testing::ValuesIn(all_policies()),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::ranges::replace(text, '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace hotset::cache
