// The token ids of shared/golden/tokenizer (its README tells where they come from), exactly.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hotset/engine/weights/model_tokenizer.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/tokenizer.h"

namespace hotset {
namespace {

using Ids = std::vector<int32_t>;

class TokenizerGolden : public testing::Test {
 protected:
  void SetUp() override {
    const char* shared = std::getenv("HOTSET_SHARED_DIR");
    if (shared != nullptr) folder_ = std::filesystem::path(shared) / "golden" / "tokenizer";
    if (shared == nullptr || !std::filesystem::is_directory(folder_)) {
      GTEST_SKIP() << "HOTSET_SHARED_DIR has no golden/tokenizer";
    }
  }

  nlohmann::json read_json(const char* name) const {
    std::ifstream in(folder_ / name);
    return nlohmann::json::parse(in);
  }

  text::TokenizerSpec read_spec(const std::string& name) const {
    const auto file = model::GgufFile::open(folder_ / name);
    EXPECT_TRUE(file) << file.error().message;
    const auto spec = engine::read_tokenizer_spec(*file);
    EXPECT_TRUE(spec) << spec.error().message;
    return *spec;
  }

  std::filesystem::path folder_;
};

// Compares the ids of every text; returns the number of rows compared.
size_t expect_rows(const text::Tokenizer& tokenizer, const nlohmann::json& texts,
                   const nlohmann::json& rows, const std::string& name) {
  EXPECT_EQ(texts.size(), rows.size());
  size_t n_rows = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i].get<std::string>();
    for (const bool special : {false, true}) {
      const Ids expected = rows[i][special ? "special" : "plain"].get<Ids>();
      const auto ids = tokenizer.encode(text, {.parse_special = special});
      if (!ids) {
        ADD_FAILURE() << name << ": " << ids.error().message;
        continue;
      }
      EXPECT_EQ(*ids, expected) << name << (special ? " special: " : " plain: ") << text;
      EXPECT_EQ(tokenizer.decode(*ids, {.render_special = true}), text) << name;
      ++n_rows;
    }
  }
  return n_rows;
}

TEST_F(TokenizerGolden, ByteLevelBpeMatchesForEveryPretokenizer) {
  const nlohmann::json golden = read_json("bpe.json");
  const text::TokenizerSpec spec = read_spec("bpe-vocab.gguf");
  size_t n_rows = 0;
  for (const auto& [pre, rows] : golden["pre"].items()) {
    text::TokenizerSpec named = spec;
    named.pre = pre;
    const auto tokenizer = text::Tokenizer::create(std::move(named));
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    n_rows += expect_rows(*tokenizer, golden["texts"], rows, pre);
  }
  EXPECT_EQ(n_rows, 37u * 30u * 2u);
}

TEST_F(TokenizerGolden, SentencePieceMatchesWithAndWithoutSpacePrefix) {
  const nlohmann::json golden = read_json("spm.json");
  size_t n_rows = 0;
  for (const auto& [name, rows] : golden["spm"].items()) {
    const auto tokenizer = text::Tokenizer::create(read_spec("spm-" + name + ".gguf"));
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    n_rows += expect_rows(*tokenizer, golden["texts"], rows, name);
  }
  EXPECT_EQ(n_rows, 2u * 32u * 2u);
}

}  // namespace
}  // namespace hotset
