#include "hotset/model/model_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "hotset/model/gguf_testing.h"

namespace hotset::model {
namespace {

using testing::HasSubstr;

// The keys that no model can do without, and experts.
GgufBytes minimal() {
  GgufBytes file;
  file.key("general.architecture", "a").key("a.block_count", 2U).key("a.context_length", 512U);
  file.key("a.embedding_length", 64U).key("a.attention.head_count", 4U);
  file.key("a.attention.layer_norm_rms_epsilon", 1e-6F);
  file.key("a.expert_count", 8U).key("a.expert_used_count", 2U);
  return file;
}

Result<ModelSpec> read(const GgufBytes& written) {
  const std::vector<uint8_t> bytes = written.bytes();
  const auto file = GgufFile::parse(bytes, "some.gguf");
  EXPECT_TRUE(file) << file.error().message;
  return read_common_spec(*file, "a");
}

ModelSpec read_good(const GgufBytes& written) {
  const auto spec = read(written);
  EXPECT_TRUE(spec) << spec.error().message;
  return spec.value_or(ModelSpec());
}

void expect_error(const GgufBytes& written, const std::string& key, const std::string& message,
                  ErrorCode code = ErrorCode::kCorrupt) {
  const auto spec = read(written);
  ASSERT_FALSE(spec) << key;
  EXPECT_EQ(spec.error().code, code);
  EXPECT_THAT(spec.error().message, HasSubstr("some.gguf"));
  EXPECT_THAT(spec.error().message, HasSubstr(key));
  EXPECT_THAT(spec.error().message, HasSubstr(message));
}

TEST(ModelSpec, MinimalKeysGetTheUsualDefaults) {
  const ModelSpec spec = read_good(minimal());
  EXPECT_EQ(spec.architecture, "a");
  EXPECT_EQ(spec.name, "");
  EXPECT_EQ(spec.n_layer, 2);
  EXPECT_EQ(spec.n_ctx_train, 512);
  EXPECT_EQ(spec.n_embd, 64);
  EXPECT_EQ(spec.n_ff, 0);
  EXPECT_EQ(spec.n_ff_expert, 0);
  EXPECT_EQ(spec.n_vocab, 0);
  EXPECT_EQ(spec.attention.n_head, 4);
  EXPECT_EQ(spec.attention.n_head_kv, 4);
  EXPECT_EQ(spec.attention.head_dim_k, 16);
  EXPECT_EQ(spec.attention.head_dim_v, 16);
  EXPECT_EQ(spec.rope.n_dims, 16);
  EXPECT_FLOAT_EQ(spec.rope.freq_base, 10000);
  EXPECT_EQ(spec.rope.scaling, RopeScaling::kNone);
  EXPECT_FLOAT_EQ(spec.rope.factor, 1);
  EXPECT_EQ(spec.rope.n_ctx_original, 512);
  EXPECT_EQ(spec.router.n_expert, 8);
  EXPECT_EQ(spec.router.n_expert_used, 2);
  EXPECT_TRUE(spec.is_moe_layer(0));
}

TEST(ModelSpec, ZeroMeansUnset) {
  GgufBytes file = minimal();
  for (const char* key :
       {"feed_forward_length", "expert_feed_forward_length", "vocab_size",
        "attention.head_count_kv", "attention.key_length", "attention.value_length",
        "rope.dimension_count", "rope.scaling.original_context_length"}) {
    file.key(std::string("a.") + key, 0U);
  }
  for (const char* key :
       {"rope.freq_base", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor",
        "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"}) {
    file.key(std::string("a.") + key, 0.0F);
  }
  const ModelSpec spec = read_good(file);
  EXPECT_EQ(spec.attention.n_head_kv, 4);
  EXPECT_EQ(spec.attention.head_dim_k, 16);
  EXPECT_EQ(spec.attention.head_dim_v, 16);
  EXPECT_EQ(spec.rope.n_dims, 16);
  EXPECT_FLOAT_EQ(spec.rope.freq_base, 10000);
  EXPECT_FLOAT_EQ(spec.rope.factor, 1);
  EXPECT_EQ(spec.rope.scaling, RopeScaling::kNone);
  EXPECT_FLOAT_EQ(spec.rope.attn_factor, 1);
  EXPECT_FLOAT_EQ(spec.rope.beta_fast, 32);
  EXPECT_FLOAT_EQ(spec.rope.beta_slow, 1);
  EXPECT_EQ(spec.rope.n_ctx_original, 512);
}

TEST(ModelSpec, ReadsWhatTheFileSays) {
  GgufBytes file = minimal();
  file.key("general.name", "Some Model").key("a.vocab_size", 100U);
  file.key("a.attention.head_count_kv", 2U).key("a.attention.key_length", 32U);
  file.key("a.attention.value_length", 24U).key("a.rope.dimension_count", 8U);
  file.key("a.rope.freq_base", 5e5F).key("a.feed_forward_length", uint64_t{96});
  file.key("a.expert_feed_forward_length", int32_t{48});
  const ModelSpec spec = read_good(file);
  EXPECT_EQ(spec.name, "Some Model");
  EXPECT_EQ(spec.n_vocab, 100);
  EXPECT_EQ(spec.attention.n_head_kv, 2);
  EXPECT_EQ(spec.attention.head_dim_k, 32);
  EXPECT_EQ(spec.attention.head_dim_v, 24);
  EXPECT_EQ(spec.rope.n_dims, 8);
  EXPECT_FLOAT_EQ(spec.rope.freq_base, 5e5F);
  EXPECT_EQ(spec.n_ff, 96);
  EXPECT_EQ(spec.n_ff_expert, 48);
}

TEST(ModelSpec, TheEmbeddingSaysHowLargeTheVocabularyIs) {
  GgufBytes file = minimal();
  file.key("a.vocab_size", 100U).add({.name = "token_embd.weight", .ne = {64, 77}});
  EXPECT_EQ(read_good(file).n_vocab, 77);
}

TEST(ModelSpec, RequiresEveryKeyThatHasNoDefault) {
  for (const char* key : {"block_count", "context_length", "embedding_length",
                          "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    const std::string name = std::string("a.") + key;
    expect_error(minimal().remove_key(name), "key '" + name + "'", "found nothing, expected");
    expect_error(minimal().replace_key(name, std::string("x")), "key '" + name + "'",
                 "found str, expected");
  }
  // Zero has no meaning for these.
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "attention.head_count"}) {
    const std::string name = std::string("a.") + key;
    expect_error(minimal().replace_key(name, 0U), "key '" + name + "'", "found 0, expected 1 to");
    expect_error(minimal().replace_key(name, -1), "key '" + name + "'", "found -1, expected 1 to");
    expect_error(minimal().replace_key(name, int64_t{1} << 40), "key '" + name + "'",
                 "found 1099511627776, expected 1 to");
  }
}

TEST(ModelSpec, ReportsTheFirstWrongKey) {
  expect_error(minimal().replace_key("a.context_length", 0U).replace_key("a.block_count", 0U),
               "'a.block_count'", "found 0");
}

TEST(ModelSpec, RefusesNegativeAndHugeNumbers) {
  for (const char* key :
       {"feed_forward_length", "expert_feed_forward_length", "attention.head_count_kv",
        "attention.key_length", "attention.value_length", "rope.dimension_count", "expert_count",
        "expert_used_count", "vocab_size", "rope.scaling.original_context_length"}) {
    const std::string name = std::string("a.") + key;
    expect_error(minimal().replace_key(name, -1), "key '" + name + "'", "found -1, expected 0 to");
    expect_error(minimal().replace_key(name, int64_t{1} << 40), "key '" + name + "'",
                 "found 1099511627776, expected 0 to");
  }
}

TEST(ModelSpec, HeadsOfKeysMustDivideTheHeads) {
  const auto with = [](uint32_t n) { return minimal().key("a.attention.head_count_kv", n); };
  expect_error(with(3), "attention.head_count_kv", "found 3, expected a divisor of 4 heads");
  expect_error(with(8), "attention.head_count_kv", "found 8, expected a divisor of 4 heads");
  EXPECT_EQ(read_good(with(1)).attention.n_head_kv, 1);
}

TEST(ModelSpec, HeadsMustHaveAWidth) {
  GgufBytes file = minimal().replace_key("a.attention.head_count", 128U);  // more than n_embd
  expect_error(file, "attention.key_length", "found 0, expected at least 1");
  file.key("a.attention.key_length", 16U);
  expect_error(file, "attention.value_length", "found 0, expected at least 1");
  file.key("a.attention.value_length", 16U);
  EXPECT_EQ(read_good(file).attention.n_head, 128);
}

TEST(ModelSpec, HeadsMustNotBeTooWideTogether) {
  expect_error(minimal()
                   .replace_key("a.attention.head_count", 1U << 20)
                   .key("a.attention.key_length", 2U)
                   .key("a.attention.value_length", 4U),
               "attention.head_count", "found 1048576, expected heads of 4 to be at most 1048576");
}

TEST(ModelSpec, RopeNeedsAnEvenPartOfTheHead) {
  const auto with = [](uint32_t n) { return minimal().key("a.rope.dimension_count", n); };
  expect_error(with(7), "rope.dimension_count", "found 7, expected an even number up to 16");
  expect_error(with(18), "rope.dimension_count", "found 18, expected an even number up to 16");
  EXPECT_EQ(read_good(with(2)).rope.n_dims, 2);
  // Odd heads without a key of their own.
  expect_error(minimal().key("a.attention.key_length", 5U), "rope.dimension_count", "found 5");
}

TEST(ModelSpec, RefusesImpossibleRopeNumbers) {
  expect_error(minimal().key("a.rope.freq_base", -1.0F), "rope", "found base -1");
  expect_error(minimal().key("a.rope.freq_base", std::nanf("")), "'a.rope.freq_base'", "finite");
  expect_error(minimal().key("a.rope.freq_base", 1e300), "'a.rope.freq_base'", "finite");
  expect_error(minimal().key("a.rope.scaling.factor", -2.0F), "rope", "factor -2");
}

TEST(ModelSpec, RopeScalingTypes) {
  const auto with = [](const char* type, float factor) {
    GgufBytes file = minimal().key("a.rope.scaling.factor", factor);
    return type == nullptr ? file : file.key("a.rope.scaling.type", type);
  };
  EXPECT_EQ(read_good(with("none", 4)).rope.scaling, RopeScaling::kNone);
  EXPECT_FLOAT_EQ(read_good(with("none", 4)).rope.factor, 1);
  EXPECT_EQ(read_good(with("linear", 4)).rope.scaling, RopeScaling::kLinear);
  EXPECT_FLOAT_EQ(read_good(with("linear", 4)).rope.factor, 4);
  EXPECT_EQ(read_good(with("yarn", 4)).rope.scaling, RopeScaling::kYarn);
  EXPECT_FLOAT_EQ(read_good(with("yarn", 4)).rope.factor, 4);
  // Older files give a factor alone, under either name, and mean linear scaling.
  EXPECT_EQ(read_good(with(nullptr, 4)).rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(read_good(minimal().key("a.rope.scale_linear", 8.0F)).rope.scaling,
            RopeScaling::kLinear);
  EXPECT_FLOAT_EQ(read_good(minimal().key("a.rope.scale_linear", 8.0F)).rope.factor, 8);
  EXPECT_EQ(read_good(with(nullptr, 1)).rope.scaling, RopeScaling::kNone);
  expect_error(with("longrope", 4), "'a.rope.scaling.type'",
               "found 'longrope', expected none, linear or yarn", ErrorCode::kUnsupported);
  expect_error(minimal().key("a.rope.scaling.type", 1), "'a.rope.scaling.type'", "found i32");
}

TEST(ModelSpec, YarnReadsItsNumbers) {
  GgufBytes file = minimal().key("a.rope.scaling.type", "yarn").key("a.rope.scaling.factor", 4.0F);
  file.key("a.rope.scaling.original_context_length", 128U);
  file.key("a.rope.scaling.attn_factor", 0.5F).key("a.rope.scaling.yarn_beta_fast", 16.0F);
  file.key("a.rope.scaling.yarn_beta_slow", 2.0F);
  const RopeSpec rope = read_good(file).rope;
  EXPECT_EQ(rope.n_ctx_original, 128);
  EXPECT_FLOAT_EQ(rope.attn_factor, 0.5F);
  EXPECT_FLOAT_EQ(rope.beta_fast, 16);
  EXPECT_FLOAT_EQ(rope.beta_slow, 2);
}

TEST(ModelSpec, NormsNeedAnEpsilonThatIsNotNegative) {
  expect_error(minimal().replace_key("a.attention.layer_norm_rms_epsilon", -1e-6F),
               "attention.layer_norm_rms_epsilon", "expected at least 0");
  expect_error(minimal().replace_key("a.attention.layer_norm_rms_epsilon", std::nanf("")),
               "'a.attention.layer_norm_rms_epsilon'", "finite");
  EXPECT_FLOAT_EQ(
      read_good(minimal().replace_key("a.attention.layer_norm_rms_epsilon", 0.0F)).norm_eps, 0);
}

TEST(ModelSpec, TokensUseOneExpertUpToAll) {
  const auto with = [](uint32_t n) { return minimal().replace_key("a.expert_used_count", n); };
  expect_error(with(0), "expert_used_count", "found 0, expected 1 to 8");
  expect_error(with(9), "expert_used_count", "found 9, expected 1 to 8");
  expect_error(with(1025), "expert_used_count", "found 1025, expected 0 to 1024");
  EXPECT_EQ(read_good(with(8)).router.n_expert_used, 8);
}

TEST(ModelSpec, RefusesAVocabularyThatIdsCannotCount) {
  ModelSpec spec = read_good(minimal());
  spec.n_vocab = int64_t{1} << 31;
  const Status status = check_spec(spec, "some.gguf");
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("vocabulary: found 2147483648"));
}

TEST(ModelSpec, DenseLayersComeFirstAndAreNotMoreThanAll) {
  ModelSpec spec = read_good(minimal());
  spec.n_layer_dense = 1;
  EXPECT_THAT(check_spec(spec, "some.gguf").error().message,
              HasSubstr("some.gguf: feed_forward_length: found 0, expected the width"));
  spec.n_ff = 32;
  EXPECT_TRUE(check_spec(spec, "some.gguf"));
  EXPECT_FALSE(spec.is_moe_layer(0));
  EXPECT_TRUE(spec.is_moe_layer(1));
  spec.n_layer_dense = 3;
  const Status status = check_spec(spec, "some.gguf");
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message,
              HasSubstr("some.gguf: leading_dense_block_count: found 3, expected at most 2"));
}

