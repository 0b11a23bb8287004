#include "hotset/base/printable.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "hotset/base/utf8.h"

namespace hotset {
namespace {

using namespace std::string_literals;

TEST(Printable, LeavesTextAsItIs) {
  for (const char* text : {"", "blk.0.attn_q.weight", "caf\xC3\xA9 \xF0\x9F\x98\x80", "a\\x1b"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, ControlCharactersAreWrittenAsNumbers) {
  EXPECT_EQ(printable("\x1B[2J\x07\x7F\r"), "\\x1b[2J\\x07\\x7f\\x0d");
  EXPECT_EQ(printable("a\nhotset: error: b\tc"), "a\\x0ahotset: error: b\\x09c");
  EXPECT_EQ(printable("qwen3moe\0x"s), "qwen3moe\\x00x");
}

TEST(Printable, ControlsBeyondAsciiToo) {
  EXPECT_EQ(printable("\xC2\x9B"
                      "2J\xC2\x85"),
            "\\u009b2J\\u0085");
  EXPECT_EQ(printable("a\xE2\x80\xA8"
                      "b\xE2\x80\xAE"
                      "c\xE2\x81\xA6\xD8\x9C"),
            "a\\u2028b\\u202ec\\u2066\\u061c");
}

TEST(Printable, BytesThatAreNoTextAreWrittenAsNumbers) {
  // Among them C1 controls of eight-bit terminals, and a sequence that the end cuts off.
  EXPECT_EQ(printable("\x9B"
                      "2J\xFF\xC0\xAF\xE2\x82"),
            "\\x9b2J\\xff\\xc0\\xaf\\xe2\\x82");
}

TEST(Printable, LongTextIsCutAndSaysSo) {
  const std::string name(1 << 20, 'n');
  EXPECT_EQ(printable(name), std::string(kMaxPrintedBytes, 'n') + "... (1048576 bytes)");
  EXPECT_EQ(printable("12345678", 8), "12345678");
  EXPECT_EQ(printable("123456789", 8), "12345678... (9 bytes)");
  // Never within a character.
  EXPECT_EQ(printable("1234567\xC3\xA9", 8), "1234567... (9 bytes)");
}

TEST(Printable, EveryPairOfBytesBecomesOneValidLine) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const std::string text = {static_cast<char>(first), static_cast<char>(second)};
      const std::string shown = printable(text);
      ASSERT_EQ(valid_utf8_prefix(shown), shown.size());
      for (std::string_view rest = shown; !rest.empty();) {
        const Utf8Step step = next_utf8(rest);
        rest.remove_prefix(step.n_bytes);
        ASSERT_TRUE(step.codepoint >= 0x20) << first << " " << second;
        ASSERT_TRUE(step.codepoint < 0x7F || step.codepoint > 0x9F) << first << " " << second;
      }
      ASSERT_EQ(printable(shown), shown) << "once is enough";
    }
  }
}

}  // namespace
}  // namespace hotset
