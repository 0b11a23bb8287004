// Forms in which files of the same model come: what they compute must not depend on the form. And
// parts of architectures that no golden has, against what they must compute by their definition.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/model/gguf_testing.h"
#include "tests/engine_fixture.h"
#include "tests/tolerances.h"

namespace hotset::test {
namespace {

using engine::EngineOptions;
using engine::FlashAttention;
using engine::RandomModelOptions;
using model::GgufBytes;
using model::GgufFile;
using model::TensorEntry;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kVocabulary = 64;
constexpr int64_t kLayers = 2;

// F32 throughout and every token at every expert, so that no difference in rounding is amplified.
RandomModelOptions exact(const std::string& architecture) {
  return {.architecture = architecture,
          .n_layer = kLayers,
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
}

EngineOptions exact_options(FlashAttention flash_attention = FlashAttention::kOff) {
  return {.n_threads = 1,
          .context = {.n_ctx = 512,
                      .n_outputs = 512,
                      .flash_attention = flash_attention,
                      .key_type = GGML_TYPE_F32,
                      .value_type = GGML_TYPE_F32},
          .load = {.repack = false}};
}

std::vector<int32_t> some_ids(size_t n) {
  Random random(3);
  std::vector<int32_t> ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kVocabulary));
  return ids;
}

std::vector<float> values_of(const TensorEntry& tensor) {
  HOTSET_CHECK(tensor.type == GGML_TYPE_F32);
  std::vector<float> values(tensor.data->size() / sizeof(float));
  std::memcpy(values.data(), tensor.data->data(), tensor.data->size());
  return values;
}

void set_values(TensorEntry& tensor, const std::vector<float>& values) {
  tensor.data = std::vector<uint8_t>(values.size() * sizeof(float));
  std::memcpy(tensor.data->data(), values.data(), tensor.data->size());
}

TensorEntry entry(std::string name, std::vector<int64_t> ne, const std::vector<float>& values) {
  TensorEntry tensor{.name = std::move(name), .ne = std::move(ne)};
  set_values(tensor, values);
  return tensor;
}

std::string in_layer(int64_t layer, const std::string& name) {
  return engine::layer_tensor(layer, name);
}

class ModelForms : public testing::Test {
 protected:
  GgufBytes random_model(const RandomModelOptions& options) const {
    const auto status = engine::write_random_model(options, path());
    HOTSET_CHECK(status.has_value());
    const auto file = GgufFile::open(path());
    HOTSET_CHECK(file.has_value());
    return GgufBytes(*file);
  }
  std::vector<float> logits_of(const GgufBytes& file,
                               const EngineOptions& options = exact_options()) const {
    file.write(path());
    const auto engine = make_engine(describe(path()), options);
    return engine == nullptr ? std::vector<float>() : decode(*engine, as_batch(some_ids(40), true));
  }
  std::filesystem::path path() const { return folder_ / "model.gguf"; }

  TemporaryFolder folder_;
};

// One matrix for keys and values, and no keys "*_mla": the KV memory holds all heads.
GgufBytes in_older_form(GgufBytes file) {
  const auto parsed = file.bytes();
  const auto source = GgufFile::parse(parsed, "new.gguf");
  HOTSET_CHECK(source.has_value());
  const auto number = [&](const char* key) {
    return *source->require_int(std::string("deepseek2.") + key, 0, 1 << 20);
  };
  const int64_t n_head = number("attention.head_count");
  const int64_t n_latent = number("attention.kv_lora_rank");
  const int64_t head_dim_k = number("attention.key_length_mla");
  const int64_t head_dim_v = number("attention.value_length_mla");
  const int64_t n_plain = head_dim_k - number("rope.dimension_count");
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const auto keys = values_of(file.tensor(in_layer(layer, "attn_k_b.weight")));
    const auto values = values_of(file.tensor(in_layer(layer, "attn_v_b.weight")));
    std::vector<float> both;  // [n_head, n_plain + head_dim_v, n_latent]
    for (int64_t head = 0; head < n_head; ++head) {
      for (int64_t i = 0; i < n_plain; ++i) {
        for (int64_t l = 0; l < n_latent; ++l) {
          both.push_back(keys[static_cast<size_t>((head * n_latent + l) * n_plain + i)]);
        }
      }
      const auto begin = values.begin() + head * head_dim_v * n_latent;
      both.insert(both.end(), begin, begin + head_dim_v * n_latent);
    }
    file.remove_tensor(in_layer(layer, "attn_k_b.weight"));
    file.remove_tensor(in_layer(layer, "attn_v_b.weight"));
    file.add(entry(in_layer(layer, "attn_kv_b.weight"), {n_latent, n_head * (n_plain + head_dim_v)},
                   both));
  }
  file.remove_key("deepseek2.attention.key_length_mla");
  file.remove_key("deepseek2.attention.value_length_mla");
  file.replace_key("deepseek2.attention.head_count_kv", static_cast<uint32_t>(n_head));
  file.replace_key("deepseek2.attention.key_length", static_cast<uint32_t>(head_dim_k));
  file.replace_key("deepseek2.attention.value_length", static_cast<uint32_t>(head_dim_v));
  return file;
}

