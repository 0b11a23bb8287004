// Cached decode on the emulated device: the same bits as without a cache for every size, share,
// policy and batch.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::HitOrder;

class CachedBits : public testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(CachedBits, ForEverySizeSharePolicyAndOrder) {
  const auto& [architecture, n_slots] = GetParam();
  const auto path = architecture == "demo" ? demo_model() : model_of(architecture);
  const std::vector<float> expected = script_without_cache(path);
  for (const double share : {0.0, 0.5, 1.0}) {
    for (const auto& policy : values<std::string>({"crf-auto", "class_lru", "crf", "lru"}, 1)) {
      for (const bool fills : {false, true}) {
        EngineOptions options = cache_options("emu:clock=virtual", budget_for(path, n_slots));
        options.cache = {.rules = {.policy = policy, .cpu_share = share, .fills = fills},
                         .hit_order = fills ? HitOrder::kQueued : HitOrder::kListed};
        const auto engine = make_engine(describe(path), options);
        ASSERT_NE(engine, nullptr);
        ASSERT_NE(engine->cache(), nullptr);
        const cache::ExpertCache& core = engine->cache()->core();
        const bool resident = core.slots(0).n_slots() == core.spec(0).n_experts();
        ASSERT_EQ(core.slots(0).n_slots(), std::min(n_slots, core.spec(0).n_experts()));
        EXPECT_EQ(run_script(*engine), expected)
            << "share " << share << ", " << policy << ", fills " << fills;
        const cache::CacheCounts counts = core.total_counts();
        EXPECT_EQ(counts.lookups > 0, !resident);
        if (resident) return;  // nothing else matters
        EXPECT_GT(counts.hits, 0U);
        // Too roomy for every lane to get something each time.
        if (4 * n_slots > core.spec(0).n_experts()) continue;
        EXPECT_GT(counts.cpu + counts.streamed, 0U);
        EXPECT_GT(counts.uploads, 0U);  // with any share until the cache is full
        EXPECT_EQ(counts.fills_entered > 0, fills && share > 0);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Matrix, CachedBits,
                         testing::Combine(testing::Values("qwen3moe", "qwen2moe", "olmoe", "llama",
                                                          "gpt-oss", "deepseek2", "glm4moe",
                                                          "granitemoe"),
                                          testing::Values(4, 6, 12, 24, kLayers* kExperts)),
                         [](const auto& p) {
                           std::string name = std::get<0>(p.param);
                           std::ranges::replace(name, '-', '_');
                           return name + "_" + std::to_string(std::get<1>(p.param));
                         });

// k, 5%, a quarter and all of its 512 experts.
INSTANTIATE_TEST_SUITE_P(Demo, CachedBits,
                         testing::Combine(testing::Values("demo"),
                                          testing::Values(4, 26, 128, 512)),
                         [](const auto& p) { return std::to_string(std::get<1>(p.param)); });

// The need of compute memory is measured at some sizes; those between must find room, too.
class EverySize : public testing::TestWithParam<std::string> {};

TEST_P(EverySize, OfUbatchIsServed) {
  const auto path = model_of(GetParam());
  for (const std::string device : {"", "emu:clock=virtual"}) {
    EngineOptions options = cache_options(device, device.empty() ? Bytes{} : budget_for(path, 6));
    options.context.n_ubatch = kSanitized ? 33 : 90;
    options.context.n_outputs = options.context.n_ubatch;
    const auto engine = make_engine(describe(path), options);
    ASSERT_NE(engine, nullptr);
    for (int32_t n = options.context.n_ubatch; n > 0; --n) {
      for (const bool all_logits : {true, false}) {
        engine->forget(0, 0, INT32_MAX);
        const auto ids = some_ids(static_cast<size_t>(n), 3);
        ASSERT_FALSE(decode(*engine, as_batch(ids, all_logits)).empty()) << device << ": " << n;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, EverySize,
                         testing::Values("qwen3moe", "gpt-oss", "deepseek2", "glm4moe"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace hotset::test
