#include "hotset/text/special_tokens.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "hotset/base/random.h"

namespace hotset::text {
namespace {

std::vector<std::pair<size_t, int32_t>> find_all(const SpecialTokens& tokens,
                                                 std::string_view text) {
  std::vector<std::pair<size_t, int32_t>> all;
  for (size_t at = 0; const auto found = tokens.find(text, at);) {
    all.emplace_back(found->begin, found->token.id);
    at = found->begin + found->token.text.size();
  }
  return all;
}

TEST(SpecialTokens, TheLongestOfThoseThatBeginAtAPlaceWins) {
  const SpecialTokens tokens({{"<|", 1}, {"<|im", 2}, {"<|im_end|>", 3}, {"end", 4}});
  using Found = std::vector<std::pair<size_t, int32_t>>;
  EXPECT_EQ(find_all(tokens, "<|im_end|>"), (Found{{0, 3}}));
  EXPECT_EQ(find_all(tokens, "a<|im_end|"), (Found{{1, 2}, {6, 4}}));
  EXPECT_EQ(find_all(tokens, "<|i"), (Found{{0, 1}}));
  EXPECT_EQ(find_all(tokens, "<"), Found{});
  EXPECT_EQ(find_all(tokens, ""), Found{});
  EXPECT_EQ(find_all(SpecialTokens(), "<|im_end|>"), Found{});
}

TEST(SpecialTokens, EqualANaiveSearch) {
  constexpr uint64_t seed = 20261201;
  Random random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::set<std::string> texts;
    for (uint64_t i = random.below(12); i > 0; --i) {
      std::string text;
      for (uint64_t n = 1 + random.below(5); n > 0; --n) text += "ab\xFF"[random.below(3)];
      texts.insert(text);
    }
    std::vector<SpecialToken> list;
    for (const std::string& text : texts) list.push_back({text, static_cast<int32_t>(list.size())});
    const SpecialTokens tokens(list);
    std::string text;
    for (uint64_t n = random.below(30); n > 0; --n) text += "ab\xFF"[random.below(3)];

    std::vector<std::pair<size_t, int32_t>> expected;
    for (size_t at = 0; at < text.size();) {
      const SpecialToken* longest = nullptr;
      for (const SpecialToken& token : list) {
        const bool fits = std::string_view(text).substr(at).starts_with(token.text);
        if (fits && (longest == nullptr || token.text.size() > longest->text.size())) {
          longest = &token;
        }
      }
      if (longest != nullptr) expected.emplace_back(at, longest->id);
      at += longest != nullptr ? longest->text.size() : 1;
    }
    ASSERT_EQ(find_all(tokens, text), expected) << "seed " << seed << " round " << round;
  }
}

}  // namespace
}  // namespace hotset::text
