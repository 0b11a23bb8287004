// Replies of models taken apart, in every format. However a text is cut, the parts are the same;
// every call has a name and arguments that a request may have again; and where nothing is set
// apart, nothing is lost.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "hotset/base/json.h"
#include "hotset/base/random.h"
#include "hotset/text/reply_splitter.h"
#include "hotset/text/tool_calls.h"

namespace {

using namespace hotset::text;

void require(bool condition, const char* what, std::string_view detail) {
  if (condition) return;
  std::fprintf(stderr, "reply_fuzz: %s: %.*s\n", what, static_cast<int>(detail.size()),
               detail.data());
  std::abort();
}

constexpr std::array kSyntaxes = {ToolSyntax::kNone,    ToolSyntax::kTags,     ToolSyntax::kLlama3,
                                  ToolSyntax::kMistral, ToolSyntax::kDeepseek, ToolSyntax::kKimi,
                                  ToolSyntax::kGranite, ToolSyntax::kHarmony};

// What follows the format: bytes from here on are signs that come as tokens.
constexpr unsigned char kFirstSign = 0xE0;

ReplyFormat format_of(uint8_t choice, uint8_t flags, std::string_view definitions) {
  ReplyFormat format{.tools = kSyntaxes[choice % kSyntaxes.size()]};
  format.has_channels = format.tools == ToolSyntax::kHarmony || (flags & 16U) != 0;
  format.splits_reasoning = (flags & 1U) == 0;
  if ((flags & 2U) != 0) {
    format.reasoning_begin = "<think>";
    format.reasoning_end = "</think>";
    format.begins_in_reasoning = (flags & 4U) != 0;
  }
  if ((flags & 8U) != 0) format.token_signs = signs_of(format);
  format.tool_definitions = definitions;
  return format;
}

// `text` with signs in it, in pieces of up to `max_bytes`.
ReplyParts split(std::string_view text, const ReplyFormat& format, size_t max_bytes,
                 hotset::Random& random) {
  const std::vector<std::string>& signs = format.token_signs;
  ReplySplitter splitter(format);
  ReplyParts sum;
  for (size_t at = 0; at < text.size();) {
    const size_t sign = static_cast<unsigned char>(text[at]) - size_t{kFirstSign};
    if (sign < signs.size()) {
      sum.append(splitter.push_sign(signs[sign]));
      ++at;
      continue;
    }
    size_t end = at + 1;
    const size_t most = 1 + random.below(max_bytes);
    while (end < text.size() && end - at < most &&
           static_cast<unsigned char>(text[end]) - size_t{kFirstSign} >= signs.size()) {
      ++end;
    }
    sum.append(splitter.push(text.substr(at, end - at)));
    at = end;
  }
  sum.append(splitter.finish());
  return sum;
}

void check_calls(const std::vector<ToolCall>& calls) {
  for (const ToolCall& call : calls) {
    require(!call.name.empty(), "a call without a name", call.arguments);
    const auto arguments = hotset::parse_json(call.arguments);
    require(arguments && arguments->is_object(), "arguments that are no object", call.arguments);
  }
}

}  // namespace

// Three bytes (syntax, flags, seed), definitions of tools, a zero byte, and the reply.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  if (n_bytes < 3) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 3, n_bytes - 3);
  const size_t end = std::min(rest.find('\0'), rest.size());
  const std::string_view text = rest.substr(std::min(end + 1, rest.size()));
  const ReplyFormat format = format_of(data[0], data[1], rest.substr(0, end));
  hotset::Random random(data[2]);

  const ReplyParts whole = split(text, format, text.size() + 1, random);
  check_calls(whole.tool_calls);
  for (const size_t max_bytes : {size_t{1}, size_t{7}}) {
    require(split(text, format, max_bytes, random) == whole, "other parts in other pieces", text);
  }
  if (!format.splits_reasoning) require(whole.reasoning.empty(), "reasoning", whole.reasoning);
  const bool is_plain = !format.has_channels && format.tools == ToolSyntax::kNone &&
                        (!format.splits_reasoning || format.reasoning_begin.empty());
  if (is_plain) {
    std::string expected(text);
    std::erase_if(expected, [&](char c) {
      return static_cast<unsigned char>(c) - size_t{kFirstSign} < format.token_signs.size();
    });
    require(whole.content == expected, "text is lost", whole.content);
  }
  if (const auto calls = parse_tool_calls(text, format)) {
    require(!calls->empty(), "no call is a call", text);
    check_calls(*calls);
  }
  if (const auto call = make_tool_call("f", text)) check_calls({*call});
  return 0;
}
