#include "hotset/text/spm_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <utility>

#include "hotset/text/text_test_util.h"
#include "hotset/text/tokenizer.h"

namespace hotset::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr int32_t kFirstByte = 3;    // of sentencepiece_spec()
constexpr int32_t kFirstText = 259;  // of sentencepiece_spec()

Tokenizer make(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::create(std::move(spec));
  EXPECT_TRUE(tokenizer) << tokenizer.error().message;
  return *std::move(tokenizer);
}

// The definition: the pair whose joined text has the highest score, at its leftmost place, again
// and again.
Ids naive_encode(const TokenizerSpec& spec, std::string_view text) {
  std::map<std::string, size_t> normal;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (token_type(spec, id) == TokenType::kNormal) normal[spec.tokens[id]] = id;
  }
  std::vector<std::string> symbols;
  if (!text.empty()) symbols.emplace_back(kSpmSpace);
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    const size_t n_bytes = step.kind == Utf8Kind::kValid ? step.n_bytes : 1;
    symbols.emplace_back(text[0] == ' ' ? kSpmSpace : text.substr(0, n_bytes));
    text.remove_prefix(n_bytes);
  }
  while (true) {
    size_t best = symbols.size();
    float best_score = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = normal.find(symbols[i] + symbols[i + 1]);
      if (found == normal.end()) continue;
      if (best < symbols.size() && spec.scores[found->second] <= best_score) continue;
      best = i;
      best_score = spec.scores[found->second];
    }
    if (best == symbols.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  Ids ids;
  for (const std::string& symbol : symbols) {
    if (const auto found = normal.find(symbol); found != normal.end()) {
      ids.push_back(static_cast<int32_t>(found->second));
      continue;
    }
    for (const char byte : symbol) ids.push_back(kFirstByte + static_cast<uint8_t>(byte));
  }
  return ids;
}

TEST(SpmEncoder, HigherScoresMergeFirst) {
  TokenizerSpec spec = sentencepiece_spec({"a", "b", "c", " ", "bc", "ab", " a"});
  spec.add_space_prefix = false;
  EXPECT_THAT(*make(spec).encode("abc"), ElementsAre(kFirstText, kFirstText + 4));
  EXPECT_THAT(*make(spec).encode("ab"), ElementsAre(kFirstText + 5));
  spec.add_space_prefix = true;
  EXPECT_THAT(*make(spec).encode("ac"), ElementsAre(kFirstText + 6, kFirstText + 2));
}

TEST(SpmEncoder, EqualsTheDefinition) {
  constexpr uint64_t seed = 20261206;
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    std::set<std::string> texts = {" ", "a", "b"};
    for (uint64_t i = random.below(40); i > 0; --i) {
      std::string text;
      for (uint64_t n = 1 + random.below(6); n > 0; --n) {
        append_utf8(text, U"ab \u00E9"[random.below(4)]);
      }
      texts.insert(text);
    }
    std::vector<std::string> shuffled(texts.begin(), texts.end());
    for (size_t i = shuffled.size(); i > 1; --i)
      std::swap(shuffled[i - 1], shuffled[random.below(i)]);
    TokenizerSpec spec = sentencepiece_spec(shuffled);
    // Equal scores, so that the place decides.
    for (float& score : spec.scores) score = std::floor(score / 3);
    const Tokenizer tokenizer = make(spec);
    for (int i = 0; i < 10; ++i) {
      const std::string text = random_text(random, random.below(60));
      const auto ids = tokenizer.encode(text);
      ASSERT_TRUE(ids) << ids.error().message;
      ASSERT_EQ(*ids, naive_encode(spec, text)) << "seed " << seed << " round " << round;
      ASSERT_EQ(tokenizer.decode(*ids), text) << "seed " << seed << " round " << round;
    }
  }
}

