#include "hotset/text/reply_format.h"

#include <algorithm>
#include <array>

#include "hotset/text/white_space.h"

namespace hotset::text {
namespace {

struct SyntaxSign {
  std::string_view text;
  ToolSyntax syntax;
};

// A template that writes the sign belongs to models with this syntax. The first one decides:
// templates that know several ways have the one of their own model among the first.
constexpr std::array kSyntaxSigns = {
    SyntaxSign{"<|tool_call_begin|>", ToolSyntax::kKimi},
    SyntaxSign{"<｜tool▁call▁begin｜>", ToolSyntax::kDeepseek},
    SyntaxSign{"[TOOL_CALLS]", ToolSyntax::kMistral},
    SyntaxSign{"<|tool_call|>", ToolSyntax::kGranite},
    SyntaxSign{"<tool_call>", ToolSyntax::kTags},
    SyntaxSign{"<|python_tag|>", ToolSyntax::kLlama3},
    SyntaxSign{"<|start_header_id|>", ToolSyntax::kLlama3},
};

struct Brackets {
  std::string_view begin;
  std::string_view end;
};

constexpr std::array kReasoning = {
    Brackets{"<think>", "</think>"},
    Brackets{"[THINK]", "[/THINK]"},
};

ToolSyntax choose_syntax(const Tokenizer& tokenizer, std::string_view source) {
  for (const SyntaxSign& sign : kSyntaxSigns) {
    if (source.contains(sign.text)) return sign.syntax;
  }
  for (const SyntaxSign& sign : kSyntaxSigns) {
    if (tokenizer.find_token(sign.text)) return sign.syntax;
  }
  return ToolSyntax::kNone;
}

bool has_channels(const Tokenizer& tokenizer) {
  return std::ranges::all_of(
      std::array<std::string_view, 3>{"<|start|>", "<|channel|>", "<|message|>"},
      [&](std::string_view sign) { return tokenizer.find_token(sign).has_value(); });
}

}  // namespace

ToolSigns tool_signs(ToolSyntax syntax) {
  switch (syntax) {
    case ToolSyntax::kNone:
    case ToolSyntax::kHarmony:
      return {};
    case ToolSyntax::kTags:
      return {.begin = "<tool_call>",
              .end = "</tool_call>",
              .inner = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"}};
    case ToolSyntax::kLlama3:
      return {.begin = {}, .end = {}, .around = {"<|python_tag|>"}};
    case ToolSyntax::kMistral:
      return {.begin = "[TOOL_CALLS]", .end = {}, .inner = {"[CALL_ID]", "[ARGS]"}};
    case ToolSyntax::kDeepseek:
      return {.begin = "<｜tool▁call▁begin｜>",
              .end = "<｜tool▁call▁end｜>",
              .inner = {"<｜tool▁sep｜>"},
              .around = {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"}};
    case ToolSyntax::kKimi:
      return {.begin = "<|tool_call_begin|>",
              .end = "<|tool_call_end|>",
              .inner = {"<|tool_call_argument_begin|>"},
              .around = {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"}};
    case ToolSyntax::kGranite:
      return {.begin = "<|tool_call|>", .end = {}};
  }
  return {};
}

std::vector<std::string_view> channel_signs() {
  return {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
          "<|end|>",   "<|call|>",    "<|return|>"};
}

std::vector<std::string> signs_of(const ReplyFormat& format) {
  std::vector<std::string> signs;
  if (format.has_channels) {
    for (const std::string_view sign : channel_signs()) signs.emplace_back(sign);
  }
  const ToolSigns tools = tool_signs(format.tools);
  const auto add = [&](std::string_view sign) {
    if (!sign.empty()) signs.emplace_back(sign);
  };
  if (format.splits_reasoning) {
    add(format.reasoning_begin);
    add(format.reasoning_end);
  }
  add(tools.begin);
  add(tools.end);
  signs.insert(signs.end(), tools.inner.begin(), tools.inner.end());
  signs.insert(signs.end(), tools.around.begin(), tools.around.end());
  return signs;
}

ReplyFormat choose_reply_format(const Tokenizer& tokenizer, std::string_view template_source,
                                std::string_view rendered, bool with_tools) {
  ReplyFormat format;
  if (has_channels(tokenizer)) {
    format.has_channels = true;
    if (with_tools) format.tools = ToolSyntax::kHarmony;
    return format;
  }
  if (with_tools) format.tools = choose_syntax(tokenizer, template_source);
  for (const Brackets& brackets : kReasoning) {
    if (!template_source.contains(brackets.end) && !tokenizer.find_token(brackets.end)) continue;
    format.reasoning_begin = brackets.begin;
    format.reasoning_end = brackets.end;
    const size_t end = rendered.find_last_not_of(kWhiteSpace);
    format.begins_in_reasoning =
        end != std::string_view::npos && rendered.substr(0, end + 1).ends_with(brackets.begin);
    break;
  }
  return format;
}

}  // namespace hotset::text
