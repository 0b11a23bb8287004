// The bodies of answers: OpenAI's objects and those that clients of ggml servers know.
// Thread-safe: pure functions.
#ifndef HOTSET_SERVER_API_RESPONSES_H_
#define HOTSET_SERVER_API_RESPONSES_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/server/json_fields.h"
#include "hotset/server/reply.h"

namespace hotset::server {

// What all parts of an answer repeat.
struct AnswerHead {
  std::string id;  // "chatcmpl-..."
  std::string model;
  std::string fingerprint;  // of this program
  int64_t created_s = 0;    // Unix time
};

// A choice as far as it has come.
struct ChoiceText {
  std::string content = {};
  std::string reasoning = {};
  std::vector<text::ToolCall> tool_calls = {};
  std::vector<ReplyToken> tokens = {};
  std::string stop = {};
  ChoiceResult result = {};

  void add(const ReplyEvent& event);
};

// "stop", "length" or "tool_calls".
std::string_view finish_reason(const ChoiceResult& result, bool called_tools);

// {"prompt_n", "prompt_ms", ..., "predicted_n", ..., "cache_n"} and the request's part in the
// expert cache's lookups.
Json timings_json(const ChoiceResult& result);
Json expert_cache_json(const ExpertFigures& experts);
// Of all choices; the prompt counts once per prompt (`n_choices` of each).
Json usage_json(const std::vector<ChoiceResult>& results, int32_t n_choices);

Json chat_answer(const AnswerHead& head, const std::vector<ChoiceText>& choices, bool logprobs);
// One chunk of a streamed answer with what an event brings; `is_first` of its choice.
Json chat_chunk(const AnswerHead& head, const ReplyEvent& event, bool is_first, bool called_tools,
                size_t n_calls_before, bool logprobs);
// The last one, if usage was asked for.
Json usage_chunk(const AnswerHead& head, std::string_view object,
                 const std::vector<ChoiceResult>& results, int32_t n_choices);

Json completion_answer(const AnswerHead& head, const std::vector<ChoiceText>& choices,
                       int32_t n_choices, bool logprobs);
Json completion_chunk(const AnswerHead& head, const ReplyEvent& event, bool logprobs);

// Of /completion: the whole answer, or the last part of a streamed one.
Json native_answer(const std::string& model, const ChoiceText& choice, int32_t n_ctx, bool logprobs,
                   bool tokens);
Json native_chunk(const ReplyEvent& event, bool logprobs, bool tokens);

// "data: ...\n\n"
std::string sse(const Json& json);
std::string to_body(const Json& json);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_API_RESPONSES_H_