TEST(ModelSpec, ExpertsMayBeInEverySecondLayer) {
  GgufBytes file = minimal().replace_key("a.block_count", 4U).key("a.feed_forward_length", 32U);
  const ModelSpec spec = read_good(file.key("a.interleave_moe_layer_step", 2U));
  EXPECT_FALSE(spec.is_moe_layer(0));
  EXPECT_TRUE(spec.is_moe_layer(1));
  EXPECT_FALSE(spec.is_moe_layer(2));
  EXPECT_TRUE(spec.is_moe_layer(3));
}

TEST(ModelSpec, LayersThatPredictFurtherTokensAreLeftOut) {
  const auto with = [](uint32_t n) { return minimal().key("a.nextn_predict_layers", n); };
  EXPECT_EQ(read_good(with(0)).n_layer, 2);
  EXPECT_EQ(read_good(with(1)).n_layer, 1);
  expect_error(with(2), "'a.nextn_predict_layers'", "found 2, expected at most 1");
}

TEST(ModelSpec, TheTensorsSayWhetherGateAndUpAreMerged) {
  EXPECT_FALSE(read_good(minimal()).merged_gate_up);
  GgufBytes file = minimal();
  file.add({.name = "blk.1.ffn_gate_up_exps.weight", .ne = {64, 8, 8}});
  EXPECT_TRUE(read_good(file).merged_gate_up);
}

