#include "hotset/text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "hotset/text/text_test_util.h"

namespace hotset::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Words = std::vector<std::string_view>;

Words split(std::string_view name, std::string_view text) {
  const auto pretokenizer = Pretokenizer::create(name);
  EXPECT_TRUE(pretokenizer) << pretokenizer.error().message;
  Words words;
  const Status status = pretokenizer->split(text, words);
  EXPECT_TRUE(status) << status.error().message;
  return words;
}

TEST(Pretokenizer, NamesAreSortedAndAllCompile) {
  const std::vector<std::string_view> names = known_pretokenizers();
  EXPECT_TRUE(std::ranges::is_sorted(names));
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
  for (const std::string_view name : names) EXPECT_TRUE(Pretokenizer::create(name)) << name;
}

TEST(Pretokenizer, UnknownNameListsTheKnownOnes) {
  const auto unknown = Pretokenizer::create("gpt-5");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(unknown.error().message, HasSubstr("'gpt-5'"));
  EXPECT_THAT(unknown.error().message, HasSubstr("gpt-2, gpt-4o"));
  EXPECT_THAT(unknown.error().message, HasSubstr("qwen2"));
}

TEST(Pretokenizer, CutsAsTheFamiliesDo) {
  EXPECT_THAT(split("gpt-2", "It's 1234  x\n\n y"),
              ElementsAre("It", "'s", " 1234", " ", " x", "\n\n", " y"));
  EXPECT_THAT(split("llama-bpe", "IT'S 1234  x!\n\n y"),
              ElementsAre("IT", "'S", " ", "123", "4", " ", " x", "!\n\n", " y"));
  EXPECT_THAT(split("qwen2", "v12"), ElementsAre("v", "1", "2"));
  EXPECT_THAT(split("gpt-4o", "HTTPServer's camelCase a/\n"),
              ElementsAre("HTTPServer's", " camel", "Case", " a", "/\n"));
  EXPECT_THAT(split("deepseek-v3", "a\u0301b(x ("), ElementsAre("a\u0301b", "(x", " ("));
  EXPECT_THAT(split("deepseek-coder", "if (x1)\n"), ElementsAre("if", " (", "x", "1", ")", "\n"));
  EXPECT_THAT(split("afmoe", "1234567 12"), ElementsAre("1", "234", "567", " ", "12"));
  EXPECT_THAT(split("superbpe", "a b1234567½c"), ElementsAre("a b", "1", "234", "567½", "c"));
  EXPECT_THAT(split("falcon", "12345"), ElementsAre("123", "45"));
  EXPECT_THAT(split("viking", "no12 (a)"), ElementsAre("no", "1", "2", " (", "a", ")"));
  EXPECT_THAT(split("kimi-k2", "你好abc"), ElementsAre("你好", "abc"));
}

TEST(Pretokenizer, MongolianVowelSeparatorIsNoSpace) {
  // PCRE2's \s takes it, the vocabularies' do not.
  EXPECT_THAT(split("gpt-2", "\u180E \u180E"), ElementsAre("\u180E", " \u180E"));
}

TEST(Pretokenizer, BytesThatAreNoTextAreWordsOfTheirOwn) {
  EXPECT_THAT(split("llama-bpe", "ab\xFF\xFE c\xE4\xBD"),
              ElementsAre("ab", "\xFF\xFE", " c", "\xE4\xBD"));
  EXPECT_THAT(split("gpt-2", std::string_view("a\0b", 3)),
              ElementsAre("a", std::string_view("\0", 1), "b"));
}

TEST(Pretokenizer, WordsCoverTheTextWithoutGaps) {
  constexpr uint64_t seed = 20261202;
  Random random(seed);
  for (const std::string_view name : known_pretokenizers()) {
    const auto pretokenizer = Pretokenizer::create(name);
    ASSERT_TRUE(pretokenizer);
    for (int round = 0; round < 200; ++round) {
      const std::string text =
          round % 2 == 0 ? random_text(random, random.below(80)) : random_bytes(random, 40);
      Words words;
      ASSERT_TRUE(pretokenizer->split(text, words));
      const char* at = text.data();
      for (const std::string_view word : words) {
        ASSERT_EQ(word.data(), at) << name << " seed " << seed << " round " << round;
        ASSERT_FALSE(word.empty()) << name << " seed " << seed << " round " << round;
        at += word.size();
      }
      ASSERT_EQ(at, text.data() + text.size()) << name << " seed " << seed << " round " << round;
    }
  }
}