TEST(SpmEncoder, TheSpacePrefixReturnsBehindEachSpecialToken) {
  TokenizerSpec spec = sentencepiece_spec({" ", "a", " a"});
  add_token(spec, "<|user|>", TokenType::kUserDefined);
  const int32_t space = kFirstText, space_a = kFirstText + 2, user = kFirstText + 3;
  const Tokenizer tokenizer = make(spec);
  EXPECT_THAT(*tokenizer.encode("a<|user|>a<|user|> a"),
              ElementsAre(space_a, user, space_a, user, space, space_a));
  EXPECT_EQ(tokenizer.decode(*tokenizer.encode("a<|user|>a<|user|> a")), "a<|user|>a<|user|> a");
  EXPECT_THAT(*tokenizer.encode("<s>a", {.parse_special = true}), ElementsAre(1, space_a));
}

TEST(SpmEncoder, ControlTokensAreNotMadeOfText) {
  // "<s" and "s>" lead to "<s>", whose score of 0 is the highest.
  TokenizerSpec spec = sentencepiece_spec({"<", "s", ">", "<s", "s>"});
  spec.add_space_prefix = false;
  EXPECT_THAT(*make(spec).encode("<s>"), ElementsAre(kFirstText + 3, kFirstText + 2));
}

TEST(SpmEncoder, UnusedTokensArePassedThroughButNeverGiven) {
  TokenizerSpec spec = sentencepiece_spec({"a", "b", "c", "ab", "abc", "abca", "abcab"});
  spec.add_space_prefix = false;
  constexpr size_t first = kFirstText;
  for (const size_t id : {first + 3, first + 4, first + 5}) {
    spec.types[id] = static_cast<int32_t>(TokenType::kUnused);
  }
  const int32_t a = kFirstText, b = kFirstText + 1, c = kFirstText + 2, abcab = kFirstText + 6;
  const Tokenizer tokenizer = make(spec);
  EXPECT_THAT(*tokenizer.encode("abc"), ElementsAre(a, b, c));
  EXPECT_THAT(*tokenizer.encode("abca"), ElementsAre(a, b, c, a));
  EXPECT_THAT(*tokenizer.encode("abcab"), ElementsAre(abcab));
}

TEST(SpmEncoder, CharactersWithoutATokenBecomeBytesOrTheUnknownToken) {
  TokenizerSpec spec = sentencepiece_spec({"a"});
  spec.add_space_prefix = false;
  EXPECT_THAT(*make(spec).encode("a\u00E9"),
              ElementsAre(kFirstText, kFirstByte + 0xC3, kFirstByte + 0xA9));
  EXPECT_THAT(*make(spec).encode(std::string_view("\0", 1)), ElementsAre(kFirstByte));

  TokenizerSpec no_bytes{.model = "llama"};
  add_token(no_bytes, "a", TokenType::kNormal);
  no_bytes.add_space_prefix = false;
  const auto error = make(no_bytes).encode("a\u00E9");
  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(error.error().message, HasSubstr("\u00E9"));
  add_token(no_bytes, "<unk>", TokenType::kUnknown);
  EXPECT_THAT(*make(no_bytes).encode("a\u00E9"), ElementsAre(0, 1));
}

TEST(SpmEncoder, AMegabyteWithoutASpaceIsEncoded) {
  const Tokenizer tokenizer =
      make(sentencepiece_spec({" ", "a", "aa", "aaaa", "aaaaaaaa", "ab", "b"}));
  std::string word(1 << 20, 'a');
  word[1000] = 'b';
  const auto ids = tokenizer.encode(word);
  ASSERT_TRUE(ids) << ids.error().message;
  EXPECT_LE(ids->size(), word.size() / 8 + 16);
  EXPECT_TRUE(tokenizer.decode(*ids) == word);
}

TEST(SpmEncoder, ByteTokensHaveOneForm) {
  EXPECT_EQ(parse_byte_token("<0x0A>"), 0x0A);
  EXPECT_EQ(parse_byte_token("<0xFF>"), 0xFF);
  for (const std::string_view text :
       {"", "<0x>", "<0x0>", "<0x0A", "<0xG0>", "<0x+1>", "<0x0AA>"}) {
    EXPECT_EQ(parse_byte_token(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace hotset::text