// A spec with the keys of routers.
Result<ModelSpec> read_router(const GgufBytes& written) {
  const std::vector<uint8_t> bytes = written.bytes();
  const auto file = GgufFile::parse(bytes, "some.gguf");
  EXPECT_TRUE(file) << file.error().message;
  HOTSET_TRY(ModelSpec spec, read_common_spec(*file, "a"));
  HOTSET_RETURN_IF_ERROR(require_experts(spec, "some.gguf"));
  HOTSET_RETURN_IF_ERROR(read_router_keys(*file, spec));
  return spec;
}

GgufBytes with_experts() {
  return minimal().key("a.expert_feed_forward_length", 48U).key("a.feed_forward_length", 96U);
}

TEST(RouterKeys, ReadsWhatTheFileSays) {
  GgufBytes file = with_experts().key("a.leading_dense_block_count", 1U);
  file.key("a.expert_shared_count", 2U).key("a.expert_gating_func", 2U);
  file.key("a.expert_weights_norm", true).key("a.expert_weights_scale", 2.5F);
  file.key("a.expert_group_count", 4U).key("a.expert_group_used_count", 2U);
  const auto spec = read_router(file);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->n_layer_dense, 1);
  EXPECT_EQ(spec->n_ff_shared, 96);
  EXPECT_EQ(spec->router.gating, Gating::kSigmoid);
  EXPECT_TRUE(spec->router.normalise_weights);
  EXPECT_FLOAT_EQ(spec->router.weights_scale, 2.5F);
  EXPECT_TRUE(spec->router.selection_bias);
  EXPECT_TRUE(spec->router.limits_groups());
  EXPECT_EQ(spec->router.n_group_best, 2);
}