// The definition of the o200k words, which the table spells in another way.
TEST(Pretokenizer, Gpt4oEqualsItsDefinition) {
  constexpr uint64_t seed = 20261203;
  const auto naive = Regex::compile(
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
      R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
      R"(|\p{N}{1,3}| ?[^\p{wspace}\p{L}\p{N}]+[\r\n/]*|\p{wspace}*[\r\n]+|\p{wspace}+(?!\P{wspace})|\p{wspace}+)");
  ASSERT_TRUE(naive) << naive.error().message;
  RegexScratch scratch;
  Random random(seed);
  for (int round = 0; round < 5000; ++round) {
    std::string text = random_text(random, 1 + random.below(30), U"aBǅʰ你\u0301' s");
    text.resize(valid_utf8_prefix(text));
    Words expected;
    for (size_t at = 0; at < text.size();) {
      const auto match = naive->find(text, at, scratch);
      ASSERT_TRUE(match && *match);
      ASSERT_EQ((*match)->begin, at);
      expected.push_back(std::string_view(text).substr(at, (*match)->end - at));
      at = (*match)->end;
    }
    ASSERT_EQ(split("gpt-4o", text), expected) << "seed " << seed << " round " << round;
  }
}

// Every kind of run, long enough that a pattern which took quadratic time would not come back.
TEST(Pretokenizer, LongRunsOfAnythingEnd) {
  constexpr size_t n_bytes = 1 << 18;
  std::vector<std::string> texts;
  for (const std::string_view unit :
       {" ",  "\n", " \n",    "\r\n\t", "a",       "A",      "aA",   "1",     "!",  "'",
        "'s", "_",  "\u4F60", "\u0301", "A\u4F60", "\u00A0", "\xFF", "a\xFF", " a", "\u00BD1"}) {
    std::string run;
    while (run.size() < n_bytes) run += unit;
    texts.push_back(run + "x");
    texts.push_back(run + "7");
    texts.push_back("x" + run);
  }
  for (const std::string_view name :
       {"afmoe", "deepseek-llm", "deepseek-v3", "default", "falcon", "gpt-2", "gpt-4o", "kimi-k2",
        "llama-bpe", "poro-chat", "bailingmoe", "superbpe", "tekken"}) {
    const auto pretokenizer = Pretokenizer::create(name);
    ASSERT_TRUE(pretokenizer);
    for (const std::string& text : texts) {
      Words words;
      const Status status = pretokenizer->split(text, words);
      ASSERT_TRUE(status) << name << ": " << status.error().message;
      const size_t n_covered =
          std::accumulate(words.begin(), words.end(), size_t{0},
                          [](size_t sum, std::string_view word) { return sum + word.size(); });
      ASSERT_EQ(n_covered, text.size()) << name;
    }
  }
}

TEST(Regex, MalformedPatternIsAnErrorWithItsPlace) {
  const auto regex = Regex::compile("a(b");
  ASSERT_FALSE(regex);
  EXPECT_EQ(regex.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(regex.error().message, HasSubstr("a(b"));
  EXPECT_THAT(regex.error().message, HasSubstr("offset 3"));
}

TEST(Regex, EndlessBacktrackingIsAnError) {
  const auto regex = Regex::compile("(?:a+)+b");
  ASSERT_TRUE(regex);
  RegexScratch scratch;
  const auto match = regex->find(std::string(200, 'a') + "c" + "b", 0, scratch);
  ASSERT_FALSE(match);
  EXPECT_EQ(match.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(match.error().message, HasSubstr("202 bytes"));
}

}  // namespace
}  // namespace hotset::text
