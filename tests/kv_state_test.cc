// The KV memory of a sequence, saved and given back: the same bits go on, to whatever sequence of
// whatever engine of the same model; what does not fit is refused, and damage never gets in.
#include "hotset/engine/kv/kv_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/model/gguf_testing.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"
#include "tests/tolerances.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::FlashAttention;
using testing::HasSubstr;

constexpr int32_t kVocabulary = 64;
constexpr size_t kHeaderBytes = 64;

std::vector<int32_t> some_ids(size_t n, uint64_t seed = 3) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kVocabulary));
  return ids;
}

// docs/formats/hkvs.md
uint64_t checksum(std::span<const uint8_t> bytes) {
  uint64_t hash = 0xCBF29CE484222325U;
  const auto mix = [&](uint64_t word) {
    hash = (hash ^ word) * 0x100000001B3U;
    hash ^= hash >> 32;
  };
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, 8);
    mix(word);
  }
  for (; i < bytes.size(); ++i) mix(bytes[i]);
  mix(bytes.size());
  return hash;
}

void sign(std::vector<uint8_t>& state) {
  const uint64_t hash = checksum(std::span(state).first(state.size() - 8));
  std::memcpy(state.data() + state.size() - 8, &hash, 8);
}

struct Config {
  std::string architecture = "qwen3moe";
  uint64_t seed = 7;
  int32_t n_window_cells = 0;
  FlashAttention flash_attention = FlashAttention::kOn;
  ggml_type type = GGML_TYPE_F16;
  std::string device = {};
  std::optional<int64_t> n_gpu_layers = {};
  int32_t n_ctx = 256;
};

class KvState : public testing::Test {
 protected:
  std::unique_ptr<engine::Engine> engine_of(const Config& c) const {
    const std::filesystem::path path =
        folder_ / (c.architecture + std::to_string(c.seed) + ".gguf");
    if (!std::filesystem::exists(path)) {
      const engine::RandomModelOptions model{.architecture = c.architecture,
                                             .n_layer = 3,
                                             .n_embd = 64,
                                             .n_head = 4,
                                             .n_head_kv = 2,
                                             .head_dim = 32,
                                             .n_expert = 4,
                                             .n_expert_used = 2,
                                             .n_ff_expert = 32,
                                             .n_ff = 64,
                                             .n_vocab = kVocabulary,
                                             .expert_type = GGML_TYPE_F32,
                                             .dense_type = GGML_TYPE_F32,
                                             .seed = c.seed};
      HOTSET_CHECK(engine::write_random_model(model, path).has_value());
      if (c.architecture == "gpt-oss") {
        const auto made = model::GgufFile::open(path);
        model::GgufBytes file(*made);
        file.replace_key("gpt-oss.attention.sliding_window", 12U);
        file.write(path);
      }
    }
    return make_engine(describe(path), {.n_threads = 1,
                                        .context = {.n_ctx = c.n_ctx,
                                                    .n_ubatch = 16,
                                                    .n_outputs = 16,
                                                    .n_window_cells = c.n_window_cells,
                                                    .flash_attention = c.flash_attention,
                                                    .key_type = c.type,
                                                    .value_type = c.type},
                                        .load = {.repack = false},
                                        .device = c.device,
                                        .n_gpu_layers = c.n_gpu_layers});
  }