TEST_F(ModelForms, LatentAttentionIsTheSameCompressedAndNot) {
  const GgufBytes file = random_model(exact("deepseek2"));
  const auto compressed = logits_of(file);
  for (const FlashAttention flash_attention : {FlashAttention::kOff, FlashAttention::kOn}) {
    const EngineOptions options = exact_options(flash_attention);
    EXPECT_LT(nmse(logits_of(file, options), compressed), kOtherFormNmse);
    EXPECT_LT(nmse(logits_of(in_older_form(file), options), compressed), kOtherFormNmse);
  }
}

TEST_F(ModelForms, TheLatentCacheMayBeRounded) {
  RandomModelOptions model = exact("deepseek2");
  model.head_dim = 64;  // keys of 4 * 64 + 32, whole blocks
  const GgufBytes file = random_model(model);
  const auto expected = logits_of(file);
  for (const FlashAttention flash_attention : {FlashAttention::kOff, FlashAttention::kOn}) {
    EngineOptions options = exact_options(flash_attention);
    options.context.key_type = GGML_TYPE_F16;
    EXPECT_LT(nmse(logits_of(file, options), expected), kOtherPathNmse);
    options.context.key_type = GGML_TYPE_Q8_0;
    EXPECT_LT(nmse(logits_of(file, options), expected), kQuantizedCacheNmse);
  }
}

TEST_F(ModelForms, TheLatentCacheHasNoValues) {
  const auto n_bytes = [&](const GgufBytes& file) {
    file.write(path());
    return make_engine(describe(path()), exact_options())->kv().n_bytes().count;
  };
  const GgufBytes file = random_model(exact("deepseek2"));
  // Latent 4 * 32, rotated 16; in the older form 4 heads with keys of 48 and values of 32.
  EXPECT_EQ(n_bytes(file), kLayers * 512 * (128 + 16) * 4);
  EXPECT_EQ(n_bytes(in_older_form(file)), kLayers * 512 * 4 * (48 + 32) * 4);
}

// A latent as wide as x, made by the identity: the norm of what is normed already changes nothing.
TEST_F(ModelForms, QueriesMayHaveNoLatent) {
  GgufBytes file = random_model(exact("deepseek2"));
  file.replace_key("deepseek2.attention.q_lora_rank", 64U);
  GgufBytes direct = file;
  direct.remove_key("deepseek2.attention.q_lora_rank");
  Random random(9);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    std::vector<float> identity(64 * 64);
    for (size_t i = 0; i < 64; ++i) identity[i * 64 + i] = 1;
    std::vector<float> query(4 * 48 * 64);
    for (float& value : query) value = static_cast<float>(random.normal() / 8);
    for (const char* part : {"attn_q_a.weight", "attn_q_a_norm.weight", "attn_q_b.weight"}) {
      file.remove_tensor(in_layer(layer, part));
      direct.remove_tensor(in_layer(layer, part));
    }
    file.add(entry(in_layer(layer, "attn_q_a.weight"), {64, 64}, identity));
    file.add(entry(in_layer(layer, "attn_q_a_norm.weight"), {64}, std::vector<float>(64, 1)));
    file.add(entry(in_layer(layer, "attn_q_b.weight"), {64, 4 * 48}, query));
    direct.add(entry(in_layer(layer, "attn_q.weight"), {64, 4 * 48}, query));
  }
  const auto expected = logits_of(file);
  EXPECT_LT(nmse(logits_of(direct), expected), kOtherFormNmse);
  EXPECT_LT(nmse(logits_of(in_older_form(direct)), expected), kOtherFormNmse);
}

