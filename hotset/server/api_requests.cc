#include "hotset/server/api_requests.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/engine/run/sampler_settings.h"
#include "hotset/server/generation.h"
#include "hotset/server/json_fields.h"
#include "hotset/server/request_fields.h"

namespace hotset::server {
namespace {

constexpr size_t kMaxStops = 32;
constexpr size_t kMaxStopBytes = 4096;

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiResult<Json> parse_object(std::string_view body, Endpoint endpoint) {
  HOTSET_TRY(Json json, parse_json(body));
  if (!json.is_object()) {
    return std::unexpected(ApiError{
        .message = fmt::format("the body: found {}, expected an object", found_text(json))});
  }
  HOTSET_RETURN_IF_ERROR(check_fields(json, endpoint));
  return json;
}

// The value of a member; null if there is none.
const Json& member(const Json& object, std::string_view name) {
  static const Json none;
  const auto at = object.find(name);
  return at == object.end() ? none : *at;
}

// Without the members that are null: to a template they would be there.
void drop_nulls(Json& object) {
  for (auto at = object.begin(); at != object.end();) {
    at = at->is_null() ? object.erase(at) : std::next(at);
  }
}

// The id that a JSON number gives. Errors: it is none below `n_vocab`; `field` is named.
ApiResult<int32_t> token_id(const Json& value, const std::string& field, int32_t n_vocab) {
  if (value.is_number_unsigned() && value.get<uint64_t>() < static_cast<uint64_t>(n_vocab)) {
    return value.get<int32_t>();
  }
  return field_error(field, value, fmt::format("a token id below {}", n_vocab));
}

// --- What all endpoints that generate have

// OpenAI: {"42": -1.5}. Clients of ggml servers: [[42, -1.5], [43, false]].
void read_logit_bias(Fields& fields, int32_t n_vocab, std::vector<engine::LogitBias>& out) {
  const Json* value = fields.find("logit_bias");
  if (value == nullptr) return;
  const auto add = [&](const std::string& field, const Json& key, const Json& bias) {
    const auto id = token_id(key, field, n_vocab);
    if (!id) return fields.fail(id.error());
    if (bias == false) {
      out.push_back({.id = *id, .bias = -std::numeric_limits<float>::infinity()});
      return;
    }
    float number = 0;
    fields.item(field, bias, setting_ref(engine::logit_bias_setting(), number));
    out.push_back({.id = *id, .bias = number});
  };
  if (value->is_object()) {
    for (const auto& [key, bias] : value->items()) {
      uint32_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      const bool is_number = error == std::errc() && end == key.data() + key.size();
      add(fmt::format("logit_bias.{}", shortened(key)), is_number ? Json(id) : Json(key), bias);
    }
    return;
  }
  if (!value->is_array()) {
    return fields.fail("logit_bias", *value, "an object of token ids and numbers");
  }
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& pair = (*value)[i];
    const std::string field = fmt::format("logit_bias[{}]", i);
    if (!pair.is_array() || pair.size() != 2) {
      return fields.fail(field, pair, "a pair of a token id and a number");
    }
    add(field, pair[0], pair[1]);
  }
}

void read_seed(Fields& fields, std::optional<uint64_t>& out) {
  const Json* value = fields.find("seed");
  // Clients write -1 for "any". An unsigned number is asked first: compared with -1 the largest one
  // is equal.
  if (value != nullptr && !value->is_number_unsigned() && *value == -1) return;
  if (value != nullptr && value->is_number_unsigned()) {
    out = value->get<uint64_t>();
    return;
  }
  std::optional<int64_t> seed;
  fields.whole("seed", seed);
  if (seed) out = static_cast<uint64_t>(*seed);
}

// Which steps of the sampler are taken, in its order; what it does not have is off and may be
// named.
void read_samplers(Fields& fields, engine::SamplerOptions& s) {
  const Json* value = fields.find("samplers");
  if (value == nullptr) return;
  constexpr auto kOrder =
      std::to_array<std::string_view>({"penalties", "dry", "top_n_sigma", "top_k", "typ_p",
                                       "typical_p", "top_p", "min_p", "xtc", "temperature"});
  if (!value->is_array()) return fields.fail("samplers", *value, "an array of names");
  std::array<bool, kOrder.size()> is_on{};
  size_t next = 0;
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& name = (*value)[i];
    const auto at = std::find(kOrder.begin() + static_cast<std::ptrdiff_t>(next), kOrder.end(),
                              name.is_string() ? name.get_ref<const std::string&>() : "");
    if (at == kOrder.end()) {
      return fields.fail(fmt::format("samplers[{}]", i), name,
                         fmt::format("names of {} in this order", fmt::join(kOrder, ", ")));
    }
    next = static_cast<size_t>(at - kOrder.begin());
    is_on[next++] = true;
  }
  const auto has = [&](std::string_view name) {
    return is_on[std::ranges::find(kOrder, name) - kOrder.begin()];
  };
  if (!has("penalties")) {
    s.repeat_penalty = 1;
    s.presence_penalty = s.frequency_penalty = 0;
  }
  if (!has("top_k")) s.top_k = 0;
  if (!has("top_p")) s.top_p = 1;
  if (!has("min_p")) s.min_p = 0;
  if (!has("temperature")) s.temperature = 1;
}

