#include "hotset/server/api_requests.h"

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/server/generation.h"
#include "hotset/server/json_fields.h"

namespace hotset::server {
namespace {

constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStops = 32;

std::string to_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

ApiResult<Json> parse_object(std::string_view body) {
  HOTSET_TRY(Json json, parse_json(body));
  if (json.is_object()) return json;
  return std::unexpected(
      ApiError{.message = fmt::format("the body: found {}, expected an object", found_text(json))});
}

// --- What all endpoints that generate have

// OpenAI: {"42": -1.5}. Clients of ggml servers: [[42, -1.5], [43, false]].
void read_logit_bias(Fields& fields, std::vector<engine::LogitBias>& out) {
  const Json* value = fields.find("logit_bias");
  if (value == nullptr) return;
  constexpr std::string_view kExpected = "an object of token ids and numbers from -100 to 100";
  const auto add = [&](int64_t id, const Json& bias) {
    if (bias == false) {
      out.push_back(
          {.id = static_cast<int32_t>(id), .bias = -std::numeric_limits<float>::infinity()});
      return;
    }
    const double number = bias.is_number() ? bias.get<double>() : 1e9;
    if (!(number >= -100 && number <= 100)) return fields.fail("logit_bias", bias, kExpected);
    out.push_back({.id = static_cast<int32_t>(id), .bias = static_cast<float>(number)});
  };
  if (value->is_object()) {
    for (const auto& [key, bias] : value->items()) {
      int32_t id = -1;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0) {
        return fields.fail("logit_bias", Json(key), kExpected);
      }
      add(id, bias);
    }
    return;
  }
  if (!value->is_array()) return fields.fail("logit_bias", *value, kExpected);
  for (const Json& pair : *value) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
                         pair[0].get<uint64_t>() <= uint64_t{kMostInt32};
    if (!is_pair) return fields.fail("logit_bias", pair, "pairs of a token id and a number");
    add(pair[0].get<int64_t>(), pair[1]);
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
  fields.integer("seed", seed, std::numeric_limits<int64_t>::min(),
                 std::numeric_limits<int64_t>::max());
  if (seed) out = static_cast<uint64_t>(*seed);
}

void read_sampling(Fields& fields, GenerationSettings& settings) {
  engine::SamplerOptions& s = settings.sampler;
  fields.number("temperature", s.temperature, 0, 100);
  fields.number("top_p", s.top_p, 0, 1);
  fields.number("min_p", s.min_p, 0, 1);
  fields.number("presence_penalty", s.presence_penalty, -100, 100);
  fields.number("frequency_penalty", s.frequency_penalty, -100, 100);
  fields.number("repeat_penalty", s.repeat_penalty, 1e-3, 100);
  fields.integer("repeat_last_n", s.repeat_last_n, -1, 1 << 24);
  int32_t top_k = s.top_k;
  fields.integer("top_k", top_k, -1, kMostInt32);
  s.top_k = top_k == -1 ? 0 : top_k;
  read_seed(fields, settings.seed);
  read_logit_bias(fields, s.logit_bias);
  fields.flag("ignore_eos", settings.ignore_end);
  fields.flag("cache_prompt", settings.reuse_prompt);
  fields.texts("stop", settings.stop, kMaxStops);
}

GenerationSettings settings_of(const RequestDefaults& defaults) {
  return {.sampler = defaults.sampler, .max_tokens = defaults.max_tokens};
}

// Fields that would change what comes out, and that nothing here does.
void refuse_unsupported(Fields& fields, std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    const Json* value = fields.find(name);
    if (value == nullptr) continue;
    if ((value->is_string() && value->get_ref<const std::string&>().empty()) || *value == false ||
        ((value->is_array() || value->is_object()) && value->empty())) {
      continue;
    }
    fields.fail({.message = fmt::format("{}: found {}, but hotset does not support this field",
                                        name, found_text(*value)),
                 .param = std::string(name),
                 .code = "unsupported_parameter"});
  }
  const Json* format = fields.find("response_format");
  if (format == nullptr) return;
  const bool is_text = format->is_object() && format->value("type", Json()) == "text";
  if (!is_text) {
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
  if (!inner.status()) fields.fail(inner.status().error());
}

void read_choices(Fields& fields, const RequestDefaults& defaults, GenerationSettings& settings) {
  fields.integer("n", settings.n_choices, 1, defaults.max_choices);
}

// --- Chat

// Text of a message's content: a string, or parts of the type text.
ApiResult<Json> content_text(const Json& content, const std::string& field) {
  if (content.is_null() || content.is_string()) return content;
  if (!content.is_array()) return field_error(field, content, "a string or an array of parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string name = fmt::format("{}[{}]", field, i);
    if (!part.is_object()) return field_error(name, part, "an object");
    const Json type = part.value("type", Json());
    if (type != "text" && type != "input_text" && type != "refusal") {
      return field_error(name + ".type", type, "\"text\": the model reads nothing else");
    }
    const char* key = type == "refusal" ? "refusal" : "text";
    const Json value = part.value(key, Json());
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
    const Json function = call.value("function", Json());
    if (!function.is_object()) return field_error(name + ".function", function, "an object");
    const Json called = function.value("name", Json());
    if (!called.is_string()) return field_error(name + ".function.name", called, "a string");
    const Json arguments = function.value("arguments", Json("{}"));
    if (arguments.is_string()) {
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
  const Json role = message.value("role", Json());
  if (!role.is_string() || role.get_ref<const std::string&>().empty()) {
    return field_error(field + ".role", role, "system, developer, user, assistant or tool");
  }
  Json result = message;
  HOTSET_TRY(Json content, content_text(message.value("content", Json()), field + ".content"));
  const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
  if (content.is_null() && !(role == "assistant")) {
    return field_error(field + ".content", content, "a string or an array of parts");
  }
  result["content"] = content.is_null() ? Json("") : std::move(content);
  if (has_calls) {
    HOTSET_TRY(result["tool_calls"], tool_calls_of(message["tool_calls"], field + ".tool_calls"));
  }
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    const Json value = message.value(name, Json());
    if (!value.is_null() && !value.is_string()) {
      return field_error(fmt::format("{}.{}", field, name), value, "a string");
    }
  }
  return result;
}

ApiResult<std::string> messages_of(const Json& object) {
  const Json messages = object.value("messages", Json());
  if (!messages.is_array() || messages.empty()) {
    return field_error("messages", messages, "an array of messages");
  }
  Json result = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    HOTSET_TRY(Json message, message_of(messages[i], fmt::format("messages[{}]", i)));
    result.push_back(std::move(message));
  }
  return to_text(result);
}

ApiResult<Json> checked_tools(const Json& tools) {
  if (!tools.is_array()) return field_error("tools", tools, "an array");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string name = fmt::format("tools[{}]", i);
    if (!tools[i].is_object()) return field_error(name, tools[i], "an object");
    const Json type = tools[i].value("type", Json("function"));
    if (type != "function") return field_error(name + ".type", type, "\"function\"");
    const Json function = tools[i].value("function", Json());
    if (!function.is_object()) return field_error(name + ".function", function, "an object");
    const Json called = function.value("name", Json());
    if (!called.is_string()) return field_error(name + ".function.name", called, "a string");
    const Json parameters = function.value("parameters", Json::object());
    if (!parameters.is_object()) {
      return field_error(name + ".function.parameters", parameters, "an object");
    }
  }
  return tools;
}