  static std::vector<float> go_on(engine::Engine& engine, std::span<const int32_t> ids,
                                  engine::SequenceId sequence) {
    std::vector<float> logits;
    for (const int32_t id : ids) {
      const auto row =
          decode(engine, as_batch({&id, 1}, true, engine.next_position(sequence), sequence));
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

  TemporaryFolder folder_;
};

void expect_refused(engine::Engine& engine, std::span<const uint8_t> state, ErrorCode code,
                    const std::string& message) {
  const auto restored = engine.restore_sequence(1, state);
  ASSERT_FALSE(restored) << message;
  EXPECT_EQ(restored.error().code, code) << restored.error().message;
  EXPECT_THAT(restored.error().message, HasSubstr(message));
}

TEST_F(KvState, GoesOnWithTheSameBits) {
  const std::vector<Config> configs = {
      {},
      {.flash_attention = FlashAttention::kOff},
      {.type = GGML_TYPE_F32},
      {.type = GGML_TYPE_Q8_0},
      {.architecture = "deepseek2", .flash_attention = FlashAttention::kOff},
      {.architecture = "gpt-oss"},
      {.architecture = "gpt-oss", .flash_attention = FlashAttention::kOff},
      {.architecture = "gpt-oss", .n_window_cells = 48},
      {.architecture = "gpt-oss", .n_window_cells = 48, .flash_attention = FlashAttention::kOff},
      {.device = "emu:clock=virtual"},
      {.flash_attention = FlashAttention::kOff, .device = "emu:clock=virtual", .n_gpu_layers = 2},
      {.architecture = "gpt-oss",
       .n_window_cells = 48,
       .flash_attention = FlashAttention::kOff,
       .device = "emu:clock=virtual",
       .n_gpu_layers = 3},
  };
  const std::vector<int32_t> ids = some_ids(40);
  const std::vector<int32_t> next = some_ids(12, 5);
  for (size_t i = 0; i < configs.size(); ++i) {
    const auto engine = engine_of(configs[i]);
    decode(*engine, as_batch(ids, false));
    const auto state = engine->save_sequence(0, ids);
    ASSERT_TRUE(state) << state.error().message;
    EXPECT_EQ(std::ssize(*state), engine->saved_bytes(0, ids.size()).count) << i;
    const auto expected = go_on(*engine, next, 0);
    // Another sequence, where something else was meanwhile.
    engine->forget(0, 0, INT32_MAX);
    decode(*engine, as_batch(some_ids(40, 9), false, 0, 5));
    engine->forget(5, 0, INT32_MAX);
    const auto tokens = engine->restore_sequence(3, *state);
    ASSERT_TRUE(tokens) << i << ": " << tokens.error().message;
    EXPECT_EQ(*tokens, ids);
    EXPECT_EQ(engine->next_position(3), 40);
    EXPECT_EQ(go_on(*engine, next, 3), expected) << i;
    // Beside others, into cells that are left between theirs.
    ASSERT_TRUE(engine->restore_sequence(3, *state));
    EXPECT_EQ(engine->next_position(3), 40);
    EXPECT_LT(nmse(go_on(*engine, next, 3), expected), kOtherPathNmse) << i;
  }
}

TEST_F(KvState, ServesOtherEnginesOfTheModel) {
  const std::vector<int32_t> ids = some_ids(40);
  const std::vector<int32_t> next = some_ids(12, 5);
  const auto state_of = [&](engine::Engine& engine) {
    decode(engine, as_batch(ids, false));
    return *engine.save_sequence(0);
  };
  const auto source = engine_of({.architecture = "gpt-oss"});
  const auto state = state_of(*source);
  const auto expected = go_on(*source, next, 0);
  const std::vector<Config> others = {
      {.architecture = "gpt-oss"},
      {.architecture = "gpt-oss", .device = "emu:clock=virtual"},
      {.architecture = "gpt-oss", .flash_attention = FlashAttention::kOff},
      {.architecture = "gpt-oss", .n_window_cells = 48}};
  for (const Config& other : others) {
    const auto engine = engine_of(other);
    ASSERT_TRUE(engine->restore_sequence(2, state));
    EXPECT_LT(nmse(go_on(*engine, next, 2), expected), kOtherPathNmse);
  }
  // Windowed layers that kept less cannot serve those that must have all.
  const auto small = engine_of({.architecture = "gpt-oss", .n_window_cells = 27});
  decode(*small, as_batch(ids, false));
  expect_refused(*source, *small->save_sequence(0), ErrorCode::kInvalidArgument,
                 "positions of windowed layers, expected all 40");
}

TEST_F(KvState, OfAnotherModelOrTypeIsRefused) {
  const auto engine = engine_of({});
  decode(*engine, as_batch(some_ids(10), false));
  const auto state = *engine->save_sequence(0);
  expect_refused(*engine_of({.seed = 8}), state, ErrorCode::kInvalidArgument,
                 "it was saved with another model");
  expect_refused(*engine_of({.type = GGML_TYPE_F32}), state, ErrorCode::kInvalidArgument,
                 "found keys and values of type f16 and f16, expected f32 and f32");
  auto changed = state;
  changed[4] = 2;
  expect_refused(*engine, changed, ErrorCode::kUnsupported, "found version 2, expected 1");
  changed = state;
  changed[0] = 'X';
  expect_refused(*engine, changed, ErrorCode::kCorrupt, "expected \"HKVS\"");
  changed = state;
  changed.back() ^= 1;
  expect_refused(*engine, changed, ErrorCode::kCorrupt, "checksum");
  expect_refused(*engine, {}, ErrorCode::kCorrupt, "found 0 bytes, expected at least 72");
  expect_refused(*engine, std::span(state).first(state.size() - 1), ErrorCode::kCorrupt, "bytes");
  // A context too small.
  const auto small = engine_of({.n_ctx = 9});
  expect_refused(*small, state, ErrorCode::kOutOfMemory, "10 more were needed");
  EXPECT_EQ(small->next_position(1), 0);
  EXPECT_EQ(decode(*small, as_batch(some_ids(9), false)).size(), size_t{kVocabulary});
}

TEST_F(KvState, WithWhatIsNoNumberIsRefused) {
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0}) {
    const auto engine = engine_of({.type = type});
    decode(*engine, as_batch(some_ids(10), false));
    const auto state = *engine->save_sequence(0);
    // The first number of the first key and the last row's last block, and all ones are NaN.
    for (const size_t at : {kHeaderBytes + 10 * sizeof(int32_t), state.size() - 8 - 34}) {
      auto changed = state;
      std::fill_n(changed.begin() + static_cast<std::ptrdiff_t>(at), 4, uint8_t{0xFF});
      sign(changed);
      expect_refused(*engine, changed, ErrorCode::kCorrupt, "NaN or infinite");
    }
  }
}