void read_sampling(Fields& fields, const RequestDefaults& defaults, GenerationSettings& settings) {
  engine::SamplerOptions& s = settings.sampler;
  for (const auto& setting : engine::sampler_settings()) fields.setting(setting.of(s));
  read_samplers(fields, s);
  read_seed(fields, settings.seed);
  read_logit_bias(fields, defaults.n_vocab, s.logit_bias);
  fields.flag("ignore_eos", settings.ignore_end);
  fields.flag("cache_prompt", settings.reuse_prompt);
  fields.texts("stop", settings.stop, kMaxStops, kMaxStopBytes);
}

GenerationSettings settings_of(const RequestDefaults& defaults) {
  return {.sampler = defaults.sampler, .max_tokens = defaults.max_tokens};
}

void read_response_format(Fields& fields) {
  const Json* format = fields.find("response_format");
  if (format == nullptr) return;
  if (!format->is_object() || member(*format, "type") != "text") {
    fields.fail("response_format", *format, "{\"type\": \"text\"}, the only one supported");
  }
}

void read_stream(Fields& fields, bool& stream, bool& include_usage) {
  fields.flag("stream", stream);
  const Json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.fail("stream_options", *options, "an object");
  Fields inner(*options, "stream_options.");
  inner.flag("include_usage", include_usage);
  for (const auto& [name, value] : options->items()) {
    // Padding, which is no part of the answer.
    if (name == "include_usage" || name == "include_obfuscation" || value.is_null()) continue;
    if (value == false) continue;
    inner.fail({.message = fmt::format("stream_options.{}: found {}, but hotset does not support "
                                       "this field",
                                       shortened(name), found_text(value)),
                .param = "stream_options." + shortened(name),
                .code = "unsupported_parameter"});
  }
  if (!inner.status()) fields.fail(inner.status().error());
}

void read_choices(Fields& fields, const RequestDefaults& defaults, GenerationSettings& settings) {
  fields.integer("n", settings.n_choices, 1, defaults.max_choices);
}

// --- Chat

// What a message's "role" may be whatever the template; others only where the template names them.
constexpr auto kRoles = std::to_array<std::string_view>(
    {"system", "developer", "user", "assistant", "tool", "function", "ipython"});

// Text of a message's content: a string, or parts of the type text.
ApiResult<Json> content_text(const Json& content, const std::string& field) {
  if (content.is_null() || content.is_string()) return content;
  if (!content.is_array() || content.empty()) {
    return field_error(field, content, "a string or an array of parts");
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string name = fmt::format("{}[{}]", field, i);
    if (!part.is_object()) return field_error(name, part, "an object");
    const Json& type = member(part, "type");
    if (type != "text" && type != "input_text" && type != "refusal") {
      return field_error(name + ".type", type, "\"text\": the model reads nothing else");
    }
    const char* key = type == "refusal" ? "refusal" : "text";
    const Json& value = member(part, key);
    if (!value.is_string()) return field_error(fmt::format("{}.{}", name, key), value, "a string");
    if (!text.empty()) text += '\n';
    text += value.get_ref<const std::string&>();
  }
  return Json(std::move(text));
}

