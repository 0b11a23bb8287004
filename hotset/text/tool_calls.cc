#include "hotset/text/tool_calls.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/text/white_space.h"

namespace hotset::text {
namespace {

using nlohmann::ordered_json;
using Calls = std::optional<std::vector<ToolCall>>;

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
}

// The text up to `end`, which is cut off from `rest` with it; nothing if it is not there.
std::optional<std::string_view> cut(std::string_view& rest, std::string_view end) {
  const size_t at = rest.find(end);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view part = rest.substr(0, at);
  rest.remove_prefix(at + end.size());
  return part;
}

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json parse(std::string_view text) {
  return parse_json(text).value_or(ordered_json(ordered_json::value_t::discarded));
}

// Arguments as a model gives them: an object, or a string with one inside.
std::optional<std::string> arguments_of(const ordered_json& given) {
  if (given.is_object()) return dump(given);
  if (!given.is_string()) return std::nullopt;
  const ordered_json inner = parse(given.get_ref<const std::string&>());
  if (!inner.is_object()) return std::nullopt;
  return dump(inner);
}

std::optional<ToolCall> call_of(const ordered_json& json) {
  if (!json.is_object()) return std::nullopt;
  // Some repeat the request's form around it.
  if (!json.contains("name") && json.contains("function")) return call_of(json["function"]);
  ToolCall call;
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) return std::nullopt;
  call.name = name->get<std::string>();
  if (call.name.empty()) return std::nullopt;
  const auto id = json.find("id");
  if (id != json.end() && id->is_string()) call.id = id->get<std::string>();
  auto given = json.find("arguments");
  if (given == json.end()) given = json.find("parameters");
  if (given == json.end()) {
    call.arguments = "{}";
    return call;
  }
  auto arguments = arguments_of(*given);
  if (!arguments) return std::nullopt;
  call.arguments = *std::move(arguments);
  return call;
}

