// One expert of a model has a scale that is NaN or infinite: whoever is routed there fails, and
// nobody else computes anything but what it computes beside a sound neighbour, to the bit; in that
// step, in later ones, and in the cells that the failed sequence had.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/engine/kv/kv_faults.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/model/gguf_testing.h"
#include "tests/engine_fixture.h"

namespace hotset::test {
namespace {

using engine::BatchToken;
using engine::EngineOptions;
using engine::FlashAttention;
using testing::HasSubstr;

constexpr int64_t kLayers = 4;
constexpr int32_t kVocabulary = 64;
constexpr uint16_t kNan = 0x7E00;  // F16
constexpr uint16_t kInfinity = 0x7C00;

struct Case {
  std::string architecture = "qwen3moe";
  std::string device = {};
  FlashAttention flash_attention = FlashAttention::kOff;
  int64_t layer = 1;  // of the expert
  uint16_t scale = kNan;
  ggml_type kv_type = GGML_TYPE_F16;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.architecture << " device '" << c.device << "' fa "
       << (c.flash_attention == FlashAttention::kOn) << " layer " << c.layer << " scale " << c.scale
       << ' ' << ggml_type_name(c.kv_type);
}

std::vector<int32_t> some_ids(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kVocabulary));
  return ids;
}

std::vector<BatchToken> joined(std::vector<BatchToken> a, const std::vector<BatchToken>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

class NumberFaults : public testing::TestWithParam<Case> {
 protected:
  static constexpr engine::SequenceId kBad = 0;
  static constexpr engine::SequenceId kGood = 1;

  void SetUp() override {
    const engine::RandomModelOptions model{.architecture = GetParam().architecture,
                                           .n_layer = kLayers,
                                           .n_embd = 64,
                                           .n_head = 4,
                                           .n_head_kv = 2,
                                           .head_dim = 32,
                                           .n_expert = 32,
                                           .n_expert_used = 2,
                                           .n_ff_expert = 32,
                                           .n_ff = 64,
                                           .n_vocab = kVocabulary,
                                           .expert_type = GGML_TYPE_Q4_0,
                                           .dense_type = GGML_TYPE_Q8_0,
                                           .seed = 11};
    const auto status = engine::write_random_model(model, sound_path());
    ASSERT_TRUE(status) << status.error().message;
    spoil();
  }

  std::filesystem::path sound_path() const { return folder_ / "sound.gguf"; }
  std::filesystem::path spoilt_path() const { return folder_ / "spoilt.gguf"; }

  std::unique_ptr<engine::Engine> engine_of(const std::filesystem::path& path,
                                            engine::RoutingObserver observer = {}) const {
    const Case& c = GetParam();
    EngineOptions options{.n_threads = 1,
                          .context = {.n_ctx = 256,
                                      .n_ubatch = 128,
                                      .n_outputs = 128,
                                      .flash_attention = c.flash_attention,
                                      .key_type = c.kv_type,
                                      .value_type = c.kv_type},
                          .load = {.repack = false},
                          .device = c.device,
                          .observe_routing = std::move(observer)};
    return make_engine(describe(path), options);
  }

  // The experts of the spoilt layer that these tokens are routed to.
  std::set<int32_t> experts_of(std::span<const int32_t> ids) const {
    std::set<int32_t> experts;
    const auto engine = engine_of(sound_path(), [&](int64_t layer, auto chosen, int64_t) {
      if (layer == GetParam().layer) experts.insert(chosen.begin(), chosen.end());
    });
    decode(*engine, as_batch(ids, true));
    return experts;
  }

  // Gives one block of an expert that `bad_` needs and `good_` does not such a scale.
  void spoil() {
    std::set<int32_t> bad = experts_of(bad_);
    for (const int32_t expert : experts_of(good_)) bad.erase(expert);
    ASSERT_FALSE(bad.empty());
    expert_ = *bad.begin();
    const auto sound = model::GgufFile::open(sound_path());
    ASSERT_TRUE(sound) << sound.error().message;
    model::GgufBytes file(*sound);
    tensor_ = fmt::format("blk.{}.ffn_down_exps.weight", GetParam().layer);
    std::vector<uint8_t>& data = *file.tensor(tensor_).data;
    const size_t expert_bytes = data.size() / 32;
    std::memcpy(data.data() + static_cast<size_t>(expert_) * expert_bytes, &GetParam().scale,
                sizeof(uint16_t));
    file.write(spoilt_path());
  }

  void expect_fault(const Result<engine::DecodeResult>& result) const {
    ASSERT_TRUE(result) << result.error().message;
    ASSERT_EQ(result->faults.size(), 1U);
    EXPECT_EQ(result->faults.front().sequence, kBad);
    EXPECT_THAT(result->faults.front().message,
                HasSubstr(fmt::format("'{}', expert {}", tensor_, expert_)));
  }
  static void expect_sound_memory(const engine::Engine& engine) {
    const auto faults = engine::KvFaults::find(engine.kv());
    ASSERT_TRUE(faults) << faults.error().message;
    EXPECT_EQ(faults->first_layer(), kLayers);
  }

  // Rows of the last `n` tokens that wanted logits.
  static std::vector<float> last_rows(const Result<engine::DecodeResult>& result, size_t n) {
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return {};
    const auto rows = result->logits.last(n * kVocabulary);
    return {rows.begin(), rows.end()};
  }

  TemporaryFolder folder_;
  const std::vector<int32_t> bad_ = some_ids(7, 1);
  const std::vector<int32_t> good_ = some_ids(5, 2);
  int32_t expert_ = 0;
  std::string tensor_;
};

TEST_P(NumberFaults, EndOneSequenceAndLeaveTheOthersAsTheyWere) {
  const auto sound = engine_of(sound_path());
  const auto spoilt = engine_of(spoilt_path());
  // Both in one step: the one that fails stands in front of the other in the KV memory.
  const auto together = joined(as_batch(bad_, true, 0, kBad), as_batch(good_, true, 0, kGood));
  const auto expected = last_rows(sound->decode_each(together), good_.size());
  const auto found = spoilt->decode_each(together);
  expect_fault(found);
  EXPECT_EQ(last_rows(found, good_.size()), expected);
  EXPECT_EQ(spoilt->next_position(kBad), 0);
  EXPECT_EQ(spoilt->next_position(kGood), 5);
  expect_sound_memory(*spoilt);
  // The good one goes on, and a new sequence has the cells that the other one had.
  sound->forget(kBad, 0, 256);
  const auto later =
      joined(as_batch(good_, true, 0, kBad), as_batch({&good_[2], 1}, true, 5, kGood));
  const auto after = last_rows(sound->decode_each(later), 6);
  const auto result = spoilt->decode_each(later);
  EXPECT_EQ(last_rows(result, 6), after);
  EXPECT_TRUE(result->faults.empty());
}

TEST_P(NumberFaults, AreFoundWhereNobodyWantsLogits) {
  const auto sound = engine_of(sound_path());
  const auto spoilt = engine_of(spoilt_path());
  auto together = joined(as_batch(bad_, false, 0, kBad), as_batch(good_, false, 0, kGood));
  for (BatchToken& token : together) token.want_logits = false;
  ASSERT_TRUE(sound->decode_each(together));
  const auto found = spoilt->decode_each(together);
  expect_sound_memory(*spoilt);
  if (GetParam().layer + 1 < kLayers) {
    expect_fault(found);
  } else {
    // The last layer's experts are not computed.
    ASSERT_TRUE(found);
    EXPECT_TRUE(found->faults.empty());
  }
  // What the good one has by now is as it should be, and can be saved.
  const auto next = as_batch({&good_[2], 1}, true, 5, kGood);
  const auto expected = last_rows(sound->decode_each(next), 1);
  const auto state = spoilt->save_sequence(kGood);
  ASSERT_TRUE(state) << state.error().message;
  EXPECT_EQ(last_rows(spoilt->decode_each(next), 1), expected);
  ASSERT_TRUE(spoilt->restore_sequence(kGood, *state));
  EXPECT_EQ(last_rows(spoilt->decode_each(next), 1), expected);
}

TEST_P(NumberFaults, AreErrorsOfDecode) {
  const auto spoilt = engine_of(spoilt_path());
  const auto result = spoilt->decode(as_batch(bad_, false, 0, kBad));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(result.error().message, HasSubstr("spoilt.gguf: the model computed numbers"));
  EXPECT_EQ(spoilt->next_position(kBad), 0);
  EXPECT_EQ(decode(*spoilt, as_batch(good_, false, 0, kBad)),
            decode(*engine_of(sound_path()), as_batch(good_, false, 0, kBad)));
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string device : {"", "emu:clock=virtual"}) {
    for (const FlashAttention fa : {FlashAttention::kOff, FlashAttention::kOn}) {
      for (const int64_t layer : {int64_t{1}, kLayers - 2, kLayers - 1}) {
        all.push_back({.device = device, .flash_attention = fa, .layer = layer});
      }
    }
  }
  all.push_back({.scale = kInfinity});
  all.push_back({.kv_type = GGML_TYPE_F32});
  all.push_back({.flash_attention = FlashAttention::kOn, .kv_type = GGML_TYPE_Q8_0});
  for (const std::string architecture : {"gpt-oss", "deepseek2"}) {
    for (const FlashAttention fa : {FlashAttention::kOff, FlashAttention::kOn}) {
      all.push_back({.architecture = architecture, .flash_attention = fa, .layer = 2});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Table, NumberFaults, testing::ValuesIn(cases()));

TEST(KvFaultsTest, KnowNumbersOfEveryType) {
  using engine::rows_are_finite;
  const auto bytes_of = [](const auto& values) {
    return std::span(reinterpret_cast<const uint8_t*>(values.data()), sizeof(values));
  };
  std::array<float, 3> f32 = {1.0F, -0.0F, 3e38F};
  EXPECT_TRUE(rows_are_finite(GGML_TYPE_F32, bytes_of(f32)));
  f32[2] = -HUGE_VALF;
  EXPECT_FALSE(rows_are_finite(GGML_TYPE_F32, bytes_of(f32)));
  std::array<uint16_t, 3> f16 = {0x7BFF, 0x8000, 0xFBFF};
  EXPECT_TRUE(rows_are_finite(GGML_TYPE_F16, bytes_of(f16)));
  f16[1] = 0xFE00;
  EXPECT_FALSE(rows_are_finite(GGML_TYPE_F16, bytes_of(f16)));
  std::array<uint8_t, 68> q8{};
  std::ranges::fill(q8, uint8_t{0x7F});
  q8[0] = q8[34] = q8[1] = q8[35] = 0;
  EXPECT_TRUE(rows_are_finite(GGML_TYPE_Q8_0, bytes_of(q8)));
  q8[35] = 0x7C;
  EXPECT_FALSE(rows_are_finite(GGML_TYPE_Q8_0, bytes_of(q8)));
}

}  // namespace
}  // namespace hotset::test