// Templates expect the arguments of a call as an object; OpenAI's API has them as text.
ApiResult<Json> tool_calls_of(const Json& calls, const std::string& field) {
  if (!calls.is_array()) return field_error(field, calls, "an array");
  Json result = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", field, i);
    if (!calls[i].is_object()) return field_error(name, calls[i], "an object");
    Json call = calls[i];
    drop_nulls(call);
    const Json function = member(call, "function");
    if (!function.is_object()) return field_error(name + ".function", function, "an object");
    drop_nulls(call["function"]);
    const Json& called = member(function, "name");
    if (!called.is_string()) return field_error(name + ".function.name", called, "a string");
    const Json& arguments = member(function, "arguments");
    if (arguments.is_null()) {
      call["function"]["arguments"] = Json::object();
    } else if (arguments.is_string()) {
      const std::string& text = arguments.get_ref<const std::string&>();
      auto parsed = hotset::parse_json(text.empty() ? "{}" : text);
      // What is no JSON stays the text that it is: models write such calls, and clients repeat
      // them.
      if (!parsed && parsed.error().code == ErrorCode::kUnsupported) {
        return field_error(name + ".function.arguments", arguments,
                           fmt::format("JSON nested at most {} levels deep", kMaxJsonDepth));
      }
      if (parsed && parsed->is_object()) call["function"]["arguments"] = *std::move(parsed);
    } else if (!arguments.is_object()) {
      return field_error(name + ".function.arguments", arguments, "JSON text");
    }
    result.push_back(std::move(call));
  }
  return result;
}

ApiResult<Json> message_of(const Json& message, const std::string& field) {
  if (!message.is_object()) return field_error(field, message, "an object");
  const Json& role = member(message, "role");
  if (!role.is_string() || role.get_ref<const std::string&>().empty()) {
    return field_error(field + ".role", role, kKnownRoles);
  }
  Json result = message;
  drop_nulls(result);
  const bool has_calls = !member(message, "tool_calls").is_null();
  const Json& given = member(message, "content");
  // A reply that only calls tools may have no parts.
  const bool is_empty_reply = role == "assistant" && has_calls && given == Json::array();
  HOTSET_TRY(Json content, content_text(is_empty_reply ? Json() : given, field + ".content"));
  if (content.is_null() && !(role == "assistant")) {
    return field_error(field + ".content", content, "a string or an array of parts");
  }
  result["content"] = content.is_null() ? Json("") : std::move(content);
  if (has_calls) {
    HOTSET_TRY(result["tool_calls"], tool_calls_of(message["tool_calls"], field + ".tool_calls"));
  }
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    const Json& value = member(message, name);
    if (!value.is_null() && !value.is_string()) {
      return field_error(fmt::format("{}.{}", field, name), value, "a string");
    }
  }
  return result;
}

ApiResult<std::string> messages_of(const Json& object, std::vector<NamedRole>& other_roles) {
  const Json& messages = member(object, "messages");
  if (!messages.is_array() || messages.empty()) {
    return field_error("messages", messages, "an array of messages");
  }
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    HOTSET_TRY(Json message, message_of(messages[i], fmt::format("messages[{}]", i)));
    std::string role = message["role"].get<std::string>();
    if (!std::ranges::contains(kRoles, role)) {
      other_roles.push_back(
          {.field = fmt::format("messages[{}].role", i), .role = std::move(role)});
    }
    result.push_back(std::move(message));
  }
  return to_text(result);
}

ApiResult<Json> checked_tools(Json tools) {
  if (!tools.is_array()) return field_error("tools", tools, "an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) return field_error(name, tools[i], "an object");
    drop_nulls(tools[i]);
    const Json& type = member(tools[i], "type");
    if (!type.is_null() && type != "function") {
      return field_error(name + ".type", type, "\"function\"");
    }
    const Json& function = member(tools[i], "function");
    if (!function.is_object()) return field_error(name + ".function", function, "an object");
    drop_nulls(tools[i]["function"]);
    const Json& called = member(function, "name");
    if (!called.is_string()) return field_error(name + ".function.name", called, "a string");
    const Json& parameters = member(function, "parameters");
    if (!parameters.is_null() && !parameters.is_object()) {
      return field_error(name + ".function.parameters", parameters, "an object");
    }
  }
  return tools;
}

// The tools that the model is shown: none, all, or the one that was chosen.
ApiResult<std::string> tools_of(const Json& object) {
  const Json& given = member(object, "tools");
  HOTSET_TRY(Json tools, checked_tools(given.is_null() ? Json::array() : given));
  const Json& choice = member(object, "tool_choice");
  constexpr std::string_view kExpected =
      "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  if (choice.is_object()) {
    const Json& function = member(choice, "function");
    const Json name = function.is_object() ? member(function, "name") : Json();
    if (!name.is_string()) return field_error("tool_choice", choice, kExpected);
    Json chosen = Json::array();
    for (const Json& tool : tools) {
      if (tool["function"]["name"] == name) chosen.push_back(tool);
    }
    if (chosen.empty()) return field_error("tool_choice", name, "the name of one of the tools");
    tools = std::move(chosen);
  } else if (!choice.is_null()) {
    if (choice != "none" && choice != "auto" && choice != "required") {
      return field_error("tool_choice", choice, kExpected);
    }
    if (choice == "required" && tools.empty()) {
      return field_error("tool_choice", choice, "none or auto: there are no tools");
    }
    if (choice == "none") return std::string();
  }
  return tools.empty() ? std::string() : to_text(tools);
}

