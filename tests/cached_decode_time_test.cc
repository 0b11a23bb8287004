// The virtual time of cached decode, against times worked out from the recorded routing alone; the
// waits for the device; and that nothing is allocated twice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hotset/cache/expert_cache.h"
#include "hotset/cache/fixed_share.h"
#include "hotset/engine/experts/expert_groups.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::HitOrder;

// What the emulated device is told to be.
constexpr double kLatencyUs = 15;
constexpr double kLinkBytesPerUs = 12e3;
constexpr double kDeviceBytesPerUs = 200e3;
constexpr double kCpuBytesPerUs = 20e3;
const std::string kDevice = "emu:clock=virtual,us=15,gbps=12,dev_gbps=200,cpu_gbps=20";

double copy_us(double n_bytes) { return kLatencyUs + n_bytes / kLinkBytesPerUs; }
double graph_us(double n_bytes) { return kLatencyUs + n_bytes / kDeviceBytesPerUs; }

// A token's virtual time and its routing, by layer.
struct TimedToken {
  double us = 0;
  std::map<int64_t, std::vector<int32_t>> ids;
};

std::vector<TimedToken> decode_timed(EngineOptions options, int32_t n_tokens) {
  std::vector<TimedToken> tokens;
  std::map<int64_t, std::vector<int32_t>> ids;
  options.observe_routing = [&](int64_t layer, std::span<const int32_t> routed, int64_t) {
    ids[layer].assign(routed.begin(), routed.end());
  };
  const auto engine = make_engine(describe(model_of("qwen3moe")), options);
  if (engine == nullptr) return {};
  for (const int32_t id : some_ids(static_cast<size_t>(n_tokens), 7)) {
    const double start_us = engine->device()->now_us();
    decode(*engine, as_batch({&id, 1}, true, engine->next_position(0)));
    tokens.push_back({engine->device()->now_us() - start_us, ids});
  }
  return tokens;
}

// The experts' part of one token, from its routing: a cache of its own plans it again.
class TimeModel {
 public:
  TimeModel(const EngineOptions& options, int64_t n_slots, HitOrder order) : order_(order) {
    const auto path = model_of("qwen3moe");
    auto device = device::open_device(kDevice, {});
    HOTSET_CHECK(device.has_value());
    auto groups = engine::device_groups(describe(path), **device, {.first_device_layer = 0},
                                        *options.cache_bytes);
    HOTSET_CHECK(groups.has_value() && groups->size() == 1 && (*groups)[0].n_slots == n_slots);
    for (const Bytes bytes : (*groups)[0].spec.expert_bytes) {
      tensor_bytes_.push_back(static_cast<double>(bytes.count));
    }
    expert_bytes_ = static_cast<double>((*groups)[0].spec.bytes_per_expert().count);
    auto cache = cache::ExpertCache::create(*std::move(groups), options.cache.rules.policy);
    HOTSET_CHECK(cache.has_value());
    cache_.emplace(*std::move(cache));
    auto share = cache::FixedShare::create(
        static_cast<float>(options.cache.rules.cpu_share.value_or(0)), kLayers);
    HOTSET_CHECK(share.has_value());
    share_.emplace(*share);
    row_bytes_ = 4.0 * static_cast<double>(describe(path).spec.n_embd);
  }

  // With a cache.
  double cached_us(const TimedToken& token) {
    double us = 0;
    for (const auto& [layer, ids] : token.ids) us += layer_us(static_cast<int32_t>(layer), ids);
    return us;
  }

  // Without a cache: every expert on the CPU, and one copy of all rows.
  double uncached_us(const TimedToken& token) const {
    double us = 0;
    for (const auto& [layer, ids] : token.ids) {
      const auto n = static_cast<double>(ids.size());
      us += n * expert_bytes_ / kCpuBytesPerUs + copy_us(n * row_bytes_);
    }
    return us;
  }

