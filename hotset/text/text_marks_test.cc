#include "hotset/text/text_marks.h"

#include <gtest/gtest.h>

#include <string>

#include "hotset/base/random.h"

namespace hotset::text {
namespace {

const std::string kMark(kTextMark);

std::string show(std::string text) {
  for (size_t at = 0; (at = text.find(kMark, at)) != std::string::npos;) {
    text.replace(at, kMark.size(), "^");
  }
  return text;
}

TEST(TextMarker, BreaksNamesOfSpecialTokens) {
  const TextMarker marker({"<|im_end|>", "<|im_start|>", "</s>", "[INST]", ""});
  EXPECT_EQ(show(marker.marked("a<|im_end|>b")), "a<^|im_end|>b");
  EXPECT_EQ(show(marker.marked("<|IM_End|>")), "<^|IM_End|>");
  EXPECT_EQ(show(marker.marked("</s></s>")), "<^/s><^/s>");
  EXPECT_EQ(show(marker.marked("[INST][inst")), "[^INST][^inst");
}

TEST(TextMarker, BreaksWhatCouldBecomeOne) {
  const TextMarker marker({"<|im_end|>", "</s>"});
  // At the end, another text may follow; tags may be cut out, and spaces trimmed.
  EXPECT_EQ(show(marker.marked("a<|im_")), "a<^|im_");
  EXPECT_EQ(show(marker.marked("<")), "<^");
  EXPECT_EQ(show(marker.marked("<|im_  \n")), "<^|im_  \n");
  EXPECT_EQ(show(marker.marked("<<think></think>|im_end|>")), "<^<think></think>|im_end|>");
  EXPECT_EQ(show(marker.marked("<|im<think>_end|>")), "<^|im<think>_end|>");
}

TEST(TextMarker, LeavesTagsAlone) {
  const TextMarker marker({"<|im_end|>", "</s>", "<s>"});
  for (const std::string text : {"", "plain", "<think>x</think>", "<tool_call>{}</tool_call>",
                                 "</summary>", "<|other|>", "if (a<b) c>d;", "é😀", "|im_end|>"}) {
    EXPECT_EQ(marker.marked(text), text);
  }
}

TEST(TextMarker, TakesForeignMarksOut) {
  const TextMarker marker({"<x>"});
  EXPECT_EQ(marker.marked("a\uFDD0b\uFDD1c"), "a\uFFFDb\uFFFDc");
  EXPECT_EQ(show(marker.marked("<\uFDD0x>")), "<\uFFFDx>");
}

// However texts are joined and trimmed, no special token comes of them, and nothing is lost.
TEST(TextMarker, NoJoinOfMarkedTextsHasASpecialToken) {
  const uint64_t seed = 7;
  Random random(seed);
  const std::vector<std::string> tokens = {"<|a|>", "<a>", "[a", "</a>", "｜a｜"};
  const TextMarker marker(tokens);
  const std::string pieces[] = {"<", "|", "a", ">", "[", "/", " ", "<b>", "｜", "A", "\n", "x"};
  for (int i = 0; i < 20000; ++i) {
    std::string joined;
    std::string plain;
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      std::string text;
      for (uint64_t k = random.below(7); k > 0; --k)
        text += pieces[random.below(std::size(pieces))];
      std::string marked = marker.marked(text);
      ASSERT_EQ(without_marks(marked), text);
      while (random.below(2) == 0 && (marked.ends_with(' ') || marked.ends_with('\n'))) {
        marked.pop_back();
      }
      while (true) {
        const size_t at = marked.find("<b>");
        if (at == std::string::npos || random.below(2) == 0) break;
        marked.erase(at, 3);
      }
      joined += marked;
    }
    for (const std::string& token : tokens) {
      ASSERT_FALSE(joined.contains(token)) << "seed " << seed << ": " << show(joined);
    }
  }
}

}  // namespace
}  // namespace hotset::text
