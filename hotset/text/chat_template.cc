#include "hotset/text/chat_template.h"

#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "hotset/text/embedded_files.h"
#include "hotset/text/text_marks.h"

namespace hotset::text {
namespace {

using nlohmann::ordered_json;

constexpr const char* kObject = "hotset";  // what the scripts define

// Of messages and tools. Far below what would be deep for the parser or the sandbox.
constexpr int kMaxJsonDepth = 200;
// Integers beyond are not whole numbers of JavaScript's.
constexpr int64_t kMaxScriptInteger = int64_t{1} << 53;

std::string dump(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// What values.js makes a number of: the script's own JSON would forget that 1.0 is no integer.
ordered_json exact_number(std::string digits) {
  return ordered_json::object({{std::string(kReservedMark), std::move(digits)}});
}

// A copy of `json` with marks in all strings. Errors: kInvalidArgument: nested too deeply.
Result<ordered_json> with_marks(const ordered_json& json, const TextMarker& marker,
                                std::string_view what, int depth = 0) {
  if (depth > kMaxJsonDepth) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found more than {} levels, expected fewer",
                      what, kMaxJsonDepth);
  }
  if (json.is_string()) return marker.marked(json.get_ref<const std::string&>());
  if (json.is_number_float()) return exact_number(json.dump());
  if (json.is_number_unsigned() ? json.get<uint64_t>() > uint64_t{kMaxScriptInteger}
                                : json.is_number() && json.get<int64_t>() < -kMaxScriptInteger) {
    return exact_number(json.dump());
  }
  if (!json.is_structured()) return json;
  ordered_json copy = json.is_array() ? ordered_json::array() : ordered_json::object();
  for (const auto& [key, value] : json.items()) {
    HOTSET_TRY(ordered_json marked, with_marks(value, marker, what, depth + 1));
    if (json.is_array()) {
      copy.push_back(std::move(marked));
    } else {
      copy[marker.marked(key)] = std::move(marked);
    }
  }
  return copy;
}

Result<ordered_json> parse(std::string_view text, std::string_view what, bool is_array) {
  ordered_json json = ordered_json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found no JSON", what);
  }
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
      ordered_json parsed =
          ordered_json::parse(arguments->get_ref<const std::string&>(), nullptr, false);
      if (parsed.is_object()) *arguments = std::move(parsed);
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
  const ordered_json json = ordered_json::parse(result, nullptr, false);
  if (!json.is_object()) {
    return make_error(ErrorCode::kInternal, "{}: the scripts gave no result", name);
  }
  if (json.contains("text")) return json["text"].get<std::string>();
  const std::string kind = json.value("kind", "internal");
  std::string message = json.value("message", "");
  ErrorCode code = ErrorCode::kInternal;
  if (kind == "syntax") code = ErrorCode::kCorrupt;
  if (kind == "template" || kind == "refused") code = ErrorCode::kInvalidArgument;
  if (kind == "refused") message = "the template refuses the messages: " + message;
  return template_error(code, name, json.value("line", int64_t{0}), message);
}

// The scripts with the template in them.
Result<std::unique_ptr<ScriptRuntime>> start(const std::string& source,
                                             const ChatTemplateOptions& options) {
  HOTSET_TRY(auto runtime, ScriptRuntime::create(options.limits));
  std::string library = "globalThis.jinja = (function () { const module = { exports: {} };\n";
  library += "let exports = module.exports;\n";
  for (const EmbeddedFile& file : jinja_library()) library += file.content;
  library += "\nreturn module.exports; })();";
  Status loaded = runtime->load("jinja.js", library);
  for (const EmbeddedFile& file : jinja_scripts()) {
    if (loaded) loaded = runtime->load(file.name, file.content);
  }
  if (loaded) loaded = runtime->seal();
  if (!loaded) return add_context(std::move(loaded).error(), options.name);
  const auto compiled = runtime->call(kObject, "compile", source);
  if (!compiled) return add_context(compiled.error(), options.name);
  HOTSET_RETURN_IF_ERROR(read_result(*compiled, options.name));
  return runtime;
}

}  // namespace

struct ChatTemplate::State {
  std::string source;
  ChatTemplateOptions options;
  TextMarker marker;
  std::mutex mutex;
  std::unique_ptr<ScriptRuntime> runtime;  // null where the last rendering hit a limit
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

const std::string& ChatTemplate::name() const { return state_->options.name; }
const std::string& ChatTemplate::source() const { return state_->source; }

Result<ChatTemplate> ChatTemplate::create(std::string source, ChatTemplateOptions options) {
  HOTSET_TRY(auto runtime, start(source, options));
  TextMarker marker(options.special_tokens);
  auto state = std::make_unique<State>(std::move(source), std::move(options), std::move(marker));
  state->runtime = std::move(runtime);
  return ChatTemplate(std::move(state));
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
  HOTSET_TRY(ordered_json variables, with_marks(given, state_->marker, "messages"));
  // The template's own: no marks.
  variables["bos_token"] = options.bos_token;
  variables["eos_token"] = options.eos_token;
  variables["add_generation_prompt"] = input.add_generation_prompt;
  const std::string argument =
      dump(ordered_json{{"variables", std::move(variables)}, {"now", time_fields(input.now)}});

  const std::scoped_lock lock(state_->mutex);
  if (!state_->runtime) {
    HOTSET_TRY(state_->runtime, start(state_->source, options));
  }
  const auto result = state_->runtime->call(kObject, "render", argument);
  if (result) return read_result(*result, options.name);
  int64_t line = 0;
  if (const auto where = state_->runtime->call(kObject, "where", "")) {
    line = std::strtoll(where->c_str(), nullptr, 10);
  }
  if (state_->runtime->is_spent()) state_->runtime.reset();
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

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer, std::string_view rendered) {
  HOTSET_TRY(std::vector<int32_t> ids,
             tokenizer.encode(rendered, {.parse_special = true, .drop_marks = true}));
  if (tokenizer.adds_bos() && (ids.empty() || ids.front() != *tokenizer.bos())) {
    ids.insert(ids.begin(), *tokenizer.bos());
  }
  return ids;
}

}  // namespace hotset::text
