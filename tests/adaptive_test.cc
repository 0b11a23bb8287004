// Share auto and streaming prefill on the virtual clock: the same bits, the times they promise, and
// what they do when conditions change.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;

EngineOptions adaptive_options(const std::string& device, Bytes cache) {
  EngineOptions options = cache_options(device, cache);
  options.context.n_ctx = 2048;
  return options;
}

// Prompts of 33, 200 and 1000 tokens, and some tokens after each.
std::vector<float> run_prompts(engine::Engine& engine) {
  std::vector<float> logits;
  uint64_t seed = 70;
  for (const size_t n : {33, 1, 1, 200, 1, 1, 1, 1000, 1, 1}) {
    const auto row = decode(engine, as_batch(some_ids(n, ++seed), false, engine.next_position(0)));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

class Adaptive : public testing::TestWithParam<std::string> {};

TEST_P(Adaptive, AutoAndStreamingAreTheSameBits) {
  const auto path = model_of(GetParam());
  const auto alone = make_engine(describe(path), adaptive_options("", {}));
  const std::vector<float> expected = run_prompts(*alone);
  for (const int64_t n_slots : values<int64_t>({12, 4, 24}, 1)) {
    // A fast link streams, a slow one leaves all to the CPU, the one between does both.
    for (const std::string rates :
         {"gbps=100,us=1,cpu_gbps=1", "gbps=1,us=5,cpu_gbps=1", "gbps=0.1,cpu_gbps=50"}) {
      const auto engine = make_engine(describe(path), adaptive_options("emu:clock=virtual," + rates,
                                                                       budget_for(path, n_slots)));
      ASSERT_NE(engine, nullptr);
      EXPECT_EQ(run_prompts(*engine), expected) << n_slots << " slots, " << rates;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, Adaptive,
                         testing::Values("qwen3moe", "qwen2moe", "gpt-oss", "deepseek2"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(StreamingPrefill, HasRoomForTheListsOfManySmallChunks) {
  // Every chunk has few pairs, and lists that are rounded up.
  const auto path = model_of("qwen3moe");
  EngineOptions options = adaptive_options("", {});
  options.context.n_ubatch = 33;
  options.context.n_outputs = 33;
  const auto alone = make_engine(describe(path), options);
  options.device = "emu:clock=virtual";
  options.cache_bytes = budget_for(path, 4);
  options.cache.rules.cpu_share = 0;
  const auto engine = make_engine(describe(path), options);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(run_prompts(*engine), run_prompts(*alone));
}

double prompt_us(const std::string& device, Bytes cache, size_t n_prompt,
                 std::optional<double> share = {}) {
  EngineOptions options = adaptive_options(device, cache);
  options.cache.rules.cpu_share = share;
  const auto engine = make_engine(describe(model_of("qwen3moe")), options);
  if (engine == nullptr) return 0;
  const double start_us = engine->device()->now_us();
  decode(*engine, as_batch(some_ids(n_prompt, 5), false));
  return engine->device()->now_us() - start_us;
}

TEST(StreamingPrefill, OverlapsCopiesWithComputing) {
  // Copying an expert and computing it take equally long, everything else next to nothing.
  const TemporaryFolder folder;
  const auto path = folder / "wide.gguf";
  ASSERT_TRUE(engine::write_random_model({.n_layer = 2,
                                          .n_embd = 64,
                                          .n_head = 1,
                                          .n_head_kv = 1,
                                          .n_expert_used = 8,
                                          .n_ff_expert = 2048,
                                          .n_vocab = kVocabulary},
                                         path));
  EngineOptions options = adaptive_options("emu:clock=virtual,us=0,gbps=1,dev_gbps=1,cpu_gbps=1e6",
                                           budget_for(path, 8));
  options.cache.rules.cpu_share = 0;
  options.context.n_outputs = 512;
  options.load.load_mode = engine::LoadMode::kPinned;
  const auto engine = make_engine(describe(path), options);
  ASSERT_NE(engine, nullptr);
  // 100 tokens need all 16 experts of both layers.
  const double start_us = engine->device()->now_us();
  decode(*engine, as_batch(some_ids(100, 5), true));
  const double us = engine->device()->now_us() - start_us;
  const double copy_us = 2.0 * kExperts * static_cast<double>(expert_bytes(path).count) / 1e3;
  EXPECT_LT(us, 0.6 * 2 * copy_us);
  EXPECT_GT(us, copy_us);
}

// A model whose prompts of 100 tokens need all experts, and an engine that streams them.
class Prefetch : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(engine::write_random_model({.n_layer = 4,
                                            .n_embd = 64,
                                            .n_head = 1,
                                            .n_head_kv = 1,
                                            .n_expert_used = 8,
                                            .n_ff_expert = 512,
                                            .n_vocab = kVocabulary},
                                           path_));
    options_.context.n_outputs = 512;
    options_.context.n_ctx = 4096;
    alone_ = make_engine(describe(path_), options_);
    options_.device = "emu:clock=virtual,us=5,gbps=2,dev_gbps=20,cpu_gbps=20";
    options_.cache_bytes = budget_for(path_, 12);
    options_.cache.rules.cpu_share = 0;
    options_.profile = &profile_;
    streaming_ = make_engine(describe(path_), options_);
    ASSERT_NE(streaming_, nullptr);
  }

  // The same prompt to both; the bits must be the same.
  void prompt(const std::vector<int32_t>& ids) {
    const int32_t position = streaming_->next_position(0);
    const auto expected = decode(*alone_, as_batch(ids, true, position));
    EXPECT_EQ(decode(*streaming_, as_batch(ids, true, position)), expected);
  }
  cache::CacheCounts totals() const {
    cache::CacheCounts sum;
    for (int32_t layer = 0; layer < 4; ++layer) {
      sum += streaming_->cache()->core().counts(layer)[cache::BatchClass::kMore];
    }
    return sum;
  }
  // Layers that had copies on their way before the host had their routing.
  int64_t n_ahead() const {
    int64_t n = 0;
    std::map<int32_t, double> copied_us;
    for (const auto& entry : profile_.entries()) {
      const std::string_view name = entry.name;
      if (name == "prefetch") copied_us.try_emplace(entry.layer, entry.start_us);
      if (name != "wait") continue;
      const auto it = copied_us.find(entry.layer);
      if (it == copied_us.end()) continue;
      n += it->second < entry.start_us + entry.duration_us ? 1 : 0;
      copied_us.erase(it);
    }
    return n;
  }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "all.gguf";
  EngineOptions options_ = adaptive_options("", {});
  device::Profile profile_;
  std::unique_ptr<engine::Engine> alone_;
  std::unique_ptr<engine::Engine> streaming_;
};

TEST_F(Prefetch, CopiesTheFirstChunkBeforeItsRoutingIsKnown) {
  prompt(some_ids(100, 5));  // fills the slots
  const int64_t n_before = n_ahead();
  prompt(some_ids(100, 6));
  prompt(some_ids(100, 7));
  EXPECT_GE(n_ahead() - n_before, 7);  // of two prompts and four layers, all but the very first
  EXPECT_EQ(totals().unused_bytes, Bytes{});
}

TEST_F(Prefetch, StopsWhereFewExpertsAreNeeded) {
  // One token over and over needs eight experts of a layer: what was copied ahead may be in vain.
  const auto one_token = [](int32_t id) { return std::vector<int32_t>(100, id); };
  prompt(some_ids(100, 5));
  for (int32_t i = 0; i < 8; ++i) {
    prompt(some_ids(100, static_cast<uint64_t>(6 + i)));
    prompt(one_token(17 + i));
    const Bytes unused = totals().unused_bytes;
    prompt(one_token(40 + i));  // and is not tried again
    EXPECT_EQ(totals().unused_bytes, unused);
  }
  EXPECT_GT(totals().unused_bytes, Bytes{});
}

TEST(StreamingPrefill, IsNeverMuchSlowerThanWithoutACache) {
  for (const std::string rates :
       {"gbps=50,us=2,cpu_gbps=2", "gbps=12,cpu_gbps=20", "gbps=2,cpu_gbps=20",
        "gbps=0.5,cpu_gbps=80", "gbps=32,cpu_gbps=5"}) {
    const std::string device = "emu:clock=virtual," + rates;
    for (const size_t n_prompt : values<size_t>({33, 200, 1000}, 1)) {
      const double without_us = prompt_us(device, {}, n_prompt);
      for (const int64_t n_slots : values<int64_t>({12, 4, 24, 40}, 1)) {
        const double with_us =
            prompt_us(device, budget_for(model_of("qwen3moe"), n_slots), n_prompt);
        EXPECT_LE(0.98 * with_us, without_us)
            << rates << ", " << n_prompt << " tokens, " << n_slots << " slots";
      }
    }
  }
}

// The part of the misses that crossed the link, over tokens [begin, end) of a run.
class Shares {
 public:
  explicit Shares(engine::Engine& engine) : engine_(engine) {}

  double decode_tokens(int32_t n) {
    const cache::CacheCounts before = engine_.cache()->core().total_counts();
    for (int32_t i = 0; i < n; ++i) {
      const std::vector<int32_t> id = some_ids(1, 1000 + static_cast<uint64_t>(n_decoded_++));
      decode(engine_, as_batch(id, true, engine_.next_position(0)));
    }
    const cache::CacheCounts after = engine_.cache()->core().total_counts();
    const auto uploads = static_cast<double>(after.uploads - before.uploads);
    const auto cpu = static_cast<double>(after.cpu - before.cpu);
    return uploads + cpu > 0 ? uploads / (uploads + cpu) : 0;
  }

 private:
  engine::Engine& engine_;
  int32_t n_decoded_ = 0;
};

// How long `n` tokens take on `device`.
double tokens_us(const std::string& device, Bytes cache, int32_t n) {
  const auto engine = make_engine(describe(model_of("qwen3moe")), adaptive_options(device, cache));
  Shares(*engine).decode_tokens(n);
  return engine->device()->now_us();
}

TEST(ChangingConditions, TheSplitFollowsALinkThatDropsToATenth) {
  const Bytes cache = budget_for(model_of("qwen3moe"), 8);
  const std::string rates = "emu:clock=virtual,us=1,gbps=20,cpu_gbps=2";
  const double change_us = tokens_us(rates, cache, 100);
  const auto engine = make_engine(
      describe(model_of("qwen3moe")),
      adaptive_options(rates + ",gbps2=0.2,change_us=" + std::to_string(change_us), cache));
  Shares shares(*engine);
  shares.decode_tokens(50);
  EXPECT_GT(shares.decode_tokens(50), 0.5);
  shares.decode_tokens(50);
  EXPECT_LT(shares.decode_tokens(50), 0.3);
}

TEST(ChangingConditions, TheSplitFollowsACpuThatGetsBusy) {
  const Bytes cache = budget_for(model_of("qwen3moe"), 8);
  const std::string rates = "emu:clock=virtual,us=1,gbps=2,cpu_gbps=40";
  const double change_us = tokens_us(rates, cache, 100);
  const auto engine = make_engine(
      describe(model_of("qwen3moe")),
      adaptive_options(rates + ",cpu_gbps2=0.2,change_us=" + std::to_string(change_us), cache));
  Shares shares(*engine);
  shares.decode_tokens(50);
  EXPECT_LT(shares.decode_tokens(50), 0.3);
  shares.decode_tokens(50);
  EXPECT_GT(shares.decode_tokens(50), 0.5);
}

}  // namespace
}  // namespace hotset::test
