// The memory plan against what is allocated afterwards, on emulated devices of many sizes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "hotset/engine/experts/repacked_ratio.h"
#include "hotset/engine/run/default_context.h"
#include "hotset/engine/run/engine_plan.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using testing::HasSubstr;

EngineOptions auto_cache(const std::string& device) {
  EngineOptions options = cache_options(device, {});
  options.cache_bytes = std::nullopt;
  return options;
}

TEST(EnginePlan, CountsWhatIsAllocatedAndFillsTheDevice) {
  for (const std::string architecture : {"qwen3moe", "qwen2moe"}) {
    const auto path = model_of(architecture);
    const auto expected = script_without_cache(path);
    int n_cached = 0;
    int n_resident = 0;
    for (int mib = 4; mib <= 24; ++mib) {
      const auto engine = engine::Engine::create(
          describe(path), auto_cache("emu:clock=virtual,mib=" + std::to_string(mib)));
      if (!engine) {
        EXPECT_EQ(engine.error().code, ErrorCode::kOutOfMemory);
        EXPECT_THAT(engine.error().message, HasSubstr("missing"));
        EXPECT_EQ(n_cached + n_resident, 0) << mib << " MiB are refused, but less was enough";
        continue;
      }
      const plan::DevicePlan& planned = (*engine)->plan().memory.devices.front();
      EXPECT_EQ((*engine)->placement().first_device_layer == 0,
                (*engine)->plan().n_gpu_layers >= kLayers);
      if ((*engine)->cache() == nullptr) continue;
      Bytes banks;
      for (const cache::CacheGroup& group : (*engine)->plan().groups) {
        banks += cache::bank_bytes(group.spec, group.n_slots);
      }
      const Bytes left = planned.items.back().left - banks;
      const Bytes free = (*engine)->device()->free_memory();
      const bool resident = (*engine)->cache()->core().slots(0).n_slots() == kLayers * kExperts;
      n_resident += resident ? 1 : 0;
      n_cached += resident ? 0 : 1;
      EXPECT_GE(free, Bytes{0});
      if (resident) {
        EXPECT_GE(free, left);  // and no graphs for lookups
      } else {
        EXPECT_EQ(free, left) << mib << " MiB";
        // Not even one more expert fits.
        EXPECT_LT(free, 2 * expert_bytes(path));
      }
      EXPECT_EQ(run_script(**engine), expected) << mib << " MiB";
    }
    EXPECT_GT(n_cached, 0);
    EXPECT_GT(n_resident, 0);
  }
}

TEST(EnginePlan, PutsTheLayersThatFitOnTheDevice) {
  const auto path = model_of("qwen3moe");
  EngineOptions options = auto_cache("");
  options.context.n_ctx = 4096;
  options.context.n_ubatch = 32;
  const auto alone = make_engine(describe(path), options);
  const auto expected = run_script(*alone);
  std::set<int64_t> seen;
  for (int mib = 2; mib <= 16; ++mib) {
    options.device = "emu:mib=" + std::to_string(mib);
    auto description = describe(path);
    const auto plan = engine::plan_without_loading(description, options);
    ASSERT_TRUE(plan) << plan.error().message;
    if (!plan->memory.fits() || !seen.insert(plan->n_gpu_layers).second) continue;
    const auto engine = make_engine(describe(path), options);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->plan().n_gpu_layers, plan->n_gpu_layers);
    EXPECT_EQ(run_script(*engine), expected) << plan->n_gpu_layers;
  }
  EXPECT_GE(seen.size(), 2U);  // all of them, and some
  EXPECT_TRUE(seen.contains(kLayers + 1));
}

