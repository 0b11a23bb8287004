#include "hotset/text/byte_alphabet.h"

#include <gtest/gtest.h>

#include "hotset/base/utf8.h"

namespace hotset::text {
namespace {

TEST(ByteAlphabet, EveryByteHasItsOwnPrintableCharacter) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string bytes(1, static_cast<char>(byte));
    const std::string written = bytes_to_alphabet(bytes);
    EXPECT_EQ(bytes_from_alphabet(written), bytes) << byte;
    EXPECT_TRUE(next_utf8(written).codepoint > U' ') << byte;
  }
  // U+0120 is the space of every such vocabulary, U+010A its line feed.
  EXPECT_EQ(bytes_to_alphabet(" \n~"), "\u0120\u010A~");
}

TEST(ByteAlphabet, CharactersOutsideOfItStandForNothing) {
  for (const std::string_view written : {" ", "\n", "a b", "\u00AD", "\u0144", "\u4F60", "\xFF"}) {
    EXPECT_EQ(bytes_from_alphabet(written), std::nullopt) << written;
  }
}

}  // namespace
}  // namespace hotset::text
