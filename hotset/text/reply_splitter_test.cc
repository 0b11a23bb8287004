#include "hotset/text/reply_splitter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/text_test_util.h"

namespace hotset::text {
namespace {

constexpr std::string_view kWeather = R"([{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"},
  "days": {"type": "integer"}}}}}])";

ReplyFormat format_of(ToolSyntax syntax, bool reasons = true) {
  ReplyFormat format{.tools = syntax, .has_channels = syntax == ToolSyntax::kHarmony};
  if (reasons) {
    format.reasoning_begin = "<think>";
    format.reasoning_end = "</think>";
  }
  format.tool_definitions = kWeather;
  return format;
}

ToolCall weather(std::string arguments, std::string id = "") {
  return {.id = std::move(id), .name = "weather", .arguments = std::move(arguments)};
}

const std::string kOslo = R"({"city":"Oslo","days":2})";

struct Case {
  ToolSyntax syntax;
  std::string text;
  ReplyParts expected;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      // Reasoning.
      {ToolSyntax::kNone,
       "plain <thin </think> text\n",
       {.content = "plain <thin </think> text\n"}},
      {ToolSyntax::kNone, " \n a ", {.content = " \n a "}},
      {ToolSyntax::kNone,
       " \n<think>\n\nwhy\n not \n</think>\n\n 4 <think>5</think> \n",
       {.content = "4 <think>5</think> \n", .reasoning = "why\n not"}},
      {ToolSyntax::kNone, "<think></think>\n\nyes", {.content = "yes"}},
      {ToolSyntax::kNone, "<think>never ends <", {.reasoning = "never ends <"}},
      {ToolSyntax::kNone, "a <", {.content = "a <"}},
      {ToolSyntax::kNone, "<<think>", {.content = "<<think>"}},
      // Tags with JSON.
      {ToolSyntax::kTags,
       "<think>hm</think>Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": "
       "{\"city\": "
       "\"Oslo\", \"days\": 2}}\n</tool_call>\n<tool_call>{\"name\": \"weather\", \"arguments\": "
       "\"{}\"}</tool_call>\n",
       {.content = "Let me see.",
        .reasoning = "hm",
        .tool_calls = {weather(kOslo), weather("{}")}}},
      {ToolSyntax::kTags,
       "<tool_call>{\"name\": \"weather\"",
       {.content = "{\"name\": \"weather\""}},
      {ToolSyntax::kTags,
       "a<tool_call>{]</tool_call> b <tool_call></tool_call>",
       {.content = "a\n\n{]\n\nb"}},
      {ToolSyntax::kTags,
       "<tool_call>[{\"name\": \"weather\"}]</tool_call>c",
       {.content = "c", .tool_calls = {weather("{}")}}},
      {ToolSyntax::kTags,
       "<tool_call>{\"arguments\": {}}</tool_call>",
       {.content = "{\"arguments\": {}}"}},
      // Tags with tags (GLM, Qwen-Coder).
      {ToolSyntax::kTags,
       "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n<arg_key>days"
       "</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
       {.tool_calls = {weather(kOslo)}}},
      {ToolSyntax::kTags,
       "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>42</arg_value>\n<arg_key>more"
       "</arg_key>\n<arg_value>[1, {\"a\": null}]</arg_value></tool_call>",
       {.tool_calls = {weather(R"({"city":"42","more":[1,{"a":null}]})")}}},
      {ToolSyntax::kTags,
       "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</"
       "parameter>\n<parameter=days>\n2\n"
       "</parameter>\n</function>\n</tool_call>",
       {.tool_calls = {weather(kOslo)}}},
      // Llama 3.
      {ToolSyntax::kLlama3,
       "{\"name\": \"weather\", \"parameters\": {\"city\": \"O}\\\"{\"}}; {\"name\": \"weather\"}",
       {.tool_calls = {weather(R"({"city":"O}\"{"})"), weather("{}")}}},
      {ToolSyntax::kLlama3,
       "<|python_tag|>{\"name\": \"weather\", \"parameters\": {}}",
       {.tool_calls = {weather("{}")}}},
      {ToolSyntax::kLlama3,
       "{\"a\": 1} is JSON {\"name\": \"weather\"} ",
       {.content = "{\"a\": 1} is JSON {\"name\": \"weather\"} "}},
      {ToolSyntax::kLlama3, "\n{\"a\": ", {.content = "\n{\"a\": "}},
      // Mistral.
      {ToolSyntax::kMistral,
       "Hm. [TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}, "
       "\"id\": \"123456789\"}]",
       {.content = "Hm.", .tool_calls = {weather(kOslo, "123456789")}}},
      {ToolSyntax::kMistral,
       "[TOOL_CALLS]weather[CALL_ID]abc[ARGS]{\"city\": \"Oslo\", \"days\": 2}[TOOL_CALLS]weather"
       "[ARGS]{}[TOOL_CALLS]weather{}",
       {.tool_calls = {weather(kOslo, "abc"), weather("{}"), weather("{}")}}},
      {ToolSyntax::kMistral, "see [1] and [TOOL", {.content = "see [1] and [TOOL"}},
      // DeepSeek.
      {ToolSyntax::kDeepseek,
       "<think>a</think>b<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
       "```json\n{\"city\": \"Oslo\", \"days\": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       {.content = "b", .reasoning = "a", .tool_calls = {weather(kOslo)}}},
      {ToolSyntax::kDeepseek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Oslo\", "
       "\"days\": "
       "2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜><｜tool▁call▁end｜>",
       {.content = "weather<｜tool▁sep｜>", .tool_calls = {weather(kOslo)}}},
      // Kimi.
      {ToolSyntax::kKimi,
       "Ok <|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
       "<|tool_call_argument_begin|>{\"city\": \"Oslo\", \"days\": 2}<|tool_call_end|>"
       "<|tool_calls_section_end|>",
       {.content = "Ok", .tool_calls = {weather(kOslo, "functions.weather:0")}}},
      // Granite.
      {ToolSyntax::kGranite,
       "<|tool_call|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 2}}, "
       "{\"name\": \"weather\"}]",
       {.tool_calls = {weather(kOslo), weather("{}")}}},
      // Harmony.
      {ToolSyntax::kHarmony,
       "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>I "
       "look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json"
       "<|message|>{\"city\": \"Oslo\", \"days\": 2}<|call|><|start|>assistant to=functions.weather"
       "<|channel|>commentary json<|message|>{}<|call|><|start|>assistant<|channel|>analysis"
       "<|message|>more<|end|><|start|>assistant<|channel|>final<|message|>Cold.",
       {.content = "I look.\n\nCold.",
        .reasoning = "hm\n\nmore",
        .tool_calls = {weather(kOslo), weather("{}")}}},
      {ToolSyntax::kHarmony,
       "<|channel|>commentary to=functions.weather<|message|>{\"cit",
       {.content = "to=functions.weather {\"cit"}},
  };
  return all;
}

ReplyParts in_pieces(const Case& c, const std::vector<size_t>& ends) {
  ReplySplitter splitter(format_of(c.syntax));
  ReplyParts sum;
  size_t begin = 0;
  for (const size_t end : ends) {
    sum.append(splitter.push(std::string_view(c.text).substr(begin, end - begin)));
    begin = end;
  }
  sum.append(splitter.push(std::string_view(c.text).substr(begin)));
  sum.append(splitter.finish());
  return sum;
}

std::string describe(const ReplyParts& parts) {
  std::string text = fmt::format("content '{}' reasoning '{}'", parts.content, parts.reasoning);
  for (const ToolCall& c : parts.tool_calls) {
    text += fmt::format(" call {}({}) '{}'", c.name, c.arguments, c.id);
  }
  return text;
}

TEST(ReplySplitter, TellsThePartsOfEverySyntax) {
  for (const Case& c : cases()) {
    const ReplyParts found = split_reply(c.text, format_of(c.syntax));
    EXPECT_EQ(found, c.expected) << c.text << "\n" << describe(found);
  }
}

TEST(ReplySplitter, AnyCutGivesTheSame) {
  Random random(20261129);
  for (const Case& c : cases()) {
    std::vector<size_t> every(c.text.size());
    for (size_t i = 0; i < every.size(); ++i) every[i] = i;
    ReplyParts found = in_pieces(c, every);
    ASSERT_EQ(found, c.expected) << "byte by byte: " << c.text << "\n" << describe(found);
    for (size_t at = 0; at <= c.text.size(); ++at) {
      found = in_pieces(c, {at});
      ASSERT_EQ(found, c.expected) << "cut at " << at << ": " << c.text << "\n" << describe(found);
    }
    for (int round = 0; round < 50; ++round) {
      std::vector<size_t> ends(random.below(8));
      for (size_t& end : ends) end = random.below(c.text.size() + 1);
      std::ranges::sort(ends);
      ASSERT_EQ(in_pieces(c, ends), c.expected) << c.text;
    }
  }
}

// Texts put together from signs and parts of signs in any order.
TEST(ReplySplitter, AnyCutOfAnythingGivesTheSame) {
  constexpr ToolSyntax kAll[] = {ToolSyntax::kNone,    ToolSyntax::kTags,     ToolSyntax::kLlama3,
                                 ToolSyntax::kMistral, ToolSyntax::kDeepseek, ToolSyntax::kKimi,
                                 ToolSyntax::kGranite, ToolSyntax::kHarmony};
  Random random(7);
  for (int round = 0; round < 4000; ++round) {
    Case c{.syntax = kAll[random.below(std::size(kAll))], .text = {}, .expected = {}};
    const ReplyFormat format = format_of(c.syntax);
    const auto signs = signs_of(format);
    const size_t n_parts = random.below(12);
    for (size_t i = 0; i < n_parts; ++i) {
      const std::string_view sign = signs[random.below(signs.size())];
      switch (random.below(5)) {
        case 0:
        case 1:
          c.text += sign;
          break;
        case 2:
          c.text += sign.substr(0, random.below(sign.size() + 1));
          break;
        case 3:
          c.text += cases()[random.below(cases().size())].text;
          break;
        default:
          c.text += random_text(random, random.below(6), U" \n{}[]\";ab<|:");
      }
    }
    c.expected = split_reply(c.text, format);
    std::vector<size_t> ends(random.below(20));
    for (size_t& end : ends) end = random.below(c.text.size() + 1);
    std::ranges::sort(ends);
    const ReplyParts found = in_pieces(c, ends);
    ASSERT_EQ(found, c.expected) << "round " << round << ": " << c.text << "\n"
                                 << describe(c.expected) << "\n"
                                 << describe(found);
  }
}

// What a piece gives is never taken back, and no part of a sign is among it.
TEST(ReplySplitter, NeverShowsPartOfASign) {
  for (const Case& c : cases()) {
    ReplySplitter splitter(format_of(c.syntax));
    ReplyParts sum;
    for (const char byte : c.text) {
      sum.append(splitter.push({&byte, 1}));
      ASSERT_TRUE(c.expected.content.starts_with(sum.content)) << c.text << "\n" << sum.content;
      ASSERT_TRUE(c.expected.reasoning.starts_with(sum.reasoning)) << c.text;
      ASSERT_LE(sum.tool_calls.size(), c.expected.tool_calls.size()) << c.text;
    }
  }
}

TEST(ReplySplitter, ShowsTextAsSoonAsItIsCertain) {
  ReplySplitter splitter(format_of(ToolSyntax::kTags));
  EXPECT_EQ(splitter.push("Hello").content, "Hello");
  EXPECT_EQ(splitter.push(" <to").content, "");
  EXPECT_EQ(splitter.push("p>").content, " <top>");
}

TEST(ReplySplitter, BeginsInReasoningWhereThePromptDid) {
  ReplyFormat format = format_of(ToolSyntax::kNone);
  format.begins_in_reasoning = true;
  EXPECT_EQ(split_reply("\nhm\n</think>\n\nyes", format),
            (ReplyParts{.content = "yes", .reasoning = "hm"}));
}

TEST(ReplySplitter, DeepNestingIsNoCall) {
  const std::string deep =
      "{\"name\": \"weather\", \"arguments\": {\"a\": " + std::string(100000, '[') +
      std::string(100000, ']') + "}}";
  EXPECT_EQ(
      split_reply("<tool_call>" + deep + "</tool_call>", format_of(ToolSyntax::kTags)).content,
      deep);
}

}  // namespace
}  // namespace hotset::text
