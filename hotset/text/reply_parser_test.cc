#include "hotset/text/reply_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/text_test_util.h"

namespace hotset::text {
namespace {

Tokenizer vocabulary(std::initializer_list<const char*> signs,
                     TokenType type = TokenType::kControl) {
  TokenizerSpec spec = byte_level_spec({});
  for (const char* sign : signs) add_token(spec, sign, type);
  return *Tokenizer::create(spec);
}

// What the parser makes of the tokens of `text`, and that the pieces add up to the whole.
ReplyParts parse_as(const Tokenizer& tokenizer, std::string_view text, const ReplyFormat& format,
                    bool parse_special = true) {
  ReplyParser parser(tokenizer, format);
  ReplyParts sum;
  const std::vector<int32_t> ids = *tokenizer.encode(text, {.parse_special = parse_special});
  for (const int32_t id : ids) sum.append(*parser.push(id));
  sum.append(parser.finish());
  EXPECT_EQ(sum, parser.reply());
  return sum;
}

ReplyParts parse(const Tokenizer& tokenizer, std::string_view text, bool with_tools = true,
                 std::string_view source = "", bool parse_special = true) {
  return parse_as(tokenizer, text, choose_reply_format(tokenizer, source, "", with_tools),
                  parse_special);
}

TEST(ReplyParser, IsPlainTextForMostVocabularies) {
  const Tokenizer tokenizer = vocabulary({"<|im_end|>", "<|channel|>"});
  const std::string said = "<think>Hé</think>\n\nso <tool_call>{}</tool_call>\n ";
  EXPECT_EQ(parse(tokenizer, said + "<|im_end|>"), ReplyParts{.content = said});
  ReplyParser parser(tokenizer, {});
  EXPECT_EQ(*parser.push(100000), ReplyParts());
}

TEST(ReplyParser, TellsChannelsApart) {
  const Tokenizer tokenizer = vocabulary({"<|start|>", "<|channel|>", "<|message|>", "<|end|>",
                                          "<|return|>", "<|call|>", "<|constrain|>"});
  EXPECT_EQ(parse(tokenizer,
                  "<|channel|>analysis<|message|>Hm, é.<|end|><|start|>assistant<|channel|>final"
                  "<|message|>Yes\xC3<|return|>"),
            (ReplyParts{.content = "Yes\uFFFD", .reasoning = "Hm, é."}));
  EXPECT_EQ(parse(tokenizer, "<|message|>only").content, "only");
  EXPECT_EQ(parse(tokenizer, "cut off in the header"), ReplyParts());
  EXPECT_EQ(parse(tokenizer, "<|channel|>final"), ReplyParts());
  EXPECT_EQ(parse(tokenizer, "<|message|><|message|>\xC3").content, "\uFFFD");
  const std::string call =
      "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>";
  EXPECT_EQ(parse(tokenizer, call),
            (ReplyParts{.tool_calls = {{.name = "f", .arguments = R"({"a":1})"}}}));
}

// Where nobody offered tools, or nobody wants to have the thoughts apart, all of it is text.
TEST(ReplyParser, ChannelsAreTextWhereTheyAreNotAskedFor) {
  const Tokenizer tokenizer = vocabulary({"<|start|>", "<|channel|>", "<|message|>", "<|end|>",
                                          "<|return|>", "<|call|>", "<|constrain|>"});
  const std::string thought = "<|channel|>analysis<|message|> Hm, é. <|end|><|start|>assistant";
  const std::string call =
      "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": 1}<|call|>";
  const std::string said = "<|start|>assistant<|channel|>final<|message|>Yes.<|return|>";
  EXPECT_EQ(parse(tokenizer, thought + call + said, false),
            (ReplyParts{.content = "to=functions.f {\"a\": 1}\n\nYes.", .reasoning = "Hm, é."}));
  // The tools that the model has learned of are called from where it thinks.
  EXPECT_EQ(parse(tokenizer, "<|channel|>analysis to=python code<|message|>1 + 1<|call|>", false),
            ReplyParts{.reasoning = "to=python 1 + 1"});
  // A call that is none keeps its name as well.
  EXPECT_EQ(parse(tokenizer, "<|channel|>commentary to=functions.f <|message|>{\"a\": <|call|>"),
            ReplyParts{.content = "to=functions.f {\"a\":"});

