#include "hotset/text/reply_format.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "hotset/text/builtin_chat_templates.h"
#include "hotset/text/chat_template.h"
#include "hotset/text/reply_splitter.h"
#include "hotset/text/text_test_util.h"

namespace hotset::text {
namespace {

Tokenizer vocabulary(std::initializer_list<const char*> signs) {
  TokenizerSpec spec = byte_level_spec({});
  for (const char* sign : signs) add_token(spec, sign, TokenType::kControl);
  return *Tokenizer::create(spec);
}

TEST(ReplyFormat, FollowsFromTheTemplate) {
  const Tokenizer plain = vocabulary({});
  for (const auto& [name, syntax] :
       {std::pair("chatml", ToolSyntax::kTags), std::pair("deepseek", ToolSyntax::kDeepseek),
        std::pair("glm", ToolSyntax::kTags), std::pair("granite", ToolSyntax::kGranite),
        std::pair("llama3", ToolSyntax::kLlama3), std::pair("mistral", ToolSyntax::kMistral)}) {
    const std::string_view source = builtin_chat_template(name).value();
    EXPECT_EQ(choose_reply_format(plain, source, "", true).tools, syntax) << name;
    EXPECT_EQ(choose_reply_format(plain, source, "", false).tools, ToolSyntax::kNone) << name;
  }
  EXPECT_EQ(choose_reply_format(plain, "{{ '<|tool_call_begin|>' }}", "", true).tools,
            ToolSyntax::kKimi);
}

TEST(ReplyFormat, FollowsFromTheVocabularyWhereTheTemplateIsSilent) {
  EXPECT_EQ(choose_reply_format(vocabulary({"[TOOL_CALLS]"}), "", "", true).tools,
            ToolSyntax::kMistral);
  EXPECT_EQ(choose_reply_format(vocabulary({}), "", "", true).tools, ToolSyntax::kNone);
  const ReplyFormat harmony =
      choose_reply_format(vocabulary({"<|start|>", "<|channel|>", "<|message|>"}), "", "", true);
  EXPECT_EQ(harmony.tools, ToolSyntax::kHarmony);
  EXPECT_TRUE(harmony.has_channels);
  EXPECT_FALSE(choose_reply_format(vocabulary({"<|channel|>"}), "", "", true).has_channels);
}

TEST(ReplyFormat, KnowsWhetherThePromptBeganToThink) {
  const Tokenizer plain = vocabulary({});
  const std::string_view source = "{{ '<think>' }} {{ '</think>' }}";
  EXPECT_TRUE(
      choose_reply_format(plain, source, "<assistant><think>\n", false).begins_in_reasoning);
  EXPECT_FALSE(choose_reply_format(plain, source, "<think>\n</think>", false).begins_in_reasoning);
  EXPECT_FALSE(choose_reply_format(plain, source, "", false).begins_in_reasoning);
  EXPECT_EQ(choose_reply_format(plain, source, "", false).reasoning_end, "</think>");
  EXPECT_EQ(choose_reply_format(plain, "", "<think>", false).reasoning_end, "");
  EXPECT_EQ(choose_reply_format(plain, "[/THINK]", "", false).reasoning_begin, "[THINK]");
}

std::string render(std::string_view name, const std::string& messages, bool prompts) {
  const auto made = ChatTemplate::create(std::string(builtin_chat_template(name).value()),
                                         {.bos_token = "BOS", .eos_token = "EOS"});
  ChatInput input{.messages = "[" + messages + "]",
                  .tools = R"([{"type": "function", "function": {"name": "f", "parameters":
                    {"type": "object", "properties": {"a": {"type": "string"}}}}}])"};
  input.add_generation_prompt = prompts;
  input.now.tm_mday = 1;
  return made->render(input).value();
}

// What a template writes for a reply with calls is what the format takes apart again.
TEST(ReplyFormat, ReadsWhatTheBuiltInTemplatesWrite) {
  const std::string question = R"({"role": "user", "content": "Q"})";
  const std::string arguments = R"({"a":"x \"é\" {","b":[1,2.5,null,{"c":true}],"d":-3})";
  for (const std::string_view name : builtin_chat_templates()) {
    const Tokenizer tokenizer = name == "gpt-oss"
                                    ? vocabulary({"<|start|>", "<|channel|>", "<|message|>"})
                                    : vocabulary({});
    const std::string prompt = render(name, question, true);
    // As OpenAI's clients send them back: arguments as text.
    const std::string reply =
        R"(, {"role": "assistant", "content": null, "tool_calls": [{"id": "i", "type": "function",
          "function": {"name": "f", "arguments": )" +
        nlohmann::json(arguments).dump() + R"(}}, {"id": "j", "type": "function", "function":
          {"name": "g", "arguments": "{}"}}]})";
    std::string text = render(name, question + reply, false);
    ASSERT_TRUE(text.starts_with(prompt)) << prompt << "\n" << text;
    text.erase(0, prompt.size());
    for (const std::string_view end : {"<|im_end|>\n", "<|eot_id|>", "<|end_of_text|>\n", "EOS"}) {
      if (text.ends_with(end)) text.resize(text.size() - end.size());
    }
    ReplyFormat format = choose_reply_format(tokenizer, *builtin_chat_template(name), prompt, true);
    ReplyParts parts = split_reply(text, format);
    for (ToolCall& call : parts.tool_calls) call.id.clear();
    EXPECT_EQ(parts,
              (ReplyParts{.tool_calls = {{.name = "f", .arguments = arguments}, {.name = "g"}}}))
        << name << ": " << text << " gave " << parts.content;
  }
}

// Otherwise what a sign means would depend on what follows.
TEST(ReplyFormat, NoSignBeginsAnother) {
  for (const ToolSyntax syntax :
       {ToolSyntax::kNone, ToolSyntax::kTags, ToolSyntax::kLlama3, ToolSyntax::kMistral,
        ToolSyntax::kDeepseek, ToolSyntax::kKimi, ToolSyntax::kGranite, ToolSyntax::kHarmony}) {
    const auto signs = signs_of({.tools = syntax,
                                 .has_channels = syntax == ToolSyntax::kHarmony,
                                 .reasoning_begin = "<think>",
                                 .reasoning_end = "</think>"});
    for (size_t i = 0; i < signs.size(); ++i) {
      for (size_t j = 0; j < signs.size(); ++j) {
        EXPECT_FALSE(i != j && signs[i].starts_with(signs[j])) << signs[i] << " " << signs[j];
      }
    }
  }
}

}  // namespace
}  // namespace hotset::text