// The tools that the model is shown: none, all, or the one that was chosen.
ApiResult<std::string> tools_of(const Json& object) {
  const Json given = object.value("tools", Json());
  HOTSET_TRY(Json tools, checked_tools(given.is_null() ? Json::array() : given));
  const Json choice = object.value("tool_choice", Json());
  constexpr std::string_view kExpected =
      "none, auto, required or {\"type\": \"function\", \"function\": {\"name\": ...}}";
  if (choice.is_object()) {
    const Json function = choice.value("function", Json());
    const Json name = function.is_object() ? function.value("name", Json()) : Json();
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
  for (const char* name : {"reasoning_effort", "tool_choice"}) {
    const Json value = object.value(name, Json());
    if (value.is_string() && !variables.contains(name)) variables[name] = value;
  }
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
ApiResult<std::vector<int32_t>> ids_of(const Json& array, const std::string& field) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < array.size(); ++i) {
    if (!array[i].is_number_unsigned() || array[i].get<uint64_t>() > uint64_t{kMostInt32}) {
      return field_error(fmt::format("{}[{}]", field, i), array[i], "a token id");
    }
    ids.push_back(array[i].get<int32_t>());
  }
  return ids;
}

// A string, ids, or an array of such.
ApiResult<std::vector<Prompt>> prompts_of(const Json& value) {
  constexpr std::string_view kExpected = "a string, an array of token ids, or an array of these";
  std::vector<Prompt> prompts;
  if (value.is_string()) {
    prompts.emplace_back(value.get<std::string>());
    return prompts;
  }
  if (!value.is_array() || value.empty()) return field_error("prompt", value, kExpected);
  if (value[0].is_number()) {
    HOTSET_TRY(std::vector<int32_t> ids, ids_of(value, "prompt"));
    prompts.emplace_back(std::move(ids));
    return prompts;
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string field = fmt::format("prompt[{}]", i);
    if (value[i].is_string()) {
      prompts.emplace_back(value[i].get<std::string>());
    } else if (value[i].is_array()) {
      HOTSET_TRY(std::vector<int32_t> ids, ids_of(value[i], field));
      prompts.emplace_back(std::move(ids));
    } else {
      return field_error(field, value[i], "a string or an array of token ids");
    }
  }
  return prompts;
}

}  // namespace