 private:
  double layer_us(int32_t layer, const std::vector<int32_t>& ids) {
    const auto k = static_cast<int32_t>(ids.size());
    // Maps are only sent where the device looks slots up by itself.
    const bool sends_map = std::exchange(stale_map_[layer], false) && order_ == HitOrder::kQueued;
    double us = sends_map ? copy_us(4.0 * kExperts) : 0;
    const auto lookup = cache_->classify(layer, ids, 1, k);
    HOTSET_CHECK(lookup.has_value());
    std::vector<int32_t> cpu;
    const auto n_share = static_cast<size_t>(share_->take(*lookup));
    for (const cache::Miss& miss : lookup->misses.first(n_share)) cpu.push_back(miss.expert);
    const auto n_hits = static_cast<double>(lookup->hits.size());
    const auto plan = cache_->commit(*lookup, {.cpu_experts = cpu});
    HOTSET_CHECK(plan.has_value());
    const auto n_uploads = static_cast<double>(plan->uploads.size());
    const auto n_cpu = static_cast<double>(plan->cpu_experts.size());
    if (n_uploads > 0) stale_map_[layer] = true;
    for (const cache::Eviction& eviction : plan->evictions) stale_map_[eviction.key.layer] = true;

    const auto list_us = [](double n) { return copy_us(4 * 4 * 64 * std::ceil(n / 64)); };
    double hit_us = graph_us(k * expert_bytes_);  // the pad slot is read for missing experts
    if (order_ == HitOrder::kListed) {
      hit_us = n_hits > 0 ? list_us(n_hits) + graph_us(n_hits * expert_bytes_) : 0;
    }
    const double device_us = n_uploads > 0
                                 ? std::max(hit_us, upload_us(*plan)) + list_us(n_uploads) +
                                       graph_us(n_uploads * expert_bytes_)
                                 : hit_us;
    us += std::max(device_us, n_cpu * expert_bytes_ / kCpuBytesPerUs);
    return us + rows_us(ids, plan->cpu_experts);
  }

  double upload_us(const cache::LookupPlan& plan) const {
    double us = 0;
    for (size_t i = 0; i < plan.uploads.size();) {
      size_t n = 1;
      while (i + n < plan.uploads.size() &&
             plan.uploads[i + n].expert == plan.uploads[i + n - 1].expert + 1 &&
             plan.uploads[i + n].slot == plan.uploads[i + n - 1].slot + 1) {
        ++n;
      }
      for (const double bytes : tensor_bytes_) us += copy_us(static_cast<double>(n) * bytes);
      i += n;
    }
    return us;
  }

  double rows_us(const std::vector<int32_t>& ids, std::span<const int32_t> cpu) const {
    double us = 0;
    double n_run = 0;
    for (const int32_t id : ids) {
      if (std::ranges::find(cpu, id) != cpu.end()) {
        ++n_run;
      } else {
        us += n_run > 0 ? copy_us(n_run * row_bytes_) : 0;
        n_run = 0;
      }
    }
    return us + (n_run > 0 ? copy_us(n_run * row_bytes_) : 0);
  }

  HitOrder order_;
  std::optional<cache::ExpertCache> cache_;
  std::optional<cache::FixedShare> share_;
  std::vector<double> tensor_bytes_;
  double expert_bytes_ = 0;
  double row_bytes_ = 0;
  std::map<int32_t, bool> stale_map_;
};

TEST(VirtualTime, IsTheSlowestLaneOfEachLayerPlusRouting) {
  constexpr int32_t kTokens = 40;
  const auto uncached = decode_timed(cache_options(kDevice, {}), kTokens);
  ASSERT_EQ(uncached.size(), static_cast<size_t>(kTokens));
  for (const int64_t n_slots : {6, 12, 24}) {
    for (const double share : {0.0, 0.5, 1.0}) {
      for (const HitOrder order : {HitOrder::kQueued, HitOrder::kListed}) {
        EngineOptions options = cache_options(kDevice, budget_for(model_of("qwen3moe"), n_slots));
        options.cache = {.rules = {.policy = "class_lru", .cpu_share = share, .fills = false},
                         .hit_order = order};
        const auto cached = decode_timed(options, kTokens);
        TimeModel model(options, n_slots, order);
        for (size_t i = 0; i < cached.size(); ++i) {
          ASSERT_EQ(cached[i].ids, uncached[i].ids);
          // Everything but the experts takes what it takes without a cache.
          const double rest_us = uncached[i].us - model.uncached_us(uncached[i]);
          EXPECT_NEAR(cached[i].us, rest_us + model.cached_us(cached[i]), 1e-6)
              << "token " << i << ", " << n_slots << " slots, share " << share;
        }
      }
    }
  }
}

std::vector<uint64_t> uploads_by_layer(const engine::CachedExperts& cache) {
  std::vector<uint64_t> uploads;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    uploads.push_back(cache.core().counts(layer).total().uploads);
  }
  return uploads;
}

// Of `n` lookups with uploads on a real clock, those whose uploads the host waits for to learn what
// they take: the first and every sixteenth from there.
uint64_t n_timed(uint64_t n) { return (n + 15) / 16; }