TEST(EnginePlan, RefusesWithNumbersAndAdvice) {
  const auto path = model_of("qwen3moe");
  EngineOptions options = cache_options("emu:mib=16", mib(1));
  options.n_gpu_layers = kLayers + 1;
  options.context.n_ubatch = 32;
  options.context.n_ctx = 1 << 14;
  const auto too_much_context = engine::Engine::create(describe(path), options);
  ASSERT_FALSE(too_much_context);
  EXPECT_EQ(too_much_context.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(too_much_context.error().message, HasSubstr("missing"));
  EXPECT_THAT(too_much_context.error().message, HasSubstr("-c "));

  options = cache_options("emu:mib=12", mib(1));
  options.context.n_ubatch = 32;
  options.headroom = mib(10);
  options.n_gpu_layers = kLayers + 1;
  const auto headroom = engine::Engine::create(describe(path), options);
  ASSERT_FALSE(headroom);
  EXPECT_THAT(headroom.error().message, HasSubstr("--memory-headroom-mib"));

  int n_refused = 0;
  for (int mib = 2; mib <= 16; ++mib) {
    options = cache_options("emu:mib=" + std::to_string(mib), budget_for(path, kLayers * kExperts));
    options.context.n_ubatch = 32;
    const auto asked = engine::Engine::create(describe(path), options);
    if (asked) continue;
    const std::string& message = asked.error().message;
    n_refused += message.find("--moe-cache-mib auto, or at most ") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(n_refused, 0);
}

TEST(EnginePlan, SaysWhyThereIsNoCache) {
  const auto path = model_of("qwen3moe");
  const auto why = [&](const EngineOptions& options) {
    auto description = describe(path);
    const auto plan = engine::plan_without_loading(description, options);
    EXPECT_TRUE(plan) << plan.error().message;
    return plan ? plan->why_no_cache : "";
  };
  EXPECT_THAT(why(cache_options("emu", {})), HasSubstr("--moe-cache-mib 0"));
  EXPECT_THAT(why(cache_options("emu", Bytes{1000})), HasSubstr("less than the 4 experts"));
  EXPECT_EQ(why(cache_options("emu", mib(8))), "");
  EngineOptions head_only = cache_options("emu", mib(8));
  head_only.n_gpu_layers = 0;
  EXPECT_THAT(why(head_only), HasSubstr("no layer with experts is on the device"));
}

TEST(EnginePlan, GivesUpSlotsThatTheDriverKeepsInHostMemory) {
  const auto path = model_of("qwen3moe");
  const auto expected = script_without_cache(path);
  // All 48 experts, or 30 slots; the device's own memory ends at many places, also inside a bank.
  for (const int64_t n_slots : {48, 30}) {
    std::set<int64_t> found;
    for (double mib = 2.5; mib < 4.5; mib += 0.125) {
      EngineOptions options =
          cache_options("emu:clock=virtual,us=1,mib=64,fast_mib=" + std::to_string(mib),
                        budget_for(path, n_slots));
      options.headroom = Bytes{};
      const auto engine = make_engine(describe(path), options);
      ASSERT_NE(engine, nullptr);
      int64_t n_left = 0;
      for (const cache::CacheGroup& group : engine->plan().groups) n_left += group.n_slots;
      EXPECT_TRUE(found.empty() || n_left >= *found.rbegin()) << "more memory, fewer slots";
      found.insert(n_left);
      EXPECT_EQ(engine->cache() == nullptr, n_left == 0);
      EXPECT_EQ(run_script(*engine), expected) << mib << " MiB";
    }
    EXPECT_LT(*found.begin(), n_slots / 2);
    EXPECT_EQ(*found.rbegin(), n_slots);
    EXPECT_GT(found.size(), 3U);
  }
}

TEST(EnginePlan, ADeviceThatReadsHostMemoryGetsACacheOnlyIfAsked) {
  const auto path = model_of("qwen3moe");
  auto description = describe(path);
  const auto plan = engine::plan_without_loading(description, auto_cache("emu:integrated=1"));
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->why_no_cache, HasSubstr("reads host memory"));
  const auto without = make_engine(describe(path), auto_cache("emu:integrated=1"));
  ASSERT_NE(without, nullptr);
  EXPECT_EQ(without->cache(), nullptr);
  const auto asked =
      make_engine(describe(path), cache_options("emu:integrated=1", budget_for(path, 8)));
  ASSERT_NE(asked, nullptr);
  EXPECT_NE(asked->cache(), nullptr);
}

// A model that was trained for more than fits anywhere.
std::string long_model(const TemporaryFolder& folder, int64_t n_ctx_train,
                       const std::string& architecture = "qwen3moe") {
  const std::string path = folder / "long.gguf";
  EXPECT_TRUE(engine::write_random_model({.architecture = architecture,
                                          .n_layer = kLayers,
                                          .n_vocab = kVocabulary,
                                          .n_ctx_train = n_ctx_train},
                                         path));
  return path;
}

TEST(DefaultContext, IsTheLongestThatTheBudgetAllows) {
  const auto longest = [](int64_t budget) {
    return *engine::longest_context(
        {.least = 4096, .most = 1 << 20}, Bytes{budget},
        [](int32_t n) -> Result<Bytes> { return Bytes{1000 + int64_t{n} * 10}; });
  };
  EXPECT_EQ(longest(int64_t{1} << 40), 1 << 20);
  EXPECT_EQ(longest(0), 4096);  // less is of no use
  EXPECT_EQ(longest(1000 + 40960), 4096);
  EXPECT_EQ(longest(1000 + 8192 * 10), 8192);
  for (int64_t n = 5000; n < 1 << 20; n = n * 3 / 2) {
    const int32_t found = longest(1000 + n * 10);
    EXPECT_LE(found, n);
    EXPECT_GT(found, n - 2 * engine::kCellBucket);
  }
  EXPECT_EQ(engine::longest_context(
                {.least = 1, .most = 2}, {},
                [](int32_t) -> Result<Bytes> { return make_error(ErrorCode::kDevice, "gone"); })
                .error()
                .code,
            ErrorCode::kDevice);
}

TEST(DefaultContext, IsWhatTheModelWasTrainedForPerSequence) {
  const TemporaryFolder folder;
  const std::string path = long_model(folder, 5000);
  EngineOptions options{.n_threads = 1, .context = {.n_ubatch = 16, .n_sequences = 3}};
  const auto engine = make_engine(describe(path), options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->n_ctx(), 15000);
  EXPECT_EQ(engine->n_ctx_sequence(), 5000);
  EXPECT_TRUE(engine->has_default_context());
  options.context.most_default_context = 4096;
  EXPECT_EQ(make_engine(describe(path), options)->n_ctx(), 3 * 4096);
  options.context.n_ctx = 600;  // who asks gets it, for all together
  const auto asked = make_engine(describe(path), options);
  EXPECT_EQ(asked->n_ctx(), 600);
  EXPECT_EQ(asked->n_ctx_sequence(), 600);
}

TEST(DefaultContext, TakesAQuarterOfTheDeviceAndIsWhatWasPlanned) {
  const TemporaryFolder folder;
  for (const std::string architecture : {"qwen3moe", "gpt-oss"}) {
    const std::string path = long_model(folder, 1 << 20, architecture);
    for (const int mib : {160, 320}) {
      for (const bool with_cache : {false, true}) {
        EngineOptions options{.n_threads = 1, .context = {.n_ubatch = 32, .n_sequences = 4}};
        options.load.repack = false;
        options.device = "emu:clock=virtual,mib=" + std::to_string(mib);
        if (with_cache) options.cache_bytes.reset();
        const auto engine = make_engine(describe(path), options);
        ASSERT_NE(engine, nullptr);
        const engine::EnginePlan& plan = engine->plan();
        EXPECT_EQ(engine->n_ctx(), plan.n_ctx);
        EXPECT_EQ(plan.n_ctx % (4 * engine::kCellBucket), 0);
        EXPECT_GT(plan.n_ctx, 4 * engine::kLeastContext);
        EXPECT_EQ(engine->n_ctx_sequence(), plan.n_ctx);
        EXPECT_EQ(engine->kv().n_bytes(), plan.demand.kv_cache);
        const Bytes left = plan.demand.free_memory - plan.demand.dense_weights;
        EXPECT_LE(plan.demand.kv_cache, left / 4) << mib;
        // With what grows beside it, nearly all of that.
        EXPECT_GT(plan.demand.kv_cache + plan.demand.compute_buffers, left / 5) << mib;
      }
    }
  }
}

TEST(DefaultContext, IsSharedWhereMemoryIsShort) {
  const TemporaryFolder folder;
  const std::string path = long_model(folder, 1 << 20);
  EngineOptions options{.n_threads = 1, .context = {.n_ubatch = 32, .n_sequences = 4}};
  options.load.repack = false;
  options.device = "emu:clock=virtual,mib=48";
  const auto engine = make_engine(describe(path), options);
  ASSERT_NE(engine, nullptr);
  EXPECT_GE(engine->n_ctx(), engine::kLeastContext);
  EXPECT_LT(engine->n_ctx(), 4 * engine::kLeastContext);
  EXPECT_EQ(engine->n_ctx_sequence(), engine->n_ctx());
  // A cache that was asked for has its room before a longer context.
  options.device = "emu:clock=virtual,mib=24";
  options.cache_bytes = budget_for(path, kLayers * kExperts);
  const auto cached = make_engine(describe(path), options);
  ASSERT_NE(cached, nullptr);
  EXPECT_NE(cached->cache(), nullptr);
}

TEST(DefaultContext, HostMemoryIsCountedAsItIsTaken) {
  const TemporaryFolder folder;
  for (const std::string architecture : {"qwen3moe", "deepseek2", "gpt-oss"}) {
    const std::string path = long_model(folder, 1 << 16, architecture);
    const auto description = describe(path);
    for (const bool flash : {true, false}) {
      EngineOptions options{.n_threads = 1,
                            .context = {.n_ctx = 8192, .n_ubatch = 64, .n_sequences = 2}};
      options.context.flash_attention =
          flash ? engine::FlashAttention::kOn : engine::FlashAttention::kOff;
      const auto engine = make_engine(describe(path), options);
      ASSERT_NE(engine, nullptr);
      const auto counted = engine::host_context_bytes(description.spec, options.context, {}, flash);
      ASSERT_TRUE(counted.has_value());
      // And the mask, and the scores where there are some.
      EXPECT_GT(*counted, engine->kv().n_bytes()) << architecture;
      EXPECT_LE(*counted - engine->kv().n_bytes(),
                Bytes{int64_t{8192} * 64 * (flash ? 2 : 2 + 8 * 64)})
          << architecture;
    }
  }
}

TEST(DefaultContext, LeavesExpertsTheirHostMemory) {
  const auto description = describe(model_of("qwen3moe"));
  Bytes dense;
  Bytes experts;
  for (const auto& tensor : description.file.tensors()) {
    (tensor.name.contains("_exps.") ? experts : dense) += tensor.n_bytes;
  }
  const auto budget = [&](Bytes left) {
    return engine::host_context_budget(description, dense + left);
  };
  EXPECT_EQ(budget(experts * 16), experts * 4);
  EXPECT_EQ(budget(experts + experts / 8), experts / 8);  // what they leave
  EXPECT_EQ(budget(experts), experts / 16);
  EXPECT_EQ(budget(experts / 2), experts / 32);
  EXPECT_EQ(budget(Bytes{} - dense), Bytes{});
}

class RepackedBaseline : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(engine::write_random_model({.n_layer = 2,
                                            .n_embd = 512,
                                            .n_expert = 16,
                                            .n_expert_used = 4,
                                            .n_ff_expert = 1024,
                                            .n_vocab = kVocabulary,
                                            .expert_type = GGML_TYPE_Q4_0},
                                           path_));
    // A device so slow that the CPU is always better, and room for some of the experts.
    options_ = {
        .n_threads = 1, .context = {.n_ctx = 256, .n_ubatch = 16}, .device = "emu:us=2000,mib=16"};
    options_.cache_bytes.reset();
    options_.may_repack_instead = true;
    options_.repacked_ratio = 0.5;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "wide.gguf";
  EngineOptions options_;
};