ApiResult<ChatRequest> parse_chat_request(std::string_view body, const RequestDefaults& defaults) {
  HOTSET_TRY(const Json object, parse_object(body));
  ChatRequest request{.settings = settings_of(defaults)};
  Fields fields(object);
  fields.text("model", request.model);
  read_sampling(fields, request.settings);
  read_choices(fields, defaults, request.settings);
  fields.integer("max_tokens", request.settings.max_tokens, -1, kMostInt32);
  fields.integer("max_completion_tokens", request.settings.max_tokens, -1, kMostInt32);
  read_chat_logprobs(fields, request.settings.n_logprobs);
  read_stream(fields, request.stream, request.include_usage);
  refuse_unsupported(fields, {"functions", "function_call", "audio", "grammar", "json_schema",
                              "prediction", "web_search_options"});
  fields.flag("add_generation_prompt", request.add_generation_prompt);
  std::string reasoning_format = "auto";
  fields.text("reasoning_format", reasoning_format);
  if (reasoning_format != "auto" && reasoning_format != "none" && reasoning_format != "deepseek") {
    fields.fail("reasoning_format", Json(reasoning_format), "auto, deepseek or none");
  }
  request.splits_reasoning = reasoning_format != "none";
  if (!fields.status()) return std::unexpected(fields.status().error());
  HOTSET_TRY(request.messages, messages_of(object));
  HOTSET_TRY(request.tools, tools_of(object));
  HOTSET_TRY(request.variables, variables_of(object, fields));
  return request;
}

ApiResult<CompletionRequest> parse_completion_request(std::string_view body,
                                                      const RequestDefaults& defaults) {
  HOTSET_TRY(const Json object, parse_object(body));
  CompletionRequest request{.settings = settings_of(defaults)};
  // OpenAI's own default for this endpoint; it has no "until the end".
  Fields fields(object);
  fields.text("model", request.model);
  read_sampling(fields, request.settings);
  read_choices(fields, defaults, request.settings);
  fields.integer("max_tokens", request.settings.max_tokens, -1, kMostInt32);
  fields.integer("logprobs", request.settings.n_logprobs, 0, kMaxLogprobs);
  fields.flag("echo", request.echo);
  read_stream(fields, request.stream, request.include_usage);
  refuse_unsupported(fields, {"suffix", "grammar", "json_schema"});
  int32_t best_of = request.settings.n_choices;
  fields.integer("best_of", best_of, request.settings.n_choices, request.settings.n_choices);
  if (!fields.status()) return std::unexpected(fields.status().error());
  HOTSET_TRY(request.prompts, prompts_of(object.value("prompt", Json())));
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
  HOTSET_TRY(const Json object, parse_object(body));
  CompletionRequest request{.settings = settings_of(defaults)};
  Fields fields(object);
  read_sampling(fields, request.settings);
  fields.integer("max_tokens", request.settings.max_tokens, -1, kMostInt32);
  fields.integer("n_predict", request.settings.max_tokens, -1, kMostInt32);
  int32_t n_probs = 0;
  fields.integer("n_probs", n_probs, 0, kMaxLogprobs);
  if (n_probs > 0) request.settings.n_logprobs = n_probs;
  fields.flag("stream", request.stream);
  fields.flag("return_tokens", request.return_tokens);
  refuse_unsupported(fields, {"grammar", "json_schema"});
  if (!fields.status()) return std::unexpected(fields.status().error());
  HOTSET_TRY(request.prompts, prompts_of(object.value("prompt", Json())));
  if (request.prompts.size() != 1) {
    return field_error("prompt", object["prompt"], "one string or one array of token ids");
  }
  return request;
}

ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body) {
  HOTSET_TRY(const Json object, parse_object(body));
  TokenizeRequest request;
  Fields fields(object);
  fields.text("content", request.content);
  fields.flag("add_special", request.add_special);
  fields.flag("parse_special", request.parse_special);
  fields.flag("with_pieces", request.with_pieces);
  if (fields.status() && fields.find("content") == nullptr) {
    return field_error("content", object.value("content", Json()), "a string");
  }
  if (!fields.status()) return std::unexpected(fields.status().error());
  return request;
}

ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body) {
  HOTSET_TRY(const Json object, parse_object(body));
  const Json tokens = object.value("tokens", Json());
  if (!tokens.is_array()) return field_error("tokens", tokens, "an array of token ids");
  return ids_of(tokens, "tokens");
}

}  // namespace hotset::server