// One call, or an array of them.
Calls json_calls(std::string_view text) {
  const ordered_json json = parse(text);
  std::vector<ToolCall> calls;
  for (const ordered_json& one : json.is_array() ? json : ordered_json::array({json})) {
    auto call = call_of(one);
    if (!call) return std::nullopt;
    calls.push_back(*std::move(call));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

Calls one(std::optional<ToolCall> call) {
  if (!call) return std::nullopt;
  return std::vector{*std::move(call)};
}

// Arguments that come as texts, one by one.
class TextArguments {
 public:
  TextArguments(std::string_view name, std::string_view definitions) {
    const ordered_json tools = parse(definitions);
    if (!tools.is_array()) return;
    for (const ordered_json& tool : tools) {
      if (!tool.is_object()) continue;
      const ordered_json& function = tool.contains("function") ? tool["function"] : tool;
      if (!function.is_object() || function.value("name", ordered_json()) != name) continue;
      const ordered_json parameters = function.value("parameters", ordered_json());
      if (parameters.is_object()) properties_ = parameters.value("properties", ordered_json());
    }
  }

  void add(std::string_view key, std::string_view text) {
    values_[std::string(key)] = value_of(key, text);
  }

  std::string arguments() const { return dump(values_); }

 private:
  ordered_json value_of(std::string_view key, std::string_view text) const {
    std::string type;
    if (properties_.is_object()) {
      const auto property = properties_.find(key);
      if (property != properties_.end() && property->is_object()) {
        const ordered_json named = property->value("type", ordered_json());
        if (named.is_string()) type = named.get<std::string>();
      }
    }
    ordered_json json = type == "string" ? ordered_json() : parse(text);
    // Without a definition a text stays a text unless it is clearly a value.
    if (type == "string" || json.is_discarded()) return std::string(text);
    return json;
  }

  ordered_json properties_;
  ordered_json values_ = ordered_json::object();
};

// "name\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>..."
Calls glm_calls(std::string_view body, std::string_view definitions) {
  const size_t end = std::min(body.find('<'), body.size());
  const std::string_view name = trimmed(body.substr(0, end));
  if (name.empty() || name.find_first_of("\n{}\"") != std::string_view::npos) return std::nullopt;
  TextArguments arguments(name, definitions);
  std::string_view rest = trimmed(body.substr(end));
  while (!rest.empty()) {
    if (!rest.starts_with("<arg_key>")) return std::nullopt;
    rest.remove_prefix(std::string_view("<arg_key>").size());
    const auto key = cut(rest, "</arg_key>");
    const auto between = key ? cut(rest, "<arg_value>") : std::nullopt;
    const auto value =
        between && trimmed(*between).empty() ? cut(rest, "</arg_value>") : std::nullopt;
    if (!value) return std::nullopt;
    arguments.add(trimmed(*key), *value);
    rest = trimmed(rest);
  }
  return std::vector{ToolCall{.name = std::string(name), .arguments = arguments.arguments()}};
}

// "<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>"
Calls qwen_coder_calls(std::string_view body, std::string_view definitions) {
  std::string_view rest = body.substr(std::string_view("<function=").size());
  const auto name = cut(rest, ">");
  if (!name || trimmed(*name).empty()) return std::nullopt;
  TextArguments arguments(trimmed(*name), definitions);
  for (rest = trimmed(rest); rest.starts_with("<parameter="); rest = trimmed(rest)) {
    rest.remove_prefix(std::string_view("<parameter=").size());
    const auto key = cut(rest, ">");
    auto value = key ? cut(rest, "</parameter>") : std::nullopt;
    if (!value) return std::nullopt;
    if (value->starts_with('\n')) value->remove_prefix(1);
    if (value->ends_with('\n')) value->remove_suffix(1);
    arguments.add(trimmed(*key), *value);
  }
  if (rest != "</function>") return std::nullopt;
  return std::vector{
      ToolCall{.name = std::string(trimmed(*name)), .arguments = arguments.arguments()}};
}

// "[{...}]", or "name[CALL_ID]id[ARGS]{...}" with either sign left out.
Calls mistral_calls(std::string_view body) {
  if (body.starts_with('[') || body.starts_with('{')) return json_calls(body);
  const size_t begin = body.find('{');
  if (begin == std::string_view::npos) return std::nullopt;
  std::string_view head = body.substr(0, begin);
  const size_t args = head.find("[ARGS]");
  if (args != std::string_view::npos) head = head.substr(0, args);
  std::string_view id = head;
  const auto name = cut(id, "[CALL_ID]");
  auto call = make_tool_call(trimmed(name.value_or(head)), body.substr(begin));
  if (call && name) call->id = trimmed(id);
  return one(std::move(call));
}

// "function<sep>name\n```json\n{...}\n```", or "name<sep>{...}".
Calls deepseek_calls(std::string_view body) {
  std::string_view rest = body;
  const auto kind = cut(rest, "<｜tool▁sep｜>");
  if (!kind) return std::nullopt;
  if (trimmed(rest).starts_with('{')) return one(make_tool_call(trimmed(*kind), rest));
  const auto name = cut(rest, "```");
  if (!name) return std::nullopt;
  if (rest.starts_with("json")) rest.remove_prefix(4);
  const auto arguments = cut(rest, "\n```");
  return one(make_tool_call(trimmed(*name), arguments.value_or(rest)));
}

// "functions.name:0<argument_begin>{...}"; all in front is the call's id.
Calls kimi_calls(std::string_view body) {
  std::string_view rest = body;
  const auto head = cut(rest, "<|tool_call_argument_begin|>");
  if (!head) return std::nullopt;
  const std::string_view id = trimmed(*head);
  std::string_view name = id.substr(0, std::min(id.rfind(':'), id.size()));
  if (name.starts_with("functions.")) name.remove_prefix(std::string_view("functions.").size());
  auto call = make_tool_call(name, rest);
  if (call) call->id = id;
  return one(std::move(call));
}

}  // namespace

std::optional<ToolCall> make_tool_call(std::string_view name, std::string_view arguments) {
  const std::string_view text = trimmed(arguments);
  const ordered_json json = text.empty() ? ordered_json::object() : parse(text);
  if (name.empty() || !json.is_object()) return std::nullopt;
  return ToolCall{.name = std::string(name), .arguments = dump(json)};
}

std::optional<std::vector<ToolCall>> parse_tool_calls(std::string_view body,
                                                      const ReplyFormat& format) {
  body = trimmed(body);
  switch (format.tools) {
    case ToolSyntax::kNone:
    case ToolSyntax::kHarmony:  // the name is not in the body
      return std::nullopt;
    case ToolSyntax::kTags:
      if (body.starts_with('{') || body.starts_with('[')) return json_calls(body);
      if (body.starts_with("<function=")) return qwen_coder_calls(body, format.tool_definitions);
      return glm_calls(body, format.tool_definitions);
    case ToolSyntax::kLlama3:
    case ToolSyntax::kGranite:
      return json_calls(body);
    case ToolSyntax::kMistral:
      return mistral_calls(body);
    case ToolSyntax::kDeepseek:
      return deepseek_calls(body);
    case ToolSyntax::kKimi:
      return kimi_calls(body);
  }
  return std::nullopt;
}

}  // namespace hotset::text
