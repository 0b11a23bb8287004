// How the replies of a model are written: with which signs it sets apart what it thinks and the
// tools it calls. It follows from the vocabulary and the chat template.
// Thread-safe: plain values and pure functions.
#ifndef HOTSET_TEXT_REPLY_FORMAT_H_
#define HOTSET_TEXT_REPLY_FORMAT_H_

#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/tokenizer.h"

namespace hotset::text {

// How a model writes that it calls a tool.
enum class ToolSyntax {
  kNone,      // not known
  kTags,      // <tool_call>...</tool_call>; inside JSON (Hermes, Qwen), or tags (GLM, Qwen-Coder)
  kLlama3,    // the reply is {"name": ..., "parameters": {...}}
  kMistral,   // [TOOL_CALLS][{...}], or [TOOL_CALLS]name[ARGS]{...}
  kDeepseek,  // <｜tool▁call▁begin｜>function<｜tool▁sep｜>name\n```json...<｜tool▁call▁end｜>
  kKimi,      // <|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{}<|tool_call_end|>
  kGranite,   // <|tool_call|>[{"name": ..., "arguments": {...}}]
  kHarmony,   // <|channel|>commentary to=functions.name<|message|>{...}<|call|>
};

struct ReplyFormat {
  ToolSyntax tools = ToolSyntax::kNone;
  // Every part of a reply names its channel, as OpenAI's Harmony has it:
  // "<|channel|>name<|message|> text<|end|>". The signs of reasoning below are then without effect.
  bool has_channels = false;
  // Whether what the model thinks is set apart; otherwise it is part of what it says, as written.
  bool splits_reasoning = true;
  // Around what the model thinks, in front of what it says; empty: it does not tell.
  std::string reasoning_begin = {};
  std::string reasoning_end = {};
  // The prompt ended with reasoning_begin, so the reply begins inside.
  bool begins_in_reasoning = false;
  // Signs that count only as a token of this name (ReplySplitter::push_sign()), not as letters.
  std::vector<std::string> token_signs = {};
  // The tools that were offered: JSON array as in OpenAI's requests; tells arguments that are
  // strings from other values where the syntax does not. Empty: unknown.
  std::string tool_definitions = {};
};

// The format of replies to prompts of the template with this text, which was rendered to
// `rendered` (empty: unknown). `with_tools`: tools were offered; without, calls are text like any
// other.
ReplyFormat choose_reply_format(const Tokenizer& tokenizer, std::string_view template_source,
                                std::string_view rendered, bool with_tools);

// The signs of a tool call.
struct ToolSigns {
  std::string_view begin;  // empty: none
  std::string_view end;    // empty: the next call or the end of the reply ends it
  // Between the parts of a call.
  std::vector<std::string_view> inner = {};
  // Around calls, without a meaning of their own.
  std::vector<std::string_view> around = {};
};
ToolSigns tool_signs(ToolSyntax syntax);

// The signs that begin or end parts of a reply with channels.
std::vector<std::string_view> channel_signs();

// All signs that a reply of the format may have.
std::vector<std::string> signs_of(const ReplyFormat& format);

}  // namespace hotset::text

#endif  // HOTSET_TEXT_REPLY_FORMAT_H_
