// The tool calls that models write, taken apart. Each family has its own way (ToolSyntax).
// Thread-safe: pure functions.
#ifndef HOTSET_TEXT_TOOL_CALLS_H_
#define HOTSET_TEXT_TOOL_CALLS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/text/reply_format.h"

namespace hotset::text {

struct ToolCall {
  std::string id = {};  // where the model gives one; else empty
  std::string name = {};
  std::string arguments = "{}";  // a JSON object

  bool operator==(const ToolCall&) const = default;
};

// The calls in `body`, what stands between the signs of a call; never empty. Nothing if it is no
// call: no JSON where JSON is due, no name, arguments that are no object.
std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view body,
                                                      const ReplyFormat& format);

// The call of a tool by name with arguments as JSON text. Nothing if they are no object.
std::optional<ToolCall> make_tool_call(std::string_view name, std::string_view arguments);

}  // namespace hotset::text

#endif  // HOTSET_TEXT_TOOL_CALLS_H_
