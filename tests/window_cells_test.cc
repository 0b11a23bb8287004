// Windowed layers with cells of their own: the same logits as with cells for the whole context,
// also after a sequence was cut back, shared or cancelled; and the memory that they save.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/model/gguf_testing.h"
#include "tests/golden.h"
#include "tests/tolerances.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::FlashAttention;

constexpr int32_t kVocabulary = 64;
constexpr int32_t kWindow = 20;
constexpr int32_t kUbatch = 32;
constexpr int32_t kCells = 64;

std::vector<int32_t> some_ids(size_t n, uint64_t seed = 3) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kVocabulary));
  return ids;
}

EngineOptions options_of(int32_t n_window_cells, FlashAttention flash_attention) {
  return {.n_threads = 1,
          .context = {.n_ctx = 1024,
                      .n_ubatch = kUbatch,
                      .n_outputs = kUbatch,
                      .n_window_cells = n_window_cells,
                      .flash_attention = flash_attention,
                      .key_type = GGML_TYPE_F32,
                      .value_type = GGML_TYPE_F32},
          .load = {.repack = false}};
}

class WindowCells : public testing::Test {
 protected:
  void SetUp() override {
    // F32 throughout and every token at every expert, so that no rounding is amplified.
    const engine::RandomModelOptions options{.architecture = "gpt-oss",
                                             .n_layer = 4,
                                             .n_embd = 64,
                                             .n_head = 4,
                                             .n_head_kv = 2,
                                             .head_dim = 32,
                                             .n_expert = 4,
                                             .n_expert_used = 4,
                                             .n_ff_expert = 32,
                                             .n_ff = 64,
                                             .n_vocab = kVocabulary,
                                             .expert_type = GGML_TYPE_F32,
                                             .dense_type = GGML_TYPE_F32,
                                             .seed = 7};
    ASSERT_TRUE(engine::write_random_model(options, path()));
    const auto made = model::GgufFile::open(path());
    ASSERT_TRUE(made);
    model::GgufBytes file(*made);
    file.replace_key("gpt-oss.attention.sliding_window", static_cast<uint32_t>(kWindow));
    file.write(path());
  }
  std::filesystem::path path() const { return folder_ / "model.gguf"; }

  std::unique_ptr<engine::Engine> engine_of(int32_t n_window_cells,
                                            FlashAttention flash_attention = FlashAttention::kOff,
                                            const std::string& device = "",
                                            std::optional<int64_t> n_gpu_layers = {}) const {
    EngineOptions options = options_of(n_window_cells, flash_attention);
    options.device = device;
    options.n_gpu_layers = n_gpu_layers;
    return make_engine(describe(path()), options);
  }

  // Logits of all of `ids`, in ubatches, then one by one from `n_prompt` on.
  static std::vector<float> logits_of(engine::Engine& engine, std::span<const int32_t> ids,
                                      size_t n_prompt, engine::SequenceId sequence = 0) {
    std::vector<float> logits;
    const auto append = [&](std::span<const int32_t> part) {
      const auto rows =
          decode(engine, as_batch(part, true, engine.next_position(sequence), sequence));
      logits.insert(logits.end(), rows.begin(), rows.end());
    };
    if (n_prompt > 0) append(ids.first(n_prompt));
    for (size_t i = n_prompt; i < ids.size(); ++i) append(ids.subspan(i, 1));
    return logits;
  }

  TemporaryFolder folder_;
};

TEST_F(WindowCells, GiveTheLogitsOfAFullContext) {
  const std::vector<int32_t> ids = some_ids(300);
  for (const FlashAttention flash_attention : {FlashAttention::kOff, FlashAttention::kOn}) {
    const auto full = engine_of(0, flash_attention);
    const auto own = engine_of(kCells, flash_attention);
    ASSERT_FALSE(full->kv().has_window_cells());
    ASSERT_TRUE(own->kv().has_window_cells());
    EXPECT_LT(own->kv().n_bytes(), full->kv().n_bytes());
    const auto expected = logits_of(*full, ids, 200);
    EXPECT_LT(nmse(logits_of(*own, ids, 200), expected), kOtherFormNmse);
    EXPECT_EQ(own->kv().window_cells().n_used(), kCells);
  }
}

// As long as no cell was reused, cells lie as they would in a full context.
TEST_F(WindowCells, GiveTheSameBitsUntilOneIsReused) {
  const std::vector<int32_t> ids = some_ids(256);
  const auto full = engine_of(0);
  const auto own = engine_of(256);
  ASSERT_TRUE(own->kv().has_window_cells());
  EXPECT_EQ(logits_of(*own, ids, 200), logits_of(*full, ids, 200));
}

// A cell too few would be seen.
TEST_F(WindowCells, AWindowOneShorterIsSeen) {
  const std::vector<int32_t> ids = some_ids(100);
  const auto expected = logits_of(*engine_of(kCells), ids, 60);
  engine::ModelDescription shorter = describe(path());
  --shorter.spec.attention.window;
  const auto engine = make_engine(std::move(shorter), options_of(kCells, FlashAttention::kOff));
  EXPECT_GT(nmse(logits_of(*engine, ids, 60), expected), kMutationNmse);
}