GgufBytes with_merged_gate_up(GgufBytes file, const RandomModelOptions& options) {
  const int64_t n_each = options.n_embd * options.n_ff_expert;
  for (int64_t layer = 0; layer < options.n_layer; ++layer) {
    const auto gate = values_of(file.tensor(in_layer(layer, "ffn_gate_exps.weight")));
    const auto up = values_of(file.tensor(in_layer(layer, "ffn_up_exps.weight")));
    std::vector<float> both;
    for (int64_t expert = 0; expert < options.n_expert; ++expert) {
      for (const auto* part : {&gate, &up}) {
        const auto begin = part->begin() + expert * n_each;
        both.insert(both.end(), begin, begin + n_each);
      }
    }
    file.remove_tensor(in_layer(layer, "ffn_gate_exps.weight"));
    file.remove_tensor(in_layer(layer, "ffn_up_exps.weight"));
    file.add(entry(in_layer(layer, "ffn_gate_up_exps.weight"),
                   {options.n_embd, 2 * options.n_ff_expert, options.n_expert}, both));
  }
  return file;
}

TEST_F(ModelForms, GateAndUpMayBeMerged) {
  for (const char* architecture : {"qwen3moe", "gpt-oss"}) {
    const RandomModelOptions options = exact(architecture);
    const GgufBytes file = random_model(options);
    const auto expected = logits_of(file);
    EXPECT_EQ(logits_of(with_merged_gate_up(file, options)), expected) << architecture;
  }
}

// Powers of two, so that no rounding differs.
TEST_F(ModelForms, ExpertsMayHaveScales) {
  const RandomModelOptions options = exact("qwen3moe");
  GgufBytes file = random_model(options);
  const auto plain = logits_of(file);
  GgufBytes scaled = file;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    int exponent = -2;
    for (const char* part : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
      std::vector<float> scales;
      for (int64_t expert = 0; expert < options.n_expert; ++expert) {
        scales.push_back(std::ldexp(1.0F, exponent + static_cast<int>(expert)));
      }
      ++exponent;
      scaled.add(entry(in_layer(layer, std::string(part) + ".scale"), {options.n_expert}, scales));
      TensorEntry& tensor = file.tensor(in_layer(layer, std::string(part) + ".weight"));
      std::vector<float> values = values_of(tensor);
      const size_t n_each = values.size() / scales.size();
      for (size_t i = 0; i < values.size(); ++i) values[i] *= scales[i / n_each];
      set_values(tensor, values);
    }
  }
  const auto expected = logits_of(file);
  EXPECT_GT(nmse(expected, plain), kMutationNmse);
  EXPECT_EQ(logits_of(scaled), expected);
  // And on a device, where experts are the CPU's and the rest is not.
  EngineOptions options_on_device = exact_options();
  options_on_device.device = "emu:clock=virtual";
  EXPECT_EQ(logits_of(scaled, options_on_device), expected);
}

TEST_F(ModelForms, LayersThatPredictFurtherTokensChangeNothing) {
  RandomModelOptions options = exact("glm4moe");
  const auto expected = logits_of(random_model(options));
  ++options.n_layer;
  GgufBytes file = random_model(options);
  EXPECT_GT(nmse(logits_of(file), expected), kMutationNmse);
  file.key("glm4moe.nextn_predict_layers", 1U);
  file.add({.name = "blk.2.nextn.eh_proj.weight", .ne = {128, 64}});
  EXPECT_EQ(logits_of(file), expected);
}

TEST_F(ModelForms, NormsAndBiasesThatSomeFilesLackMayBeAbsent) {
  GgufBytes file = random_model(exact("glm4moe"));
  const auto with_all = logits_of(file);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    for (const char* part : {"attn_q_norm.weight", "attn_k_norm.weight", "attn_q.bias",
                             "attn_k.bias", "attn_v.bias"}) {
      file.remove_tensor(in_layer(layer, part));
    }
  }
  EXPECT_GT(nmse(logits_of(file), with_all), kMutationNmse);
}

TEST_F(ModelForms, GraniteMayHaveASharedExpert) {
  RandomModelOptions options = exact("granitemoe");
  GgufBytes file = random_model(options);
  const auto without = logits_of(file);
  file.key("granitemoe.expert_shared_feed_forward_length", 32U);
  Random random(4);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const auto add = [&](const char* name, int64_t n_out, int64_t n_in) {
      std::vector<float> values(static_cast<size_t>(n_out * n_in));
      for (float& value : values) value = static_cast<float>(random.normal() / 4);
      file.add(entry(in_layer(layer, name), {n_in, n_out}, values));
    };
    add("ffn_gate_shexp.weight", 32, 64);
    add("ffn_up_shexp.weight", 32, 64);
    add("ffn_down_shexp.weight", 64, 32);
  }
  const auto expected = logits_of(file);
  EXPECT_GT(nmse(expected, without), kMutationNmse);
  EngineOptions on_device = exact_options();
  on_device.device = "emu:clock=virtual";
  EXPECT_EQ(logits_of(file, on_device), expected);
}