TEST(RouterKeys, ZeroAndAbsentMeanUnset) {
  GgufBytes file = with_experts();
  for (const bool zero : {false, true}) {
    if (zero) {
      for (const char* key :
           {"leading_dense_block_count", "expert_shared_count", "expert_gating_func",
            "expert_group_count", "expert_group_used_count"}) {
        file.key(std::string("a.") + key, 0U);
      }
      file.key("a.expert_weights_scale", 0.0F);
    }
    const auto spec = read_router(file);
    ASSERT_TRUE(spec) << spec.error().message;
    EXPECT_EQ(spec->n_layer_dense, 0);
    EXPECT_EQ(spec->n_ff_shared, 0);
    EXPECT_EQ(spec->router.gating, Gating::kSoftmax);
    EXPECT_FALSE(spec->router.normalise_weights);
    EXPECT_FLOAT_EQ(spec->router.weights_scale, 1);
    EXPECT_FALSE(spec->router.selection_bias);
    EXPECT_FALSE(spec->router.limits_groups());
  }
}

TEST(RouterKeys, ASelectionBiasMeansASigmoidWhereTheGateIsNotNamed) {
  GgufBytes file = with_experts();
  file.add({.name = "blk.1.exp_probs_b.bias", .ne = {8}});
  const auto spec = read_router(file);
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->router.gating, Gating::kSigmoid);
  EXPECT_TRUE(spec->router.selection_bias);
  const auto softmax = read_router(file.key("a.expert_gating_func", 1U));
  EXPECT_EQ(softmax->router.gating, Gating::kSoftmax);
  EXPECT_TRUE(softmax->router.selection_bias);
}

