#include "hotset/text/reply_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/text_test_util.h"

namespace hotset::text {
namespace {

Tokenizer vocabulary(std::initializer_list<const char*> signs) {
  TokenizerSpec spec = byte_level_spec({});
  for (const char* sign : signs) add_token(spec, sign, TokenType::kControl);
  return *Tokenizer::create(spec);
}

struct Reply {
  std::string shown;
  std::string content;
  std::string thinking;
};

Reply parse(const Tokenizer& tokenizer, std::string_view text) {
  ReplyParser parser(tokenizer);
  Reply reply;
  const std::vector<int32_t> ids = *tokenizer.encode(text, {.parse_special = true});
  for (const int32_t id : ids) reply.shown += *parser.push(id);
  reply.shown += parser.finish();
  reply.content = parser.content();
  reply.thinking = parser.thinking();
  return reply;
}

TEST(ReplyParser, IsPlainTextForMostVocabularies) {
  const Tokenizer tokenizer = vocabulary({"<|im_end|>", "<|channel|>"});
  const Reply reply = parse(tokenizer, "<think>Hé</think>\n\nso<|im_end|>");
  EXPECT_EQ(reply.shown, "<think>Hé</think>\n\nso");
  EXPECT_EQ(reply.content, reply.shown);
  EXPECT_EQ(reply.thinking, "");
  EXPECT_EQ(ReplyParser(tokenizer).push(100000), "");
}

TEST(ReplyParser, TellsChannelsApart) {
  const Tokenizer tokenizer =
      vocabulary({"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"});
  const Reply reply = parse(
      tokenizer,
      "<|channel|>analysis<|message|>Hm, é.<|end|><|start|>assistant<|channel|>final<|message|>"
      "Yes\xC3<|return|>");
  EXPECT_EQ(reply.thinking, "Hm, é.");
  EXPECT_EQ(reply.content, "Yes\uFFFD");
  EXPECT_EQ(reply.shown, "Hm, é.\n\nYes\uFFFD");
  EXPECT_EQ(parse(tokenizer, "<|message|>only").content, "only");
  EXPECT_EQ(parse(tokenizer, "<|channel|>commentary to=x<|message|>{}").thinking, "{}");
  EXPECT_EQ(parse(tokenizer, "cut off in the header").shown, "");
  EXPECT_EQ(parse(tokenizer, "<|channel|>final").shown, "");
  EXPECT_EQ(parse(tokenizer, "<|message|><|message|>\xC3").content, "\uFFFD");
}

}  // namespace
}  // namespace hotset::text