// The router gives every expert the same score; so the bias alone decides.
class Groups : public ModelForms {
 protected:
  std::vector<int32_t> chosen_with(uint32_t gating, const std::vector<float>& bias) const {
    RandomModelOptions options = exact("deepseek2");
    options.n_layer = 1;
    options.n_expert = static_cast<int64_t>(bias.size());
    options.n_expert_used = 2;
    GgufBytes file = random_model(options);
    file.replace_key("deepseek2.expert_gating_func", gating);
    file.replace_key("deepseek2.expert_group_count", 4U);
    file.replace_key("deepseek2.expert_group_used_count", 2U);
    set_values(file.tensor("blk.0.exp_probs_b.bias"), bias);
    TensorEntry& router = file.tensor("blk.0.ffn_gate_inp.weight");
    set_values(router, std::vector<float>(bias.size() * 64));
    file.write(path());
    std::vector<int32_t> chosen;
    EngineOptions engine_options = exact_options();
    engine_options.observe_routing = [&](int64_t, std::span<const int32_t> ids, int64_t) {
      chosen.assign(ids.begin(), ids.end());
    };
    const auto engine = make_engine(describe(path()), engine_options);
    decode(*engine, as_batch(some_ids(1), true));
    return chosen;
  }
};

TEST_F(Groups, SigmoidGatesScoreThemByTheirBestTwo) {
  EXPECT_THAT(chosen_with(2, {10, 1, 0, 6, 6, 5, 9, 1, 0, 0, 0, 0}), ElementsAre(0, 3));
  EXPECT_THAT(chosen_with(2, {10, 2, 6, 6, 9, 1, 0, 0}), ElementsAre(0, 2));
}

TEST_F(Groups, SoftmaxGatesScoreThemByTheirBest) {
  EXPECT_THAT(chosen_with(1, {10, 2, 6, 6, 9, 1, 0, 0}), ElementsAre(0, 4));
}

TEST_F(ModelForms, WindowsAndLatentsDoNotDependOnTheUbatch) {
  for (const char* architecture : {"gpt-oss", "deepseek2"}) {
    GgufBytes file = random_model(exact(architecture));
    if (std::string(architecture) == "gpt-oss") {
      file.replace_key("gpt-oss.attention.sliding_window", 5U);
    }
    for (const FlashAttention flash_attention : {FlashAttention::kOff, FlashAttention::kOn}) {
      EngineOptions options = exact_options(flash_attention);
      const auto whole = logits_of(file, options);
      for (const int32_t n_ubatch : {1, 7, 16}) {
        options.context.n_ubatch = n_ubatch;
        EXPECT_LT(nmse(logits_of(file, options), whole), kOtherFormNmse) << architecture;
      }
    }
  }
}

// What a token sees two layers down is at most two windows away.
TEST_F(ModelForms, AWindowHidesWhatIsFarAway) {
  RandomModelOptions options = exact("gpt-oss");
  options.n_layer = 1;  // windowed
  GgufBytes file = random_model(options);
  file.replace_key("gpt-oss.attention.sliding_window", 5U);
  file.write(path());
  const auto last_with = [&](size_t changed) {
    std::vector<int32_t> ids = some_ids(20);
    ids[changed] = (ids[changed] + 1) % static_cast<int32_t>(kVocabulary);
    const auto engine = make_engine(describe(path()), exact_options());
    return decode(*engine, as_batch(ids, false));
  };
  // The window of the last of 20 tokens begins at token 15.
  EXPECT_EQ(last_with(0), last_with(14));
  EXPECT_NE(last_with(0), last_with(15));
}

class EveryArchitecture : public ModelForms {
 protected:
  // Small enough to be changed a thousand times.
  static RandomModelOptions small(std::string_view architecture) {
    RandomModelOptions options = exact(std::string(architecture));
    options.n_expert = 8;
    options.n_expert_used = 2;
    options.n_vocab = 8;
    return options;
  }
  // Computes, or is refused with a message that names the file; the process goes on either way.
  Status run(const GgufBytes& file) const {
    file.write(path());
    HOTSET_TRY(engine::ModelDescription description, engine::describe_model(path()));
    EngineOptions options = exact_options();
    options.context.n_ctx = 64;
    HOTSET_TRY(const auto engine, engine::Engine::create(std::move(description), options));
    HOTSET_TRY([[maybe_unused]] const auto result,
               engine->decode(as_batch(std::vector<int32_t>{0, 1, 2}, true)));
    return {};
  }
};

