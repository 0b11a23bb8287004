#include "hotset/engine/weights/model_tokenizer.h"

#include <gguf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "hotset/base/log.h"

namespace hotset::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A file with a vocabulary of three tokens and what `change` does to it.
struct VocabularyFile {
  explicit VocabularyFile(const std::function<void(gguf_context*)>& change) {
    const std::unique_ptr<gguf_context, void (*)(gguf_context*)> context(gguf_init_empty(),
                                                                         gguf_free);
    std::array<const char*, 3> tokens = {"a", "b", "ab"};
    const std::array<int32_t, 3> types = {1, 1, 4};
    const char* merge = "a b";
    gguf_set_val_str(context.get(), "general.architecture", "qwen3moe");
    gguf_set_val_str(context.get(), "tokenizer.ggml.model", "gpt2");
    gguf_set_val_str(context.get(), "tokenizer.ggml.pre", "qwen2");
    gguf_set_arr_str(context.get(), "tokenizer.ggml.tokens", tokens.data(), tokens.size());
    gguf_set_arr_data(context.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(),
                      types.size());
    gguf_set_arr_str(context.get(), "tokenizer.ggml.merges", &merge, 1);
    change(context.get());
    bytes.resize(gguf_get_meta_size(context.get()));
    gguf_get_meta_data(context.get(), bytes.data());
  }
  Result<model::GgufFile> open() const { return model::GgufFile::parse(bytes, "vocabulary.gguf"); }
  Result<text::TokenizerSpec> read() const {
    const auto file = open();
    if (!file) return std::unexpected(file.error());
    return read_tokenizer_spec(*file);
  }

  std::vector<uint8_t> bytes;
};

TEST(TokenizerSpec, ReadsEveryField) {
  const auto spec = VocabularyFile([](gguf_context* file) {
                      const std::array<float, 3> scores = {0, -1, -2};
                      gguf_set_arr_data(file, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32,
                                        scores.data(), scores.size());
                      gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", 0);
                      gguf_set_val_i32(file, "tokenizer.ggml.eos_token_id", 1);
                      gguf_set_val_u32(file, "tokenizer.ggml.eot_token_id", 2);
                      gguf_set_val_u32(file, "tokenizer.ggml.eom_token_id", 1);
                      gguf_set_val_u32(file, "tokenizer.ggml.unknown_token_id", UINT32_MAX);
                      gguf_set_val_i32(file, "tokenizer.ggml.padding_token_id", -1);
                      gguf_set_val_bool(file, "tokenizer.ggml.add_bos_token", true);
                      gguf_set_val_bool(file, "tokenizer.ggml.add_eos_token", false);
                      gguf_set_val_bool(file, "tokenizer.ggml.add_space_prefix", false);
                    }).read();
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->model, "gpt2");
  EXPECT_EQ(spec->pre, "qwen2");
  EXPECT_THAT(spec->tokens, ElementsAre("a", "b", "ab"));
  EXPECT_THAT(spec->types, ElementsAre(1, 1, 4));
  EXPECT_THAT(spec->scores, ElementsAre(0, -1, -2));
  EXPECT_THAT(spec->merges, ElementsAre("a b"));
  EXPECT_EQ(spec->bos, 0);
  EXPECT_EQ(spec->eos, 1);
  EXPECT_EQ(spec->eot, 2);
  EXPECT_EQ(spec->eom, 1);
  EXPECT_EQ(spec->unk, std::nullopt);
  EXPECT_EQ(spec->pad, std::nullopt);
  EXPECT_EQ(spec->add_bos, true);
  EXPECT_EQ(spec->add_eos, false);
  EXPECT_EQ(spec->add_space_prefix, false);
}

TEST(TokenizerSpec, AbsentKeysStayUnset) {
  const auto spec = VocabularyFile([](gguf_context*) {}).read();
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_TRUE(spec->scores.empty());
  EXPECT_EQ(spec->bos, std::nullopt);
  EXPECT_EQ(spec->add_bos, std::nullopt);
}