ApiResult<std::string> variables_of(const Json& object, Fields& fields) {
  Json variables = Json::object();
  if (const Json* given = fields.find("chat_template_kwargs")) {
    if (!given->is_object()) return field_error("chat_template_kwargs", *given, "an object");
    variables = *given;
  }
  bool thinks = false;
  fields.flag("enable_thinking", thinks);
  if (!fields.status()) return std::unexpected(fields.status().error());
  if (fields.find("enable_thinking") != nullptr && !variables.contains("enable_thinking")) {
    variables["enable_thinking"] = thinks;
  }
  for (const char* name : {"reasoning_effort", "tool_choice"}) {
    const Json& value = member(object, name);
    if (!value.is_string() || variables.contains(name)) continue;
    variables[name] = value;
  }
  std::string effort;
  fields.text("reasoning_effort", effort);
  if (!fields.status()) return std::unexpected(fields.status().error());
  return variables.empty() ? std::string() : to_text(variables);
}

void read_chat_logprobs(Fields& fields, int32_t& out) {
  bool wanted = false;
  fields.flag("logprobs", wanted);
  int32_t n_top = 0;
  fields.integer("top_logprobs", n_top, 0, kMaxLogprobs);
  if (n_top > 0 && !wanted) {
    fields.fail({.message = "top_logprobs: found without logprobs, expected \"logprobs\": true",
                 .param = "top_logprobs"});
  }
  if (wanted) out = n_top;
}

// --- Prompts

// Ids that JSON numbers give.
ApiResult<std::vector<int32_t>> ids_of(const Json& array, const std::string& field,
                                       int32_t n_vocab) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < array.size(); ++i) {
    HOTSET_TRY(const int32_t id, token_id(array[i], fmt::format("{}[{}]", field, i), n_vocab));
    ids.push_back(id);
  }
  return ids;
}

// A string or ids.
ApiResult<Prompt> prompt_of(const Json& value, const std::string& field, int32_t n_vocab) {
  if (value.is_string()) return Prompt{.field = field, .content = value.get<std::string>()};
  if (!value.is_array() || value.empty()) {
    return field_error(field, value, "a string or an array of token ids");
  }
  HOTSET_TRY(std::vector<int32_t> ids, ids_of(value, field, n_vocab));
  return Prompt{.field = field, .content = std::move(ids)};
}

