// The engine on whole models: what it promises beyond the goldens.
#include "hotset/engine/run/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "hotset/engine/run/sampler.h"
#include "hotset/engine/weights/random_model.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"
#include "tests/tolerances.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::FlashAttention;
using testing::HasSubstr;

// Token ids that look like a text's, fixed.
std::vector<int32_t> some_ids(size_t n, int64_t n_vocab, uint64_t seed = 1) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random.below(static_cast<uint64_t>(n_vocab)));
  }
  return ids;
}

// One thread: the suite runs beside others on two cores.
EngineOptions plain_options() {
  return {.n_threads = 1, .context = {.n_ctx = 512, .n_outputs = 512}, .load = {.repack = false}};
}

class EngineTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    auto status = engine::write_random_model({.n_layer = 3, .n_vocab = 256, .seed = 5}, model());
    ASSERT_TRUE(status) << status.error().message;
    status = engine::write_random_model({.n_layer = 3,
                                         .n_expert = 4,
                                         .n_expert_used = 4,
                                         .n_vocab = 256,
                                         .expert_type = GGML_TYPE_F32,
                                         .dense_type = GGML_TYPE_F32,
                                         .seed = 5},
                                        unrouted_model());
    ASSERT_TRUE(status) << status.error().message;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::filesystem::path model() { return *folder_ / "random.gguf"; }
  // Every token uses every expert and no activation is rounded to 8 bits, so that a difference in
  // rounding cannot be amplified by a decision: for comparisons by tolerance.
  static std::filesystem::path unrouted_model() { return *folder_ / "unrouted.gguf"; }

  static std::vector<float> logits_with(const EngineOptions& options, std::span<const int32_t> ids,
                                        const std::filesystem::path& path = unrouted_model()) {
    const auto engine = make_engine(describe(path), options);
    return decode(*engine, as_batch(ids, true));
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* EngineTest::folder_ = nullptr;

TEST_F(EngineTest, LoadModesGiveTheSameBits) {
  const auto ids = some_ids(40, 256);
  EngineOptions options = plain_options();
  const auto mapped = logits_with(options, ids, model());
  options.load.load_mode = engine::LoadMode::kPinned;
  EXPECT_EQ(logits_with(options, ids, model()), mapped);
  options.load.load_mode = engine::LoadMode::kAuto;
  EXPECT_EQ(logits_with(options, ids, model()), mapped);
}

TEST_F(EngineTest, ThreadsGiveTheSameBits) {
  const auto ids = some_ids(40, 256);
  EngineOptions options = plain_options();
  const auto one = logits_with(options, ids, model());
  options.n_threads = 2;
  EXPECT_EQ(logits_with(options, ids, model()), one);
}

TEST_F(EngineTest, UbatchesDoNotChangeTheMeaning) {
  const auto ids = some_ids(100, 256);
  EngineOptions options = plain_options();
  const auto whole = logits_with(options, ids);
  for (const int32_t n_ubatch : {1, 7, 64}) {
    options.context.n_ubatch = n_ubatch;
    EXPECT_LT(nmse(logits_with(options, ids), whole), kOtherPathNmse) << n_ubatch;
  }
}

TEST_F(EngineTest, OnlyTheWantedLogitsAreComputed) {
  const auto ids = some_ids(20, 256);
  const auto engine = make_engine(describe(unrouted_model()), plain_options());
  const auto all = decode(*engine, as_batch(ids, true));
  engine->forget(0, 0, 512);
  auto batch = as_batch(ids, false);
  batch[3].want_logits = true;
  const auto two = decode(*engine, batch);
  ASSERT_EQ(two.size(), 2 * 256U);
  const auto row = [&](size_t i) {
    return std::vector<float>(all.begin() + static_cast<ptrdiff_t>(i * 256),
                              all.begin() + static_cast<ptrdiff_t>((i + 1) * 256));
  };
  EXPECT_LT(nmse(std::span(two).first(256), row(3)), kOtherPathNmse);
  EXPECT_LT(nmse(std::span(two).last(256), row(19)), kOtherPathNmse);
}

TEST_F(EngineTest, FlashAttentionAndCacheTypesAgree) {
  const auto ids = some_ids(100, 256);
  EngineOptions options = plain_options();
  options.context.flash_attention = FlashAttention::kOff;
  options.context.key_type = options.context.value_type = GGML_TYPE_F32;
  const auto exact = logits_with(options, ids);
  options.context.flash_attention = FlashAttention::kOn;
  EXPECT_LT(nmse(logits_with(options, ids), exact), kOtherPathNmse);
  options.context.key_type = options.context.value_type = GGML_TYPE_F16;
  EXPECT_LT(nmse(logits_with(options, ids), exact), kOtherPathNmse);
  options.context.key_type = options.context.value_type = GGML_TYPE_Q8_0;
  EXPECT_LT(nmse(logits_with(options, ids), exact), kQuantizedCacheNmse);
  options.context.flash_attention = FlashAttention::kOff;
  options.context.value_type = GGML_TYPE_F16;
  EXPECT_LT(nmse(logits_with(options, ids), exact), kQuantizedCacheNmse);
}

TEST_F(EngineTest, RepackedWeightsAgree) {
  const auto ids = some_ids(64, 256);
  EngineOptions options = plain_options();
  const auto plain = logits_with(options, ids, model());
  options.load.repack = true;
  EXPECT_LT(nmse(logits_with(options, ids, model()), plain), kRepackedNmse);
}

TEST_F(EngineTest, SequencesDoNotSeeEachOther) {
  const auto a = some_ids(30, 256, 1);
  const auto b = some_ids(30, 256, 2);
  const auto engine = make_engine(describe(unrouted_model()), plain_options());
  const auto alone = decode(*engine, as_batch(b, true));
  engine->forget(0, 0, 512);
  decode(*engine, as_batch(a, true, 0, 0));
  EXPECT_LT(nmse(decode(*engine, as_batch(b, true, 0, 1)), alone), kOtherPathNmse);
}

TEST_F(EngineTest, ASharedPrefixIsNotComputedAgain) {
  const auto prefix = some_ids(50, 256, 1);
  const auto tail = some_ids(10, 256, 2);
  const auto engine = make_engine(describe(unrouted_model()), plain_options());
  decode(*engine, as_batch(prefix, false));
  const auto expected = decode(*engine, as_batch(tail, true, 50));
  engine->share_prefix(0, 3, 50);
  EXPECT_EQ(engine->next_position(3), 50);
  EXPECT_EQ(engine->kv().cells().n_used(), 60);
  // The same cells in the same order but for the tail's own, which the mask hides.
  EXPECT_LT(nmse(decode(*engine, as_batch(tail, true, 50, 3)), expected), kOtherPathNmse);
  engine->forget(0, 0, 512);
  EXPECT_EQ(engine->kv().cells().n_used(), 60);
  engine->forget(3, 0, 512);
  EXPECT_EQ(engine->kv().cells().n_used(), 0);
}

TEST_F(EngineTest, ForgottenPositionsCanBeComputedAgain) {
  const auto ids = some_ids(30, 256);
  const auto engine = make_engine(describe(model()), plain_options());
  decode(*engine, as_batch(ids, false));
  const auto expected = decode(*engine, as_batch(std::span(ids).first(5), true, 30));
  engine->forget(0, 30, 512);
  EXPECT_EQ(engine->next_position(0), 30);
  EXPECT_EQ(decode(*engine, as_batch(std::span(ids).first(5), true, 30)), expected);
}

TEST_F(EngineTest, DecodeBuildsNoGraphsInSteadyState) {
  const auto ids = some_ids(100, 256);
  const auto engine = make_engine(describe(model()), plain_options());
  decode(*engine, as_batch(std::span(ids).first(10), false));
  decode(*engine, as_batch({&ids[10], 1}, true, 10));
  const int64_t n_graphs = engine->executor().n_graphs_built();
  for (int32_t i = 11; i < 100; ++i) {
    decode(*engine, as_batch({&ids[static_cast<size_t>(i)], 1}, true, i));
  }
  EXPECT_EQ(engine->executor().n_graphs_built(), n_graphs);
}

TEST_F(EngineTest, AFailedBatchChangesNothing) {
  const auto ids = some_ids(10, 256);
  const auto engine = make_engine(describe(model()), plain_options());
  decode(*engine, as_batch(ids, false));
  const auto expect_error = [&](std::vector<engine::BatchToken> batch, ErrorCode code,
                                const std::string& message) {
    const auto result = engine->decode(batch);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code);
    EXPECT_THAT(result.error().message, HasSubstr(message));
    EXPECT_EQ(engine->next_position(0), 10);
    EXPECT_EQ(engine->kv().cells().n_used(), 10);
  };
  expect_error({}, ErrorCode::kInvalidArgument, "no token");
  expect_error({{.token = 256, .position = 10}}, ErrorCode::kInvalidArgument,
               "found id 256, expected 0 to 255");
  expect_error({{.token = -1, .position = 10}}, ErrorCode::kInvalidArgument, "found id -1");
  expect_error({{.token = 1, .position = 9}}, ErrorCode::kInvalidArgument,
               "found position 9 of sequence 0, expected 10");
  expect_error({{.token = 1, .position = 12}}, ErrorCode::kInvalidArgument, "expected 10");
  expect_error({{.token = 1, .position = 0, .sequence = 64}}, ErrorCode::kInvalidArgument,
               "found sequence 64, expected 0 to 63");
  expect_error(as_batch(some_ids(503, 256), false, 10), ErrorCode::kOutOfMemory,
               "10 of 512 positions are used, 503 more were needed");
  int n_asked = 0;
  const auto cancelled =
      engine->decode(as_batch(some_ids(300, 256), true, 10), [&] { return ++n_asked < 1; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(engine->kv().cells().n_used(), 10);
}

TEST_F(EngineTest, TheContextCanBeFilledToTheLastPosition) {
  EngineOptions options = plain_options();
  options.context.n_ctx = 300;  // not a whole bucket
  const auto engine = make_engine(describe(model()), options);
  decode(*engine, as_batch(some_ids(300, 256), false));
  const auto result = engine->decode(as_batch(some_ids(1, 256), false, 300));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory);
}

TEST_F(EngineTest, RefusesOptionsThatDoNotGoTogether) {
  const auto expect_error = [&](const std::function<void(EngineOptions&)>& change,
                                const std::string& message) {
    EngineOptions options = plain_options();
    change(options);
    const auto engine = engine::Engine::create(describe(model()), options);
    ASSERT_FALSE(engine);
    EXPECT_THAT(engine.error().message, HasSubstr(message));
  };
  expect_error(
      [](EngineOptions& o) {
        o.context.flash_attention = FlashAttention::kOff;
        o.context.value_type = GGML_TYPE_Q8_0;
      },
      "q8_0 with flash attention off");
  expect_error([](EngineOptions& o) { o.context.key_type = GGML_TYPE_Q4_K; },
               "expected f32, f16 or q8_0");
  expect_error([](EngineOptions& o) { o.context.n_ctx = -5; }, "context: found -5");
  expect_error([](EngineOptions& o) { o.context.n_ctx = 1 << 28; }, "the machine has");
  expect_error([](EngineOptions& o) { o.n_threads = 1000; }, "threads: found 1000");
  expect_error([](EngineOptions& o) { o.context.n_ubatch = 0; }, "ubatch: found 0");
}

TEST_F(EngineTest, RandomModelsAreTheSameForASeed) {
  const auto bytes = [](const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  };
  const auto again = *folder_ / "again.gguf";
  ASSERT_TRUE(engine::write_random_model({.n_layer = 3, .n_vocab = 256, .seed = 5}, again));
  EXPECT_EQ(bytes(again), bytes(model()));
  ASSERT_TRUE(engine::write_random_model({.n_layer = 3, .n_vocab = 256, .seed = 6}, again));
  EXPECT_NE(bytes(again), bytes(model()));
}

TEST_F(EngineTest, RandomModelsRefuseWhatCannotBe) {
  const auto expect_error = [&](const engine::RandomModelOptions& options,
                                const std::string& message) {
    const auto path = *folder_ / "refused.gguf";
    const auto status = engine::write_random_model(options, path);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr(message));
    EXPECT_FALSE(std::filesystem::exists(path));
  };
  expect_error({.architecture = "nonsense"}, "expected one of: qwen3moe");
  expect_error({.n_embd = 100}, "expected a multiple of 32");
  expect_error({.n_expert = 4, .n_expert_used = 5}, "expected 1 to 4");
  expect_error({.n_layer = 0}, "layers: found 0");
  expect_error({.n_head = 5, .n_head_kv = 2}, "expected a divisor of 5 heads");
  expect_error({.expert_type = GGML_TYPE_IQ1_S}, "importance matrix");
}

TEST(DemoModel, LoadsWhole) {
  const auto engine =
      make_engine(describe(demo_model()), {.n_threads = 1, .context = {.n_ctx = 256}});
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->spec().router.n_expert, 64);
  EXPECT_TRUE(engine->model().report().unused.empty());
  const auto logits = decode(*engine, as_batch(some_ids(64, 4092), false));
  ASSERT_EQ(logits.size(), 4096U);
  for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit));
}

}  // namespace
}  // namespace hotset::test