TEST(TokenizerSpec, AFileWithoutATokenizerIsNotFound) {
  const auto absent = VocabularyFile([](gguf_context* file) {
                        gguf_remove_key(file, "tokenizer.ggml.model");
                      }).read();
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(absent.error().message, HasSubstr("vocabulary.gguf"));
  const auto none = VocabularyFile([](gguf_context* file) {
                      gguf_set_val_str(file, "tokenizer.ggml.model", "no_vocab");
                    }).read();
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kNotFound);
}

TEST(TokenizerSpec, WrongTypesAndRangesNameFileAndKey) {
  const std::vector<std::pair<const char*, std::function<void(gguf_context*)>>> bad = {
      {"tokenizer.ggml.tokens",
       [](gguf_context* file) { gguf_set_val_u32(file, "tokenizer.ggml.tokens", 3); }},
      {"tokenizer.ggml.token_type",
       [](gguf_context* file) {
         const int64_t type = int64_t{1} << 40;
         gguf_set_arr_data(file, "tokenizer.ggml.token_type", GGUF_TYPE_INT64, &type, 1);
       }},
      {"tokenizer.ggml.merges",
       [](gguf_context* file) { gguf_set_val_str(file, "tokenizer.ggml.merges", "a b"); }},
      {"tokenizer.ggml.bos_token_id",
       [](gguf_context* file) { gguf_set_val_u64(file, "tokenizer.ggml.bos_token_id", 1u << 31); }},
      {"tokenizer.ggml.eos_token_id",
       [](gguf_context* file) { gguf_set_val_i32(file, "tokenizer.ggml.eos_token_id", -2); }},
      {"tokenizer.ggml.add_bos_token",
       [](gguf_context* file) { gguf_set_val_str(file, "tokenizer.ggml.add_bos_token", "yes"); }},
  };
  for (const auto& [key, change] : bad) {
    const auto spec = VocabularyFile(change).read();
    ASSERT_FALSE(spec) << key;
    EXPECT_EQ(spec.error().code, ErrorCode::kCorrupt) << spec.error().message;
    EXPECT_THAT(spec.error().message, HasSubstr("vocabulary.gguf"));
    EXPECT_THAT(spec.error().message, HasSubstr(key));
  }
}

TEST(LoadTokenizer, ErrorsNameTheFile) {
  const VocabularyFile bad(
      [](gguf_context* file) { gguf_set_val_u32(file, "tokenizer.ggml.bos_token_id", 3); });
  const auto file = bad.open();
  ASSERT_TRUE(file);
  const auto tokenizer = load_tokenizer(*file);
  ASSERT_FALSE(tokenizer);
  EXPECT_THAT(tokenizer.error().message, HasSubstr("vocabulary.gguf"));
  EXPECT_THAT(tokenizer.error().message, HasSubstr("found 3, expected 0 to 2"));
}

TEST(LoadTokenizer, AnotherPretokenizerMayBeNamedWhereThereIsOne) {
  const VocabularyFile vocabulary([](gguf_context*) {});
  const auto file = vocabulary.open();
  ASSERT_TRUE(file);
  EXPECT_TRUE(load_tokenizer(*file, "gpt-2"));
  const auto unknown = load_tokenizer(*file, "gpt-5");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);

  const VocabularyFile sentencepiece(
      [](gguf_context* context) { gguf_set_val_str(context, "tokenizer.ggml.model", "llama"); });
  const auto other = sentencepiece.open();
  ASSERT_TRUE(other);
  const auto refused = load_tokenizer(*other, "gpt-2");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
}

TEST(LoadTokenizer, SaysWhenTheFileNamesNoPretokenizer) {
  const VocabularyFile vocabulary(
      [](gguf_context* file) { gguf_remove_key(file, "tokenizer.ggml.pre"); });
  const auto file = vocabulary.open();
  ASSERT_TRUE(file);
  std::vector<std::string> said;
  set_log_sink([&](LogLevel, std::string_view message) { said.emplace_back(message); });
  EXPECT_TRUE(load_tokenizer(*file));
  EXPECT_THAT(said, ElementsAre(HasSubstr("tokenizer.ggml.pre")));
  EXPECT_TRUE(load_tokenizer(*file, "gpt-2"));
  EXPECT_EQ(said.size(), 1u);
  set_log_sink({});
}

}  // namespace
}  // namespace hotset::engine