TEST(RouterKeys, RefusesWhatCannotBe) {
  const auto refused = [](const GgufBytes& file, const std::string& message) {
    const auto spec = read_router(file);
    ASSERT_FALSE(spec) << message;
    EXPECT_THAT(spec.error().message, HasSubstr("some.gguf"));
    EXPECT_THAT(spec.error().message, HasSubstr(message));
  };
  const auto groups = [](uint32_t n, uint32_t n_used) {
    return with_experts().key("a.expert_group_count", n).key("a.expert_group_used_count", n_used);
  };
  refused(groups(3, 1), "expert_group_count: found 3, expected a divisor of 8 experts");
  refused(groups(16, 1), "expert_group_count: found 16, expected a divisor of 8 experts");
  refused(groups(4, 5), "expert_group_used_count: found 5, expected 1 to 4");
  refused(groups(8, 1), "expert_used_count: found 2, expected at most the 1 experts of 1 groups");
  refused(with_experts().key("a.expert_gating_func", 3U),
          "key 'a.expert_gating_func': found 3, expected 1 (softmax) or 2 (sigmoid)");
  refused(with_experts().key("a.leading_dense_block_count", 3U),
          "leading_dense_block_count: found 3, expected at most 2");
  refused(with_experts().key("a.expert_shared_count", 1U << 20), "'a.expert_shared_count'");
  refused(with_experts().key("a.expert_weights_norm", 1U), "'a.expert_weights_norm': found u32");
}