  const auto joined = [&](std::string_view text, bool with_tools) {
    ReplyFormat format = choose_reply_format(tokenizer, "", "", with_tools);
    format.splits_reasoning = false;
    return parse_as(tokenizer, text, format);
  };
  EXPECT_EQ(joined(thought + said, false), ReplyParts{.content = " Hm, é.\n\nYes."});
  EXPECT_EQ(
      joined(thought + call, true),
      (ReplyParts{.content = " Hm, é.", .tool_calls = {{.name = "f", .arguments = R"({"a":1})"}}}));
}

TEST(ReplyParser, ThoughtsStayWhereTheyAreIfNobodyWantsThemApart) {
  const std::string text = "<think>\na\n</think>\n\nb";
  for (const TokenType type : {TokenType::kUserDefined, TokenType::kControl}) {
    const Tokenizer tokenizer = vocabulary({"<think>", "</think>"}, type);
    for (const bool begins_in_reasoning : {false, true}) {
      ReplyFormat format = choose_reply_format(tokenizer, "", "", false);
      format.splits_reasoning = false;
      format.begins_in_reasoning = begins_in_reasoning;
      // A control token has no letters.
      EXPECT_EQ(parse_as(tokenizer, text, format),
                ReplyParts{.content = type == TokenType::kControl ? "\na\n\n\nb" : text});
    }
  }
}

TEST(ReplyParser, LettersAreNoControlToken) {
  const Tokenizer tokenizer = vocabulary({"<|start|>", "<|channel|>", "<|message|>"});
  ReplyParser parser(tokenizer, choose_reply_format(tokenizer, "", "", true));
  ASSERT_TRUE(parser.push(*tokenizer.find_token("<|message|>")));
  const std::string said = "write <|channel|>analysis<|message|>x";
  const std::vector<int32_t> ids = *tokenizer.encode(said);
  for (const int32_t id : ids) ASSERT_TRUE(parser.push(id));
  parser.finish();
  EXPECT_EQ(parser.reply(), ReplyParts{.content = said});
}

TEST(ReplyParser, TokensOfTheVocabularyTellReasoningAndCalls) {
  const Tokenizer tokenizer =
      vocabulary({"<think>", "</think>", "<tool_call>", "</tool_call>"}, TokenType::kUserDefined);
  const std::string text =
      "<think>\na\n</think>\n\nb\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "
      "\"é\"}}\n</tool_call>";
  const ReplyParts expected{.content = "b",
                            .reasoning = "a",
                            .tool_calls = {{.name = "f", .arguments = "{\"x\":\"é\"}"}}};
  EXPECT_EQ(parse(tokenizer, text), expected);
  const Tokenizer control =
      vocabulary({"<think>", "</think>", "<tool_call>", "</tool_call>"}, TokenType::kControl);
  EXPECT_EQ(parse(control, text), expected);
  EXPECT_EQ(parse(control, text, true, "", false), ReplyParts{.content = text});
}

TEST(ReplyParser, InnerSignsMayBeTokens) {
  const Tokenizer tokenizer =
      vocabulary({"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
                  "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"});
  const std::string text =
      "Well.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\":[1]"
      "}\n"
      "```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜>"
      "<｜tool▁calls▁end｜>";
  EXPECT_EQ(parse(tokenizer, text),
            (ReplyParts{.content = "Well.",
                        .tool_calls = {{.name = "f", .arguments = R"({"a":[1]})"},
                                       {.name = "g", .arguments = "{}"}}}));
}

}  // namespace
}  // namespace hotset::text