TEST_F(EveryArchitecture, RepackedWeightsAgree) {
  for (const std::string_view architecture : engine::architecture_names()) {
    for (const FlashAttention flash_attention : {FlashAttention::kOff, FlashAttention::kOn}) {
      RandomModelOptions model = exact(std::string(architecture));
      model.expert_type = GGML_TYPE_Q4_0;
      model.dense_type = GGML_TYPE_Q8_0;
      const GgufBytes file = random_model(model);
      EngineOptions options = exact_options(flash_attention);
      const auto plain = logits_of(file, options);
      options.load.repack = true;
      EXPECT_LT(nmse(logits_of(file, options), plain), kRepackedNmse) << architecture;
    }
  }
}

TEST_F(EveryArchitecture, NamesTheTensorThatIsMissing) {
  for (const std::string_view architecture : engine::architecture_names()) {
    const GgufBytes file = random_model(small(architecture));
    ASSERT_TRUE(run(file)) << architecture;
    for (const TensorEntry& tensor : file.tensors) {
      GgufBytes without = file;
      without.remove_tensor(tensor.name);
      const Status status = run(without);
      // The output may be the embedding again.
      if (tensor.name == "output.weight") {
        EXPECT_TRUE(status) << architecture << " " << tensor.name;
        continue;
      }
      ASSERT_FALSE(status) << architecture << " " << tensor.name;
      EXPECT_THAT(status.error().message, HasSubstr("model.gguf"));
      // Absent in some files, but then in all layers: biases and norms of GLM.
      const std::string_view part =
          std::string_view(tensor.name)
              .substr(std::min(tensor.name.size(), tensor.name.find("attn")));
      if (architecture == "glm4moe" && (part.contains("_norm") || part.ends_with(".bias")) &&
          part != "attn_norm.weight") {
        EXPECT_THAT(status.error().message, HasSubstr(part));
        GgufBytes without_all = file;
        for (const TensorEntry& other : file.tensors) {
          if (other.name.ends_with(part)) without_all.remove_tensor(other.name);
        }
        EXPECT_TRUE(run(without_all)) << part;
        continue;
      }
      EXPECT_THAT(status.error().message,
                  AnyOf(HasSubstr("tensor '" + tensor.name + "': found nothing, expected ["),
                        HasSubstr("vocabulary")));
    }
  }
}

TEST_F(EveryArchitecture, WrongKeysAreRefusedOrHarmless) {
  for (const std::string_view architecture : engine::architecture_names()) {
    const GgufBytes file = random_model(small(architecture));
    const std::vector<uint8_t> bytes = file.bytes();
    const gguf_context_ptr keys(
        gguf_init_from_buffer(bytes.data(), bytes.size(), {.no_alloc = true, .ctx = nullptr}));
    ASSERT_NE(keys, nullptr);
    for (int64_t id = 0; id < gguf_get_n_kv(keys.get()); ++id) {
      const std::string key = gguf_get_key(keys.get(), id);
      if (!key.starts_with(architecture)) continue;
      const auto check = [&](const GgufBytes& changed, const std::string& what) {
        SCOPED_TRACE(testing::Message() << key << " " << what);
        const Status status = run(changed);
        if (status) return;
        EXPECT_THAT(status.error().message, HasSubstr("model.gguf"));
      };
      GgufBytes changed = file;
      check(changed.remove_key(key), "absent");
      check(changed.key(key, "text"), "a text");
      for (const uint32_t value : {0U, 1U, 2U, 3U, 5U, 64U, 1U << 20, ~0U}) {
        check(changed.replace_key(key, value), std::to_string(value));
      }
      for (const float value : {0.0F, -1.0F, 1e-38F, 1e30F}) {
        check(changed.replace_key(key, value), std::to_string(value));
      }
    }
  }
}

TEST_F(EveryArchitecture, RefusesBiasesAndScalesThatItWouldIgnore) {
  GgufBytes file = random_model(small("qwen3moe"));
  file.add({.name = "blk.0.attn_q.scale", .ne = {1}});
  const Status status = run(file);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(status.error().message, HasSubstr("model.gguf: tensor 'blk.0.attn_q.scale'"));
}

}  // namespace
}  // namespace hotset::test