TEST_F(KvState, OfAnEmptySequenceIsEmpty) {
  for (const Config& config : {Config{}, Config{.architecture = "gpt-oss", .n_window_cells = 48}}) {
    const auto engine = engine_of(config);
    const auto state = engine->save_sequence(0);
    ASSERT_TRUE(state);
    EXPECT_EQ(state->size(), kHeaderBytes + 8);
    decode(*engine, as_batch(some_ids(10), false, 0, 1));
    ASSERT_TRUE(engine->restore_sequence(1, *state));
    EXPECT_EQ(engine->next_position(1), 0);
  }
}

// Whatever is done to a state, it is refused or restored, the engine works on, and a sequence that
// was there is whole or gone.
TEST_F(KvState, DamageNeverGetsIn) {
  for (const Config& config : {Config{}, Config{.architecture = "gpt-oss", .n_window_cells = 48}}) {
    const auto engine = engine_of(config);
    const std::vector<int32_t> ids = some_ids(12);
    decode(*engine, as_batch(ids, false));
    const auto state = *engine->save_sequence(0, ids);
    for (size_t n = 0; n < state.size(); n = n < 300 ? n + 1 : n * 2) {
      EXPECT_FALSE(engine->restore_sequence(1, std::span(state).first(n))) << n;
    }
    Random random(11);
    int n_restored = 0;
    for (int round = 0; round < 3000; ++round) {
      auto damaged = state;
      const bool is_signed = random.below(2) == 0;
      const size_t area = random.below(3) == 0 ? damaged.size() : kHeaderBytes + 3 * 48;
      for (uint64_t i = random.below(3) + 1; i > 0; --i) {
        damaged[random.below(area)] = static_cast<uint8_t>(random.next_u64());
      }
      if (random.below(4) == 0) damaged.resize(random.below(damaged.size() + 64));
      const bool is_same = damaged == state;
      if (is_signed && damaged.size() > kHeaderBytes + 8) sign(damaged);
      const auto restored = engine->restore_sequence(1, damaged);
      if (restored) {
        EXPECT_TRUE(is_signed || is_same) << round;
        ++n_restored;
        ASSERT_LE(engine->next_position(1), INT32_MAX - 1);
      }
    }
    EXPECT_GT(n_restored, 0);
    ASSERT_TRUE(engine->restore_sequence(1, state));
    EXPECT_EQ(engine->next_position(1), 12);
    EXPECT_EQ(engine->next_position(0), 12);
    EXPECT_EQ(decode(*engine, as_batch(some_ids(1), false, 12, 0)).size(), size_t{kVocabulary});
  }
}

// Version 1, as it was first written: three tokens of the model of Config{}.
TEST_F(KvState, TheFixtureIsRead) {
  const auto state = engine::read_state_file(HOTSET_TEST_DATA_DIR "/hkvs/three-tokens.hkvs");
  ASSERT_TRUE(state) << state.error().message;
  const auto engine = engine_of({});
  const auto tokens = engine->restore_sequence(1, *state);
  ASSERT_TRUE(tokens) << tokens.error().message;
  EXPECT_EQ(*tokens, some_ids(3));
  EXPECT_EQ(engine->next_position(1), 3);
  decode(*engine, as_batch(some_ids(3), false));
  EXPECT_LT(nmse(go_on(*engine, some_ids(4, 5), 1), go_on(*engine, some_ids(4, 5), 0)),
            kOtherPathNmse);
}

TEST_F(KvState, IsKeptInFiles) {
  const auto engine = engine_of({});
  const std::vector<int32_t> ids = some_ids(10);
  decode(*engine, as_batch(ids, false));
  const auto state = *engine->save_sequence(0, ids);
  const std::filesystem::path path = folder_ / "sequence.hkvs";
  ASSERT_TRUE(engine::write_state_file(path, state));
  ASSERT_TRUE(engine::write_state_file(path, state));  // over the old one
  EXPECT_EQ(*engine::read_state_file(path), state);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "sequence.hkvs.part"));
  EXPECT_EQ(engine::read_state_file(folder_ / "absent").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(engine::read_state_file(folder_.path()).error().code, ErrorCode::kIo);
  EXPECT_EQ(engine::write_state_file(folder_ / "absent/x", state).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace hotset::test
