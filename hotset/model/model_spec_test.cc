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
  EXPECT_TRUE(check_spec(spec, "some.gguf"));
  EXPECT_FALSE(spec.is_moe_layer(0));
  EXPECT_TRUE(spec.is_moe_layer(1));
  spec.n_layer_dense = 3;
  const Status status = check_spec(spec, "some.gguf");
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message,
              HasSubstr("some.gguf: leading_dense_block_count: found 3, expected at most 2"));
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
