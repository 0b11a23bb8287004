// Models of unusual shapes: odd widths, one expert, values wider than keys, a vocabulary of one.
// Each computes or is refused; none ends the process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/engine/run/engine.h"
#include "hotset/model/gguf_testing.h"

namespace hotset::engine {
namespace {

using model::GgufBytes;
using model::GgufFile;

// A small number, often one that is a power of two or its neighbour.
uint32_t small_number(Random& random, uint32_t max) {
  constexpr uint32_t kFavourites[] = {1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 48, 64};
  const uint32_t n = random.below(3) > 0 ? kFavourites[random.below(std::size(kFavourites))]
                                         : static_cast<uint32_t>(1 + random.below(max));
  return std::min(n, max);
}

GgufBytes random_keys(Random& random, const std::string& architecture) {
  const auto number = [&](uint32_t max) { return small_number(random, max); };
  GgufBytes file;
  const auto set = [&](const char* name, auto value) {
    file.key(architecture + "." + name, value);
  };
  file.key("general.architecture", architecture);
  set("block_count", number(3));
  set("context_length", uint32_t{128});
  set("embedding_length", number(70));
  const uint32_t n_head_kv = number(4);
  set("attention.head_count", n_head_kv * number(3));
  set("attention.head_count_kv", n_head_kv);
  const uint32_t head_dim = number(66);
  set("attention.key_length", head_dim);
  set("attention.value_length", random.below(2) == 0 ? head_dim : number(66));
  if (random.below(2) == 0) set("rope.dimension_count", number(head_dim) & ~1U);
  if (random.below(4) == 0) {
    set("rope.scaling.type", std::string(random.below(2) == 0 ? "yarn" : "linear"));
    set("rope.scaling.factor", 2.0F);
  }
  set("attention.layer_norm_rms_epsilon", 1e-5F);
  const uint32_t n_expert = number(40);
  set("expert_count", n_expert);
  set("expert_used_count", number(n_expert));
  set("expert_feed_forward_length", number(70));
  set("expert_shared_feed_forward_length", number(70));
  set("feed_forward_length", number(70));
  set("vocab_size", number(70));
  return file;
}

// Keys that only some architectures read, most of the time such that they fit together.
void add_special_keys(Random& random, const std::string& architecture, GgufBytes& file) {
  const auto number = [&](uint32_t max) { return small_number(random, max); };
  const auto set = [&](const char* name, auto value) {
    file.replace_key(architecture + "." + name, value);
  };
  const auto coin = [&] { return random.below(2) == 0; };
  set("attention.sliding_window", number(24));
  set("interleave_moe_layer_step", coin() ? 1U : number(3));
  set("leading_dense_block_count", number(3) - 1);
  set("expert_shared_count", number(3) - 1);
  set("expert_gating_func", number(3) - 1);
  set("expert_weights_norm", coin());
  set("expert_weights_scale", coin() ? 0.0F : 2.5F);
  if (coin()) {
    const uint32_t n_group = number(8);
    const uint32_t n_expert = n_group * number(8);
    set("expert_group_count", n_group);
    set("expert_group_used_count", std::min(n_group, number(4)));
    set("expert_count", n_expert);
    set("expert_used_count", number(std::max(1U, n_expert / n_group)));
  }
  set("embedding_scale", 12.0F);
  set("residual_scale", 0.22F);
  set("logit_scale", coin() ? 0.0F : 8.0F);
  if (architecture != "deepseek2") return;
  const uint32_t n_head = number(6);
  const uint32_t n_latent = number(66);
  const uint32_t n_rotated = 2 * number(16);
  const uint32_t head_dim_k = n_rotated + number(32);
  const uint32_t head_dim_v = number(32);
  const bool is_compressed = coin();
  if (coin()) set("attention.q_lora_rank", number(40));
  set("attention.kv_lora_rank", n_latent);
  set("rope.dimension_count", n_rotated);
  set("attention.head_count", n_head);
  set("attention.head_count_kv", is_compressed ? 1U : n_head);
  set("attention.key_length", is_compressed ? n_latent + n_rotated : head_dim_k);
  set("attention.value_length", is_compressed ? n_latent : head_dim_v);
  if (!is_compressed) return;
  set("attention.key_length_mla", head_dim_k);
  set("attention.value_length_mla", head_dim_v);
}

// All tensors that a model with these keys needs, F32; nothing if the keys are refused.
bool add_tensors(GgufBytes& file, Random& random) {
  const std::vector<uint8_t> keys = file.bytes();
  const auto parsed = GgufFile::parse(keys, "keys.gguf");
  HOTSET_CHECK(parsed.has_value());
  const auto architecture = architecture_of(*parsed);
  HOTSET_CHECK(architecture.has_value());
  auto spec = (*architecture)->read_spec(*parsed);
  if (!spec) {
    EXPECT_THAT(spec.error().message, testing::HasSubstr("keys.gguf"));
    return false;
  }
  spec->merged_gate_up = random.below(3) == 0;
  ModelWeights weights;
  WeightList list;
  (*architecture)->declare_weights(*spec, weights, list);
  // A file has an optional tensor in all layers or in none.
  std::map<std::string, bool> is_left_out;
  for (const WeightDeclaration& w : list.declarations()) {
    if (w.presence != Presence::kRequired) {
      constexpr size_t kPrefixBytes = 4;  // "blk."
      const auto [it, is_new] = is_left_out.try_emplace(
          w.name.starts_with("blk.") ? w.name.substr(w.name.find('.', kPrefixBytes)) : w.name);
      if (is_new) it->second = random.below(2) == 0;
      if (it->second) continue;
    }
    // Some are declared for several layers.
    if (std::ranges::contains(file.tensors, w.name, &model::TensorEntry::name)) continue;
    std::vector<float> values(static_cast<size_t>(w.ne[0] * w.ne[1] * w.ne[2] * w.ne[3]));
    for (float& value : values) value = static_cast<float>(random.normal() * 0.2);
    std::vector<uint8_t> data(values.size() * sizeof(float));
    std::memcpy(data.data(), values.data(), data.size());
    file.add({.name = w.name, .ne = {w.ne.begin(), w.ne.end()}, .data = std::move(data)});
  }
  return true;
}

TEST(Shapes, UnusualOnesComputeOrAreRefused) {
  const test::TemporaryFolder folder;
  const auto path = folder / "odd.gguf";
  std::map<std::string, int> n_computed;
  for (uint64_t seed = 1; seed <= 320; ++seed) {
    Random random(seed);
    const auto names = architecture_names();
    const std::string architecture(names[random.below(names.size())]);
    SCOPED_TRACE(testing::Message() << architecture << ", seed " << seed);
    GgufBytes file = random_keys(random, architecture);
    add_special_keys(random, architecture, file);
    if (!add_tensors(file, random)) continue;
    file.write(path);
    for (const FlashAttention flash_attention : {FlashAttention::kAuto, FlashAttention::kOff}) {
      auto description = describe_model(path);
      ASSERT_TRUE(description) << description.error().message;
      EngineOptions options{.n_threads = 1,
                            .context = {.n_ctx = 64,
                                        .n_ubatch = static_cast<int32_t>(1 + random.below(20)),
                                        .n_outputs = 20,
                                        .flash_attention = flash_attention}};
      if (random.below(2) == 0)
        options.context.key_type = options.context.value_type = GGML_TYPE_F32;
      options.load.repack = random.below(2) == 0;
      const auto engine = Engine::create(*std::move(description), options);
      if (!engine) {
        EXPECT_TRUE(engine.error().code == ErrorCode::kUnsupported ||
                    engine.error().code == ErrorCode::kInvalidArgument)
            << engine.error().message;
        continue;
      }
      const auto n_vocab = static_cast<uint64_t>((*engine)->spec().n_vocab);
      std::vector<BatchToken> batch;
      for (int32_t i = 0; i < 20; ++i) {
        batch.push_back({.token = static_cast<int32_t>(random.below(n_vocab)),
                         .position = i,
                         .want_logits = true});
      }
      const auto result = (*engine)->decode(batch);
      ASSERT_TRUE(result) << result.error().message;
      ASSERT_EQ(result->logits.size(), 20 * n_vocab);
      for (const float logit : result->logits) ASSERT_TRUE(std::isfinite(logit));
      ++n_computed[architecture];
    }
  }
  for (const std::string_view name : architecture_names()) {
    EXPECT_GE(n_computed[std::string(name)], 15) << name;
  }
}

}  // namespace
}  // namespace hotset::engine