TEST(CachedDecode, WaitsOncePerLayerThatIsNotResidentAndOnceForLogits) {
  const auto path = model_of("qwen3moe");
  for (const int64_t n_slots : {int64_t{6}, int64_t{24}, kLayers * kExperts}) {
    for (const double share : {0.0, 0.5, 1.0}) {
      for (const engine::LoadMode mode : {engine::LoadMode::kMmap, engine::LoadMode::kPinned}) {
        EngineOptions options = cache_options("emu", budget_for(path, n_slots));
        options.cache.rules.cpu_share = share;
        options.load.load_mode = mode;
        const auto engine = make_engine(describe(path), options);
        ASSERT_NE(engine, nullptr);
        EXPECT_EQ(engine->cache()->banks().source_is_pinned(), mode == engine::LoadMode::kPinned);
        const bool is_resident = n_slots == kLayers * kExperts;
        uint64_t n_with_uploads = 0;  // lookups
        for (const int32_t id : some_ids(20, 5)) {
          const auto uploads_before = uploads_by_layer(*engine->cache());
          const uint64_t n_timed_before = n_timed(n_with_uploads);
          engine->device()->reset_counters();
          decode(*engine, as_batch({&id, 1}, true, engine->next_position(0)));
          const auto uploads = uploads_by_layer(*engine->cache());
          for (size_t i = 0; i < uploads.size(); ++i) {
            n_with_uploads += uploads[i] > uploads_before[i] ? 1 : 0;
          }
          EXPECT_EQ(engine->device()->counters().n_waits,
                    (is_resident ? 1 : kLayers + 1) + n_timed(n_with_uploads) - n_timed_before);
        }
        // Otherwise the count above would not be of lookups that wait for nothing.
        if (!is_resident && share < 1) {
          EXPECT_GT(n_with_uploads, 2U);
        }
      }
    }
  }
}

TEST(CachedDecode, LateCopiesAndPageableMemoryChangeNothing) {
  const auto path = model_of("qwen3moe");
  const std::vector<float> expected = script_without_cache(path);
  for (const std::string fault : {"late_us=200", "late_us=400,late_seed=2", "late_us=50,us=0",
                                  "refuse_pinned=1", "gbps=0.5"}) {
    for (const HitOrder order : {HitOrder::kQueued, HitOrder::kListed}) {
      for (const engine::LoadMode mode : {engine::LoadMode::kMmap, engine::LoadMode::kPinned}) {
        EngineOptions options = cache_options("emu:" + fault, budget_for(path, 12));
        options.cache.hit_order = order;
        options.cache.rules.cpu_share = 0.5;
        options.load.load_mode = mode;
        const auto engine = make_engine(describe(path), options);
        ASSERT_NE(engine, nullptr);
        EXPECT_EQ(run_script(*engine), expected) << fault;
        EXPECT_GT(engine->cache()->core().total_counts().fills_entered, 0U);
      }
    }
  }
}

TEST(CachedDecode, ADeviceThatFailsEndsWithAnErrorAndNeverHangs) {
  const auto path = model_of("qwen3moe");
  std::vector<std::string> faults;
  for (const int n : {30, 45, 46, 47, 60, 90, 130, 131, 132, 200}) {
    for (const std::string fault : {"fail_copy", "short_copy", "fail_graph", "vanish"}) {
      faults.push_back(fault + "=" + std::to_string(n));
    }
  }
  for (const std::string& fault : faults) {
    EngineOptions options = cache_options("emu:" + fault, budget_for(path, 12));
    options.cache.rules.cpu_share = 0.5;
    const auto engine = engine::Engine::create(describe(path), options);
    if (!engine) {  // the start copies, too
      EXPECT_EQ(engine.error().code, ErrorCode::kDevice) << fault;
      continue;
    }
    bool failed = false;
    for (int32_t i = 0; i < 40 && !failed; ++i) {
      const auto result = (*engine)->decode(as_batch({&i, 1}, true, (*engine)->next_position(0)));
      failed = !result;
      if (failed) {
        EXPECT_EQ(result.error().code, ErrorCode::kDevice) << fault;
      }
    }
    EXPECT_TRUE(failed) << fault;
    // And it stays failed, without hanging.
    const int32_t id = 1;
    EXPECT_FALSE((*engine)->decode(as_batch({&id, 1}, true, (*engine)->next_position(0))));
  }
}

TEST(CachedDecode, ABudgetBelowKExpertsIsNoCache) {
  const auto path = model_of("qwen3moe");
  const auto engine = make_engine(describe(path), cache_options("emu", budget_for(path, 3)));
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->cache(), nullptr);
  EXPECT_EQ(run_script(*engine), script_without_cache(path));
}

}  // namespace
}  // namespace hotset::test
