#include "hotset/text/chat_template.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/text/embedded_files.h"
#include "hotset/text/script_pool.h"
#include "hotset/text/text_marks.h"
#include "hotset/text/white_space.h"

namespace hotset::text {
namespace {

using nlohmann::ordered_json;

constexpr const char* kObject = "hotset";  // what the scripts define

// Integers beyond are not whole numbers of JavaScript's.
constexpr int64_t kMaxScriptInteger = int64_t{1} << 53;

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// What values.js makes a number of: the script's own JSON would forget that 1.0 is no integer.
ordered_json exact_number(std::string digits) {
  return ordered_json::object({{std::string(kReservedMark), std::move(digits)}});
}

// A copy of `json` with marks in all strings.
ordered_json with_marks(const ordered_json& json, const TextMarker& marker) {
  if (json.is_string()) return marker.marked(json.get_ref<const std::string&>());
  if (json.is_number_float()) return exact_number(json.dump());
  if (json.is_number_unsigned() ? json.get<uint64_t>() > uint64_t{kMaxScriptInteger}
                                : json.is_number() && json.get<int64_t>() < -kMaxScriptInteger) {
    return exact_number(json.dump());
  }
  if (!json.is_structured()) return json;
  ordered_json copy = json.is_array() ? ordered_json::array() : ordered_json::object();
  for (const auto& [key, value] : json.items()) {
    ordered_json marked = with_marks(value, marker);
    if (json.is_array()) {
      copy.push_back(std::move(marked));
    } else {
      copy[marker.marked(key)] = std::move(marked);
    }
  }
  return copy;
}

Result<ordered_json> parse(std::string_view text, std::string_view what, bool is_array) {
  auto parsed = parse_json(text, kMaxChatJsonDepth);
  if (!parsed) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found a text that is {}", what,
                      parsed.error().message);
  }
  ordered_json json = *std::move(parsed);
  if (is_array ? json.is_array() : json.is_object()) return json;
  return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected {}", what,
                    json.type_name(), is_array ? "an array" : "an object");
}

Result<ordered_json> parse_objects(std::string_view text, std::string_view what) {
  HOTSET_TRY(ordered_json array, parse(text, what, true));
  for (size_t i = 0; i < array.size(); ++i) {
    if (array[i].is_object()) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}[{}]: found {}, expected an object", what, i,
                      array[i].type_name());
  }
  return array;
}

// The arguments of all tool calls as objects, or as strings of JSON. Returns whether there are any.
// Arguments that are neither stay as they are.
bool set_arguments(ordered_json& messages, bool as_objects) {
  bool has_some = false;
  for (ordered_json& message : messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (ordered_json& call : *calls) {
      if (!call.is_object()) continue;
      const bool is_wrapped = call.contains("function") && call["function"].is_object();
      ordered_json& function = is_wrapped ? call["function"] : call;
      const auto arguments = function.find("arguments");
      if (arguments == function.end()) continue;
      has_some = true;
      if (!as_objects && arguments->is_object()) *arguments = dump(*arguments);
      if (!as_objects || !arguments->is_string()) continue;
      auto parsed = parse_json(arguments->get_ref<const std::string&>());
      if (parsed && parsed->is_object()) *arguments = *std::move(parsed);
    }
  }
  return has_some;
}

ordered_json time_fields(const std::tm& now) {
  return {{"year", now.tm_year + 1900}, {"month", now.tm_mon + 1},   {"day", now.tm_mday},
          {"hour", now.tm_hour},        {"minute", now.tm_min},      {"second", now.tm_sec},
          {"weekday", now.tm_wday},     {"yearday", now.tm_yday + 1}};
}

// A script error with the template's name and, if it is known, the line.
std::unexpected<Error> template_error(ErrorCode code, std::string_view name, int64_t line,
                                      std::string_view message) {
  if (line < 1) return make_error(code, "{}: {}", name, message);
  return make_error(code, "{}: line {}: {}", name, line, message);
}

