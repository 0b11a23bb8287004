#include "hotset/text/bpe_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "hotset/text/text_test_util.h"
#include "hotset/text/tokenizer.h"

namespace hotset::text {
namespace {

using testing::ElementsAre;
using Ids = std::vector<int32_t>;

Tokenizer make(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return *std::move(tokenizer);
}

// The definition of BPE, word by word: the first merge of the list that applies, at its leftmost
// place, again and again.
Ids naive_encode(const TokenizerSpec& spec, std::string_view text) {
  std::map<std::string, int32_t> ids;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    ids[spec.tokens[id]] = static_cast<int32_t>(id);
  }
  const auto pretokenizer = Pretokenizer::create(spec.pre);
  EXPECT_TRUE(pretokenizer);
  std::vector<std::string_view> words;
  EXPECT_TRUE(pretokenizer->split(text, words));
  Ids result;
  for (const std::string_view word : words) {
    if (pretokenizer->traits().whole_words_first && ids.contains(bytes_to_alphabet(word))) {
      result.push_back(ids[bytes_to_alphabet(word)]);
      continue;
    }
    std::vector<std::string> symbols;
    for (const char byte : word) symbols.push_back(bytes_to_alphabet(std::string(1, byte)));
    for (size_t rank = 0; rank < spec.merges.size();) {
      bool applied = false;
      for (size_t i = 0; i + 1 < symbols.size() && !applied; ++i) {
        if (symbols[i] + " " + symbols[i + 1] != spec.merges[rank]) continue;
        symbols[i] += symbols[i + 1];
        symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
        applied = true;
      }
      rank = applied ? 0 : rank + 1;
    }
    for (const std::string& symbol : symbols) result.push_back(ids[symbol]);
  }
  return result;
}

TEST(BpeEncoder, EarlierMergesComeFirstAndEqualOnesFromTheLeft) {
  const Tokenizer tokenizer = make(byte_level_spec({"b c", "a b", "a a"}));
  EXPECT_THAT(*tokenizer.encode("abc"), ElementsAre('a', 256));
  EXPECT_THAT(*tokenizer.encode("ab"), ElementsAre(257));
  EXPECT_THAT(*tokenizer.encode("aaaaa"), ElementsAre(258, 258, 'a'));
}

TEST(BpeEncoder, EqualsTheDefinition) {
  constexpr uint64_t seed = 20261204;
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    const char* const pre = round % 3 == 0 ? "llama-bpe" : round % 3 == 1 ? "gpt-2" : "superbpe";
    const TokenizerSpec spec = random_byte_level_spec(random, random.below(60), pre);
    const Tokenizer tokenizer = make(spec);
    for (int i = 0; i < 10; ++i) {
      const std::string text = random_text(random, random.below(60));
      const auto ids = tokenizer.encode(text);
      ASSERT_TRUE(ids) << ids.error().message;
      ASSERT_EQ(*ids, naive_encode(spec, text)) << "seed " << seed << " round " << round;
    }
  }
}

TEST(BpeEncoder, WholeWordsComeFirstWhereTheNameSaysSo) {
  // No merge makes " abc" out of " ab".
  TokenizerSpec spec = byte_level_spec({"a b", "\u0120 ab"});
  add_token(spec, "\u0120abc", TokenType::kNormal);
  EXPECT_THAT(*make(spec).encode(" abc"), ElementsAre(257, 'c'));
  spec.pre = "llama-bpe";
  EXPECT_THAT(*make(spec).encode(" abc abd"), ElementsAre(258, 257, 'd'));
}

TEST(BpeEncoder, APairListedTwiceMergesByItsFirstPlace) {
  TokenizerSpec spec = byte_level_spec({"a b", "b c"});
  spec.merges = {"a b", "b c", "a b"};
  EXPECT_THAT(*make(spec).encode("abc"), ElementsAre(256, 'c'));
}

TEST(BpeEncoder, ControlTokensAreNotMadeOfText) {
  TokenizerSpec spec = byte_level_spec({"< s"}, "superbpe");  // which keeps them in one word
  spec.merges.push_back("<s >");
  add_token(spec, "<s>", TokenType::kControl);
  EXPECT_THAT(*make(spec).encode("<s>"), ElementsAre(256, '>'));
  EXPECT_THAT(*make(spec).encode("<s>", {.parse_special = true}), ElementsAre(257));
}

TEST(BpeEncoder, BytesWithoutATokenBecomeTheUnknownOneOrAnError) {
  TokenizerSpec spec = byte_level_spec({});
  spec.tokens['x'] = "xx";
  const auto ids = make(spec).encode("axb");
  ASSERT_FALSE(ids);
  EXPECT_EQ(ids.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(ids.error().message, testing::HasSubstr("0x78"));
  spec.unk = 0;
  EXPECT_THAT(*make(spec).encode("axb"), ElementsAre('a', 0, 'b'));
}

TEST(BpeEncoder, AMegabyteInOneWordIsEncoded) {
  constexpr uint64_t seed = 20261205;
  Random random(seed);
  const Tokenizer tokenizer =
      make(byte_level_spec({"a a", "aa aa", "aaaa aaaa", "b a", "a b", "ab ab"}));
  for (const std::string_view letters : {"a", "ab"}) {
    std::string word(1 << 20, 'a');
    for (char& letter : word) letter = letters[random.below(letters.size())];
    const auto ids = tokenizer.encode(word);
    ASSERT_TRUE(ids) << ids.error().message;
    EXPECT_LT(ids->size(), word.size() * 3 / 4) << "seed " << seed;
    EXPECT_TRUE(tokenizer.decode(*ids) == word) << "seed " << seed;
  }
}

}  // namespace
}  // namespace hotset::text