TEST_F(RepackedBaseline, ReplacesACacheThatIsPredictedToBeSlower) {
  const auto engine = make_engine(describe(path_), options_);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->cache(), nullptr);
  EXPECT_TRUE(engine->repacked_instead());
  EXPECT_THAT(engine->plan().why_no_cache, HasSubstr("repacked experts on the CPU"));
  decode(*engine, as_batch(some_ids(5, 3), true));
}

TEST_F(RepackedBaseline, IsNotUsedIfItIsSlowerOrACacheIsAskedFor) {
  EngineOptions slower = options_;
  slower.repacked_ratio = 1.1;
  EngineOptions with_size = options_;
  with_size.cache_bytes = mib(8);
  EngineOptions with_share = options_;
  with_share.cache.rules.cpu_share = 0.5;
  for (const EngineOptions& options : {slower, with_size, with_share}) {
    const auto engine = make_engine(describe(path_), options);
    ASSERT_NE(engine, nullptr);
    EXPECT_NE(engine->cache(), nullptr);
    EXPECT_FALSE(engine->repacked_instead());
  }
}

TEST_F(RepackedBaseline, IsTimedOnOneLayer) {
  auto cpu = device::Backend::cpu(1);
  ASSERT_TRUE(cpu.has_value());
  const auto ratio = engine::repacked_ratio(describe(path_), {.first_device_layer = 0}, *cpu);
  ASSERT_TRUE(ratio.has_value()) << ratio.error().message;
  if (!*ratio) GTEST_SKIP() << "this CPU has no layout of its own for Q4_0 experts";
  EXPECT_GT(**ratio, 0);
  // No layer is on the device.
  EXPECT_EQ(*engine::repacked_ratio(describe(path_), {.first_device_layer = 2}, *cpu),
            std::nullopt);
}

}  // namespace
}  // namespace hotset::test
