#include "hotset/base/utf8.h"

#include <gtest/gtest.h>

namespace hotset {
namespace {

TEST(Utf8, EveryScalarValueComesBack) {
  for (char32_t codepoint = 0; codepoint <= 0x10FFFF; ++codepoint) {
    if (codepoint == 0xD800) codepoint = 0xE000;
    std::string text;
    append_utf8(text, codepoint);
    const Utf8Step step = next_utf8(text);
    ASSERT_EQ(step.kind, Utf8Kind::kValid) << static_cast<uint32_t>(codepoint);
    ASSERT_EQ(step.n_bytes, text.size()) << static_cast<uint32_t>(codepoint);
    ASSERT_TRUE(step.codepoint == codepoint);
    for (size_t n = 1; n < text.size(); ++n) {
      const Utf8Step cut = next_utf8(text.substr(0, n));
      ASSERT_EQ(cut.kind, Utf8Kind::kIncomplete) << static_cast<uint32_t>(codepoint);
      ASSERT_EQ(cut.n_bytes, n) << static_cast<uint32_t>(codepoint);
    }
  }
}

TEST(Utf8, RejectsOverlongFormsSurrogatesAndTooLargeValues) {
  for (const std::string_view text :
       {"\x80", "\xBF", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    const Utf8Step step = next_utf8(text);
    EXPECT_EQ(step.kind, Utf8Kind::kInvalid) << testing::PrintToString(text);
    EXPECT_EQ(step.n_bytes, 1u) << testing::PrintToString(text);
  }
  // A part that was valid so far is one step: it becomes one U+FFFD.
  EXPECT_EQ(next_utf8("\xE4\xBDx").n_bytes, 2u);
  EXPECT_EQ(next_utf8("\xF0\x9F\x98!").n_bytes, 3u);
}

TEST(Utf8, ValidPrefixEndsAtTheFirstByteThatIsNoText) {
  EXPECT_EQ(valid_utf8_prefix(""), 0u);
  EXPECT_EQ(valid_utf8_prefix("plain ASCII, more than eight bytes"), 34u);
  EXPECT_EQ(valid_utf8_prefix("\xC3\xA9t\xC3\xA9\xFFmore"), 5u);
  EXPECT_EQ(valid_utf8_prefix("12345678\xE4\xBD"), 8u);
}

}  // namespace
}  // namespace hotset