// Errors: what the scripts reported, as JSON.
Result<std::string> read_result(const std::string& result, std::string_view name) {
  const auto parsed = parse_json(result);
  if (!parsed || !parsed->is_object()) {
    return make_error(ErrorCode::kInternal, "{}: the scripts gave no result", name);
  }
  const ordered_json& json = *parsed;
  if (json.contains("text")) return json["text"].get<std::string>();
  const std::string kind = json.value("kind", "internal");
  std::string message = json.value("message", "");
  ErrorCode code = ErrorCode::kInternal;
  if (kind == "syntax") code = ErrorCode::kCorrupt;
  if (kind == "template" || kind == "refused") code = ErrorCode::kInvalidArgument;
  if (kind == "refused") message = "the template refuses the messages: " + message;
  return template_error(code, name, json.value("line", int64_t{0}), message);
}

Status compile(ScriptRuntime& runtime, const std::string& source, const std::string& name) {
  const auto compiled = runtime.call(kObject, "compile", source);
  if (!compiled) return add_context(compiled.error(), name);
  HOTSET_RETURN_IF_ERROR(read_result(*compiled, name));
  return {};
}

// The scripts with the template in them.
Result<std::unique_ptr<ScriptRuntime>> start(const std::string& source, const std::string& name,
                                             const ScriptLimits& limits) {
  HOTSET_TRY(auto runtime, ScriptRuntime::create(limits));
  std::string library = "globalThis.jinja = (function () { const module = { exports: {} };\n";
  library += "let exports = module.exports;\n";
  for (const EmbeddedFile& file : jinja_library()) library += file.content;
  library += "\nreturn module.exports; })();";
  Status loaded = runtime->load("jinja.js", library);
  for (const EmbeddedFile& file : jinja_scripts()) {
    if (loaded) loaded = runtime->load(file.name, file.content);
  }
  if (loaded) loaded = runtime->seal();
  if (!loaded) return add_context(std::move(loaded).error(), name);
  HOTSET_RETURN_IF_ERROR(compile(*runtime, source, name));
  return runtime;
}

}  // namespace