// A string, ids, or an array of such.
ApiResult<std::vector<Prompt>> prompts_of(const Json& object, int32_t n_vocab) {
  const Json& value = member(object, "prompt");
  std::vector<Prompt> prompts;
  const bool is_list = value.is_array() && !value.empty() && !value[0].is_number();
  if (!is_list) {
    if (!value.is_string() && (!value.is_array() || value.empty())) {
      return field_error("prompt", value, "a string, an array of token ids, or an array of these");
    }
    HOTSET_TRY(Prompt prompt, prompt_of(value, "prompt", n_vocab));
    prompts.push_back(std::move(prompt));
    return prompts;
  }
  for (size_t i = 0; i < value.size(); ++i) {
    HOTSET_TRY(Prompt prompt, prompt_of(value[i], fmt::format("prompt[{}]", i), n_vocab));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(std::string_view body, const RequestDefaults& defaults) {
  HOTSET_TRY(const Json object, parse_object(body, Endpoint::kChat));
  ChatRequest request{.settings = settings_of(defaults)};
  Fields fields(object);
  fields.text("model", request.model);
  read_sampling(fields, defaults, request.settings);
  read_response_format(fields);
  read_choices(fields, defaults, request.settings);
  const SettingRef most = setting_ref(engine::predict_setting(), request.settings.max_tokens);
  fields.setting(most);
  fields.setting("max_completion_tokens", most);
  read_chat_logprobs(fields, request.settings.n_logprobs);
  read_stream(fields, request.stream, request.include_usage);
  bool many_calls = true;
  fields.flag("parallel_tool_calls", many_calls);
  request.one_call = !many_calls;
  fields.flag("add_generation_prompt", request.add_generation_prompt);
  std::string reasoning_format = "auto";
  fields.text("reasoning_format", reasoning_format);
  if (reasoning_format != "auto" && reasoning_format != "none" && reasoning_format != "deepseek") {
    fields.fail("reasoning_format", Json(reasoning_format), "auto, deepseek or none");
  }
  request.splits_reasoning = reasoning_format != "none";
  if (!fields.status()) return std::unexpected(fields.status().error());
  HOTSET_TRY(request.messages, messages_of(object, request.other_roles));
  HOTSET_TRY(request.tools, tools_of(object));
  HOTSET_TRY(request.variables, variables_of(object, fields));
  return request;
}

ApiResult<CompletionRequest> parse_completion_request(std::string_view body,
                                                      const RequestDefaults& defaults) {
  HOTSET_TRY(const Json object, parse_object(body, Endpoint::kCompletions));
  CompletionRequest request{.settings = settings_of(defaults)};
  Fields fields(object);
  fields.text("model", request.model);
  read_sampling(fields, defaults, request.settings);
  read_response_format(fields);
  read_choices(fields, defaults, request.settings);
  fields.setting(setting_ref(engine::predict_setting(), request.settings.max_tokens));
  fields.integer("logprobs", request.settings.n_logprobs, 0, kMaxLogprobs);
  fields.flag("echo", request.echo);
  request.settings.prompt_logprobs = request.echo && request.settings.n_logprobs >= 0;
  read_stream(fields, request.stream, request.include_usage);
  int32_t best_of = request.settings.n_choices;
  fields.integer("best_of", best_of, request.settings.n_choices, request.settings.n_choices);
  if (!fields.status()) return std::unexpected(fields.status().error());
  HOTSET_TRY(request.prompts, prompts_of(object, defaults.n_vocab));
  const size_t n_choices = request.prompts.size() * static_cast<size_t>(request.settings.n_choices);
  if (std::cmp_greater(n_choices, defaults.max_choices)) {
    return std::unexpected(ApiError{
        .message =
            fmt::format("prompt: found {} prompts with {} choices each, expected at most {} "
                        "together",
                        request.prompts.size(), request.settings.n_choices, defaults.max_choices),
        .param = "prompt"});
  }
  return request;
}

ApiResult<CompletionRequest> parse_native_request(std::string_view body,
                                                  const RequestDefaults& defaults) {
  HOTSET_TRY(const Json object, parse_object(body, Endpoint::kNative));
  CompletionRequest request{.settings = settings_of(defaults)};
  Fields fields(object);
  fields.text("model", request.model);
  read_sampling(fields, defaults, request.settings);
  read_response_format(fields);
  const SettingRef most = setting_ref(engine::predict_setting(), request.settings.max_tokens);
  fields.setting(most);
  // Here it is the name that clients of ggml servers give, and wins.
  fields.setting("n_predict", most);
  int32_t n_probs = 0;
  fields.integer("n_probs", n_probs, 0, kMaxLogprobs);
  if (n_probs > 0) request.settings.n_logprobs = n_probs;
  fields.flag("stream", request.stream);
  fields.flag("return_tokens", request.return_tokens);
  if (!fields.status()) return std::unexpected(fields.status().error());
  HOTSET_TRY(request.prompts, prompts_of(object, defaults.n_vocab));
  if (request.prompts.size() != 1) {
    return field_error("prompt", member(object, "prompt"), "one string or one array of token ids");
  }
  return request;
}

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  HOTSET_TRY(const Json object, parse_object(body, Endpoint::kTokenize));
  TokenizeRequest request;
  Fields fields(object);
  fields.text("content", request.content);
  fields.flag("add_special", request.add_special);
  fields.flag("parse_special", request.parse_special);
  fields.flag("with_pieces", request.with_pieces);
  if (fields.status() && fields.find("content") == nullptr) {
    return field_error("content", Json(), "a string");
  }
  if (!fields.status()) return std::unexpected(fields.status().error());
  return request;
}

ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body, int32_t n_vocab) {
  HOTSET_TRY(const Json object, parse_object(body, Endpoint::kDetokenize));
  const Json& tokens = member(object, "tokens");
  if (!tokens.is_array()) return field_error("tokens", tokens, "an array of token ids");
  return ids_of(tokens, "tokens", n_vocab);
}

}  // namespace hotset::server
