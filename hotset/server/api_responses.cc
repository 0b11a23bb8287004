#include "hotset/server/api_responses.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace hotset::server {
namespace {

double per_second(int32_t n, double us) { return us > 0 ? n * 1e6 / us : 0; }

// A logprob of minus infinity is no JSON.
double finite(float logprob) { return std::max(static_cast<double>(logprob), -9999.0); }

Json byte_array(const std::string& bytes) {
  Json array = Json::array();
  for (const char c : bytes) array.push_back(static_cast<unsigned char>(c));
  return array;
}

Json chat_logprobs(const std::vector<ReplyToken>& tokens) {
  Json content = Json::array();
  for (const ReplyToken& t : tokens) {
    Json top = Json::array();
    for (size_t i = 0; i < t.token.top.size(); ++i) {
      top.push_back({{"token", t.top_bytes[i]},
                     {"logprob", finite(t.token.top[i].logprob)},
                     {"bytes", byte_array(t.top_bytes[i])}});
    }
    content.push_back({{"token", t.bytes},
                       {"logprob", finite(t.token.logprob)},
                       {"bytes", byte_array(t.bytes)},
                       {"top_logprobs", std::move(top)}});
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// By the tokens' texts. Of tokens with the same text, as bytes that are no UTF-8 have, the most
// probable one counts, which is the first: no key may come twice.
Json top_by_text(const ReplyToken& t) {
  Json top = Json::object();
  for (size_t i = 0; i < t.token.top.size(); ++i) {
    top.emplace(valid_text(t.top_bytes[i]), finite(t.token.top[i].logprob));
  }
  return top;
}

Json completion_logprobs(const std::vector<ReplyToken>& tokens) {
  Json texts = Json::array();
  Json logprobs = Json::array();
  Json tops = Json::array();
  Json offsets = Json::array();
  for (const ReplyToken& t : tokens) {
    texts.push_back(t.bytes);
    logprobs.push_back(t.has_logprob ? Json(finite(t.token.logprob)) : Json());
    tops.push_back(t.has_logprob ? top_by_text(t) : Json());
    offsets.push_back(t.text_offset);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

Json native_logprobs(const std::vector<ReplyToken>& tokens) {
  Json list = Json::array();
  for (const ReplyToken& t : tokens) {
    Json top = Json::array();
    for (size_t i = 0; i < t.token.top.size(); ++i) {
      top.push_back({{"id", t.token.top[i].id},
                     {"token", t.top_bytes[i]},
                     {"bytes", byte_array(t.top_bytes[i])},
                     {"logprob", finite(t.token.top[i].logprob)}});
    }
    list.push_back({{"id", t.token.id},
                    {"token", t.bytes},
                    {"bytes", byte_array(t.bytes)},
                    {"logprob", finite(t.token.logprob)},
                    {"top_logprobs", std::move(top)}});
  }
  return list;
}

Json tool_call_json(const text::ToolCall& call, size_t index, bool with_index) {
  Json json = Json::object();
  if (with_index) json["index"] = index;
  json["id"] = call.id;
  json["type"] = "function";
  json["function"] = {{"name", call.name}, {"arguments", call.arguments}};
  return json;
}

Json head_json(const AnswerHead& head, std::string_view object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_s},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

std::vector<ChoiceResult> results_of(const std::vector<ChoiceText>& choices) {
  std::vector<ChoiceResult> results;
  for (const ChoiceText& choice : choices) results.push_back(choice.result);
  return results;
}

ExpertFigures experts_of(const std::vector<ChoiceText>& choices) {
  ExpertFigures sum;
  for (const ChoiceText& choice : choices) sum.add({}, choice.result.experts, 1);
  return sum;
}

std::string_view stop_type(const ChoiceResult& result) {
  switch (result.reason) {
    case StopReason::kEnd:
      return "eos";
    case StopReason::kStop:
      return "word";
    default:
      return "limit";
  }
}

}  // namespace

void ChoiceText::add(const ReplyEvent& event) {
  content += event.content;
  reasoning += event.reasoning;
  tool_calls.insert(tool_calls.end(), event.tool_calls.begin(), event.tool_calls.end());
  tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  if (!event.end) return;
  result = *event.end;
  stop = event.stop;
}

std::string_view finish_reason(const ChoiceResult& result, bool called_tools) {
  if (result.reason == StopReason::kLength || result.reason == StopReason::kContext) {
    return "length";
  }
  return called_tools ? "tool_calls" : "stop";
}

Json timings_json(const ChoiceResult& r) {
  const int32_t n_computed = r.n_prompt - r.n_reused;
  // The first token comes from the prompt's logits, so one step fewer was computed.
  const int32_t n_steps = std::max(0, r.n_generated - 1);
  return {{"queue_ms", r.queue_us / 1e3},
          {"cache_n", r.n_reused},
          {"prompt_n", n_computed},
          {"prompt_ms", r.prompt_us / 1e3},
          {"prompt_per_token_ms", n_computed > 0 ? r.prompt_us / 1e3 / n_computed : 0},
          {"prompt_per_second", per_second(n_computed, r.prompt_us)},
          {"predicted_n", r.n_generated},
          {"predicted_ms", r.generate_us / 1e3},
          {"predicted_per_token_ms", n_steps > 0 ? r.generate_us / 1e3 / n_steps : 0},
          {"predicted_per_second", per_second(n_steps, r.generate_us)}};
}

Json expert_cache_json(const ExpertFigures& e) {
  return {{"experts", std::round(e.selected)},  {"hits", std::round(e.hits)},
          {"uploads", std::round(e.uploads)},   {"cpu", std::round(e.cpu)},
          {"streamed", std::round(e.streamed)}, {"hit_rate", e.hit_rate()}};
}

Json usage_json(const std::vector<ChoiceResult>& results, int32_t n_choices) {
  int64_t n_prompt = 0;
  int64_t n_reused = 0;
  int64_t n_generated = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    n_generated += results[i].n_generated;
    if (i % static_cast<size_t>(n_choices) != 0) continue;
    n_prompt += results[i].n_prompt;
    n_reused += results[i].n_reused;
  }
  return {{"prompt_tokens", n_prompt},
          {"completion_tokens", n_generated},
          {"total_tokens", n_prompt + n_generated},
          {"prompt_tokens_details", {{"cached_tokens", n_reused}}}};
}

Json chat_answer(const AnswerHead& head, const std::vector<ChoiceText>& choices, bool logprobs) {
  Json answer = head_json(head, "chat.completion");
  Json list = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceText& choice = choices[i];
    const bool calls = !choice.tool_calls.empty();
    Json message = {{"role", "assistant"}, {"content", choice.content}};
    if (calls && choice.content.empty()) message["content"] = nullptr;
    if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
    message["refusal"] = nullptr;
    if (calls) {
      message["tool_calls"] = Json::array();
      for (size_t c = 0; c < choice.tool_calls.size(); ++c) {
        message["tool_calls"].push_back(tool_call_json(choice.tool_calls[c], c, false));
      }
    }
    list.push_back({{"index", i},
                    {"message", std::move(message)},
                    {"logprobs", logprobs ? chat_logprobs(choice.tokens) : Json()},
                    {"finish_reason", finish_reason(choice.result, calls)}});
  }
  answer["choices"] = std::move(list);
  answer["usage"] = usage_json(results_of(choices), static_cast<int32_t>(choices.size()));
  answer["timings"] = timings_json(choices.front().result);
  answer["moe_cache"] = expert_cache_json(experts_of(choices));
  return answer;
}

Json chat_chunk(const AnswerHead& head, const ReplyEvent& event, bool is_first, bool called_tools,
                size_t n_calls_before, bool logprobs) {
  Json chunk = head_json(head, "chat.completion.chunk");
  Json delta = Json::object();
  if (is_first) delta = {{"role", "assistant"}, {"content", ""}};
  if (!event.content.empty()) delta["content"] = event.content;
  if (!event.reasoning.empty()) delta["reasoning_content"] = event.reasoning;
  for (size_t c = 0; c < event.tool_calls.size(); ++c) {
    delta["tool_calls"].push_back(tool_call_json(event.tool_calls[c], n_calls_before + c, true));
  }
  Json choice = {{"index", event.choice}, {"delta", std::move(delta)}};
  choice["logprobs"] = logprobs && !event.tokens.empty() ? chat_logprobs(event.tokens) : Json();
  choice["finish_reason"] =
      event.end ? Json(finish_reason(*event.end, called_tools)) : Json(nullptr);
  chunk["choices"] = Json::array({std::move(choice)});
  if (event.end) {
    chunk["timings"] = timings_json(*event.end);
    chunk["moe_cache"] = expert_cache_json(event.end->experts);
  }
  return chunk;
}

Json usage_chunk(const AnswerHead& head, std::string_view object,
                 const std::vector<ChoiceResult>& results, int32_t n_choices) {
  Json chunk = head_json(head, object);
  chunk["choices"] = Json::array();
  chunk["usage"] = usage_json(results, n_choices);
  return chunk;
}

Json completion_answer(const AnswerHead& head, const std::vector<ChoiceText>& choices,
                       int32_t n_choices, bool logprobs) {
  Json answer = head_json(head, "text_completion");
  Json list = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    list.push_back({{"index", i},
                    {"text", choices[i].content},
                    {"logprobs", logprobs ? completion_logprobs(choices[i].tokens) : Json()},
                    {"finish_reason", finish_reason(choices[i].result, false)}});
  }
  answer["choices"] = std::move(list);
  answer["usage"] = usage_json(results_of(choices), n_choices);
  answer["timings"] = timings_json(choices.front().result);
  answer["moe_cache"] = expert_cache_json(experts_of(choices));
  return answer;
}

Json completion_chunk(const AnswerHead& head, const ReplyEvent& event, bool logprobs) {
  Json chunk = head_json(head, "text_completion");
  Json choice = {{"index", event.choice}, {"text", event.content}};
  choice["logprobs"] =
      logprobs && !event.tokens.empty() ? completion_logprobs(event.tokens) : Json();
  choice["finish_reason"] = event.end ? Json(finish_reason(*event.end, false)) : Json(nullptr);
  chunk["choices"] = Json::array({std::move(choice)});
  if (event.end) {
    chunk["timings"] = timings_json(*event.end);
    chunk["moe_cache"] = expert_cache_json(event.end->experts);
  }
  return chunk;
}

Json native_answer(const std::string& model, const ChoiceText& choice, int32_t n_ctx, bool logprobs,
                   bool tokens) {
  const ChoiceResult& r = choice.result;
  Json answer = {{"index", 0}, {"content", choice.content}};
  Json ids = Json::array();
  if (tokens) {
    for (const ReplyToken& t : choice.tokens) ids.push_back(t.token.id);
  }
  answer["tokens"] = std::move(ids);
  answer["stop"] = true;
  answer["model"] = model;
  answer["tokens_predicted"] = r.n_generated;
  answer["tokens_evaluated"] = r.n_prompt;
  answer["tokens_cached"] = r.n_reused;
  answer["truncated"] = r.reason == StopReason::kContext;
  answer["stop_type"] = stop_type(r);
  answer["stopping_word"] = choice.stop;
  answer["n_ctx"] = n_ctx;
  if (logprobs) answer["completion_probabilities"] = native_logprobs(choice.tokens);
  answer["timings"] = timings_json(r);
  answer["moe_cache"] = expert_cache_json(r.experts);
  return answer;
}

Json native_chunk(const ReplyEvent& event, bool logprobs, bool tokens) {
  Json chunk = {{"index", event.choice}, {"content", event.content}};
  chunk["tokens"] = Json::array();
  if (tokens) {
    for (const ReplyToken& t : event.tokens) chunk["tokens"].push_back(t.token.id);
  }
  chunk["stop"] = false;
  if (logprobs) chunk["completion_probabilities"] = native_logprobs(event.tokens);
  return chunk;
}

std::string to_body(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string sse(const Json& json) { return fmt::format("data: {}\n\n", to_body(json)); }

}  // namespace hotset::server