// A spec with the keys of latent attention.
Result<ModelSpec> read_latent(const GgufBytes& written) {
  const std::vector<uint8_t> bytes = written.bytes();
  const auto file = GgufFile::parse(bytes, "some.gguf");
  EXPECT_TRUE(file) << file.error().message;
  HOTSET_TRY(ModelSpec spec, read_common_spec(*file, "a"));
  HOTSET_RETURN_IF_ERROR(read_latent_keys(*file, spec));
  return spec;
}

GgufBytes compressed() {
  GgufBytes file = minimal().key("a.attention.head_count_kv", 1U);
  file.key("a.attention.kv_lora_rank", 32U).key("a.rope.dimension_count", 8U);
  file.key("a.attention.key_length", 40U).key("a.attention.value_length", 32U);
  file.key("a.attention.key_length_mla", 24U).key("a.attention.value_length_mla", 16U);
  return file;
}

TEST(LatentKeys, ReadsBothForms) {
  const auto spec = read_latent(compressed().key("a.attention.q_lora_rank", 48U));
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_TRUE(spec->attention.values_in_keys);
  EXPECT_EQ(spec->attention.latent.n_latent, 32);
  EXPECT_EQ(spec->attention.latent.n_query_latent, 48);
  EXPECT_EQ(spec->attention.latent.head_dim_k, 24);
  EXPECT_EQ(spec->attention.latent.head_dim_v, 16);
  EXPECT_FLOAT_EQ(spec->attention.scale, 1 / std::sqrt(24.0F));

  GgufBytes file = minimal().key("a.attention.kv_lora_rank", 32U).key("a.rope.dimension_count", 8U);
  file.key("a.attention.key_length", 24U).key("a.attention.value_length", 16U);
  const auto older = read_latent(file);
  ASSERT_TRUE(older) << older.error().message;
  EXPECT_FALSE(older->attention.values_in_keys);
  EXPECT_EQ(older->attention.latent.n_query_latent, 0);
  EXPECT_EQ(older->attention.latent.head_dim_k, 24);
  EXPECT_EQ(older->attention.n_head_kv, 4);
}

TEST(LatentKeys, RefusesWhatDoesNotFitTogether) {
  const auto refused = [](const std::string& key, uint32_t value, const std::string& message) {
    const auto spec = read_latent(compressed().replace_key("a." + key, value));
    ASSERT_FALSE(spec) << key;
    EXPECT_EQ(spec.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(spec.error().message, HasSubstr("some.gguf"));
    EXPECT_THAT(spec.error().message, HasSubstr(message));
  };
  refused("attention.kv_lora_rank", 0, "'a.attention.kv_lora_rank': found 0, expected 1 to");
  refused("attention.kv_lora_rank", 31, "'a.attention.key_length': found 40, expected 39");
  refused("attention.head_count_kv", 2, "'a.attention.head_count_kv': found 2, expected 1");
  refused("attention.value_length", 16, "'a.attention.value_length': found 16, expected 32");
  refused("attention.key_length_mla", 8, "found 4 heads of 8 and 16, expected more than the 8");
  refused("attention.value_length_mla", 0, "found 4 heads of 24 and 0");
  refused("attention.key_length_mla", 1 << 19, "at most 1048576 together");
}

TEST(ModelSpec, ExpertsMustBeThereWhereTheyAreRequired) {
  ModelSpec spec = read_good(minimal());
  spec.n_ff_expert = 32;
  EXPECT_TRUE(require_experts(spec, "some.gguf"));
  spec.n_ff_expert = 0;
  EXPECT_THAT(require_experts(spec, "some.gguf").error().message,
              HasSubstr("some.gguf: key 'a.expert_feed_forward_length': found nothing"));
  spec.router.n_expert = 0;
  EXPECT_THAT(require_experts(spec, "some.gguf").error().message,
              HasSubstr("some.gguf: key 'a.expert_count': found 0"));
}

TEST(ModelSpec, TheArchitectureMustBeNamed) {
  const std::vector<uint8_t> bytes = GgufBytes().bytes();
  const auto file = GgufFile::parse(bytes, "some.gguf");
  const auto name = read_architecture(*file);
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(name.error().message, HasSubstr("'general.architecture': found nothing"));
}

}  // namespace
}  // namespace hotset::model