struct ChatTemplate::State {
  std::string source;
  ChatTemplateOptions options;
  TextMarker marker;
  std::unique_ptr<ScriptPool> pool;  // its runtimes know the members above
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Bytes ChatTemplate::used_memory() const { return state_->pool->used_memory(); }
const std::string& ChatTemplate::name() const { return state_->options.name; }
const std::string& ChatTemplate::source() const { return state_->source; }

Result<ChatTemplate> ChatTemplate::create(std::string source, ChatTemplateOptions options) {
  TextMarker marker(options.special_tokens);
  auto state = std::make_unique<State>(std::move(source), std::move(options), std::move(marker));
  const auto make = [known = state.get()](const ScriptLimits& limits) {
    return start(known->source, known->options.name, limits);
  };
  HOTSET_TRY(state->pool, ScriptPool::create(make, {.limits = state->options.limits}));
  return ChatTemplate(std::move(state));
}

Status ChatTemplate::replace_source(std::string source) {
  HOTSET_TRY(const ScriptPool::Lease runtime, state_->pool->take(source.size()));
  HOTSET_RETURN_IF_ERROR(compile(*runtime, source, name()));
  state_->source = std::move(source);
  return {};
}

Result<std::string> ChatTemplate::render(const ChatInput& input) const {
  ordered_json variables = ordered_json::object();
  if (!input.variables.empty()) {
    HOTSET_TRY(variables, parse(input.variables, "variables of the chat template", false));
  }
  HOTSET_TRY(variables["messages"], parse_objects(input.messages, "messages"));
  if (!input.tools.empty()) {
    HOTSET_TRY(variables["tools"], parse_objects(input.tools, "tools"));
  }
  if (!input.documents.empty()) {
    HOTSET_TRY(variables["documents"], parse_objects(input.documents, "documents"));
  }
  // Most templates write arguments as JSON themselves; to some they must come as text.
  const bool has_arguments = set_arguments(variables["messages"], /*as_objects=*/true);
  auto rendered = render_with(variables, input);
  if (!rendered && has_arguments && rendered.error().code == ErrorCode::kInvalidArgument) {
    set_arguments(variables["messages"], /*as_objects=*/false);
    if (auto again = render_with(variables, input)) return again;
  }
  return rendered;
}

Result<std::string> ChatTemplate::render_with(const ordered_json& given,
                                              const ChatInput& input) const {
  const ChatTemplateOptions& options = state_->options;
  ordered_json variables = with_marks(given, state_->marker);
  // The template's own: no marks.
  variables["bos_token"] = options.bos_token;
  variables["eos_token"] = options.eos_token;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  const std::string argument =
      dump(ordered_json{{"variables", std::move(variables)}, {"now", time_fields(input.now)}});

  int64_t line = 0;
  const auto result = [&]() -> Result<std::string> {
    HOTSET_TRY(const ScriptPool::Lease runtime, state_->pool->take(argument.size()));
    auto text = runtime->call(kObject, "render", argument);
    if (text) return text;
    if (const auto where = runtime->call(kObject, "where", "")) {
      line = std::strtoll(where->c_str(), nullptr, 10);
    }
    return text;
  }();
  if (result) return read_result(*result, options.name);
  return template_error(result.error().code, options.name, line, result.error().message);
}

ChatTemplateOptions chat_template_options(const Tokenizer& tokenizer) {
  const auto looks_special = [](std::string_view piece) {
    return (piece.starts_with("<|") && piece.ends_with("|>")) ||
           (piece.starts_with("<｜") && piece.ends_with("｜>"));
  };
  ChatTemplateOptions options;
  for (int32_t id = 0; id < tokenizer.n_tokens(); ++id) {
    const TokenType type = *tokenizer.type(id);
    const std::string piece(*tokenizer.piece(id));
    if (type == TokenType::kControl || tokenizer.is_end_of_generation(id) ||
        (type == TokenType::kUserDefined && looks_special(piece))) {
      options.special_tokens.push_back(piece);
    }
    if (id == tokenizer.bos()) options.bos_token = piece;
    if (id == tokenizer.eos()) options.eos_token = piece;
  }
  return options;
}

size_t least_chat_tokens(const Tokenizer& tokenizer, std::string_view messages) {
  const auto list = parse_json(messages, kMaxChatJsonDepth);
  if (!list || !list->is_array()) return 0;
  size_t n_tokens = 0;
  const auto add = [&](const ordered_json& text) {
    if (!text.is_string()) return;
    const auto& bytes = text.get_ref<const std::string&>();
    const size_t begin = bytes.find_first_not_of(kWhiteSpace);
    if (begin == std::string::npos) return;
    n_tokens += (bytes.find_last_not_of(kWhiteSpace) + 1 - begin) / tokenizer.max_piece_bytes();
  };
  for (const ordered_json& message : *list) {
    if (!message.is_object() || message.value("role", ordered_json()) == "assistant") continue;
    const auto content = message.find("content");
    if (content == message.end()) continue;
    if (!content->is_array()) add(*content);
    for (const ordered_json& part : content->is_array() ? *content : ordered_json::array()) {
      if (part.is_object()) add(part.value("text", ordered_json()));
    }
  }
  return n_tokens;
}

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer, std::string_view rendered) {
  HOTSET_TRY(std::vector<int32_t> ids,
             tokenizer.encode(rendered, {.parse_special = true, .drop_marks = true}));
  if (tokenizer.adds_bos() && (ids.empty() || ids.front() != *tokenizer.bos())) {
    ids.insert(ids.begin(), *tokenizer.bos());
  }
  return ids;
}

}  // namespace hotset::text