TEST_F(WindowCells, GiveTheSameBitsOnADevice) {
  const std::vector<int32_t> ids = some_ids(200);
  for (const FlashAttention flash_attention : {FlashAttention::kOff, FlashAttention::kOn}) {
    const auto cpu = engine_of(kCells, flash_attention);
    const auto expected = logits_of(*cpu, ids, 150);
    for (const int64_t n_gpu_layers : {1, 3, 5}) {
      const auto device = engine_of(kCells, flash_attention, "emu:clock=virtual", n_gpu_layers);
      ASSERT_TRUE(device->kv().has_window_cells());
      EXPECT_EQ(logits_of(*device, ids, 150), expected) << n_gpu_layers;
      // The plan knows of them.
      EXPECT_EQ(device->plan().demand.kv_windows, device->kv().window_bytes(true));
    }
  }
}

TEST_F(WindowCells, ASequenceThatIsCutBackGoesOnOrBeginsAnew) {
  const std::vector<int32_t> ids = some_ids(150);
  const auto engine = engine_of(kCells);
  const auto all = logits_of(*engine, ids, 100);
  const auto row = [&](size_t i) { return std::span(all).subspan(i * kVocabulary, kVocabulary); };
  // Within reach: 64 cells hold positions from 86 on, and position 110 sees 91 to 110.
  engine->forget(0, 110, INT32_MAX);
  ASSERT_EQ(engine->next_position(0), 110);
  const auto again = logits_of(*engine, std::span(ids).subspan(110), 5);
  EXPECT_LT(nmse(again, std::span(all).subspan(size_t{110} * kVocabulary)), kOtherFormNmse);
  // Beyond: nothing is left, and nobody can go on from there by mistake.
  engine->forget(0, 60, INT32_MAX);
  EXPECT_EQ(engine->next_position(0), 0);
  EXPECT_FALSE(engine->decode(as_batch(std::span(ids).subspan(60, 1), true, 60)));
  EXPECT_LT(nmse(logits_of(*engine, std::span(ids).first(80), 80),
                 std::span(all).first(size_t{80} * kVocabulary)),
            kOtherFormNmse);
  EXPECT_EQ(engine->next_position(0), 80);
  EXPECT_EQ(row(0).size(), size_t{kVocabulary});
}

TEST_F(WindowCells, SequencesShareAPrefixWhileItIsThere) {
  const std::vector<int32_t> ids = some_ids(60);
  const auto engine = engine_of(2 * kCells);
  const auto all = logits_of(*engine, ids, 60);
  engine->share_prefix(0, 1, 50);
  ASSERT_EQ(engine->next_position(1), 50);
  // Both go on, each with its own text.
  const auto other = some_ids(90, 5);
  logits_of(*engine, other, 30, 0);
  const auto rest = logits_of(*engine, std::span(ids).subspan(50), 10, 1);
  EXPECT_LT(nmse(rest, std::span(all).subspan(size_t{50} * kVocabulary)), kOtherFormNmse);
  // Out of reach, once nobody else needs it.
  engine->forget(1, 0, INT32_MAX);
  logits_of(*engine, other, 90, 0);
  engine->share_prefix(0, 2, 50);
  EXPECT_EQ(engine->next_position(2), 0);
}

TEST_F(WindowCells, MoreSequencesThanWerePlannedForAreRefused) {
  const auto engine = engine_of(kCells);
  for (int32_t s = 0; s < 2; ++s) logits_of(*engine, some_ids(30), 30, s);
  const auto refused = engine->decode(as_batch(some_ids(30), true, 0, 3));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(engine->next_position(3), 0);
  EngineOptions options = options_of(kWindow + kUbatch - 2, FlashAttention::kOff);
  EXPECT_FALSE(engine::Engine::create(describe(path()), options));
  options = options_of(0, FlashAttention::kOff);
  options.context.n_sequences = 65;
  EXPECT_FALSE(engine::Engine::create(describe(path()), options));
}

TEST_F(WindowCells, ACancelledPromptIsForgotten) {
  const std::vector<int32_t> ids = some_ids(200);
  const auto engine = engine_of(kCells);
  logits_of(*engine, std::span(ids).first(40), 40);
  int n_left = 4;
  const auto cancelled =
      engine->decode(as_batch(std::span(ids).subspan(40), false, 40), [&] { return n_left-- > 0; });
  ASSERT_FALSE(cancelled);
  EXPECT_EQ(cancelled.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(engine->next_position(0), 0);
  EXPECT_LT(nmse(logits_of(*engine, ids, 150), logits_of(*engine_of(0), ids, 150)), kOtherFormNmse);
}

class WindowGolden : public LogitsGolden {};

// The prompt is eight times as long as the window, and the cells are used several times over.
TEST_P(WindowGolden, IsMet) {
  for (const char* device : {"", "emu:clock=virtual"}) {
    const GoldenRun run = run_golden(description(), golden_, device, {}, 0.5, [](auto& options) {
      options.context.n_ubatch = options.context.n_outputs = 16;
      options.context.n_window_cells = 24;
    });
    EXPECT_LT(nmse(run.logits, golden_.logits), kOtherCellsNmse);
    EXPECT_EQ(run.greedy, golden_.greedy);
    EXPECT_EQ(run.routing, golden_.routing);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, WindowGolden, testing::Values("gpt-oss"), golden_test_name);

}  // namespace
}  // namespace hotset::test
