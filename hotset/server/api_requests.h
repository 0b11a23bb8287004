// The bodies of requests, checked: pure functions from text to plain values. What a model makes of
// them (tokens, templates) comes later.
// Thread-safe: pure functions.
#ifndef HOTSET_SERVER_API_REQUESTS_H_
#define HOTSET_SERVER_API_REQUESTS_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "hotset/engine/run/sampler.h"
#include "hotset/server/api_error.h"

namespace hotset::server {

// What a request gets where it does not say, and what it may ask for.
struct RequestDefaults {
  engine::SamplerOptions sampler = {};
  int32_t max_tokens = -1;
  int32_t max_choices = 16;                               // n, and prompts times n
  int32_t n_vocab = std::numeric_limits<int32_t>::max();  // token ids are below
};

// How to generate, whatever the endpoint.
struct GenerationSettings {
  engine::SamplerOptions sampler = {};
  std::optional<uint64_t> seed = {};  // none: another one each time
  int32_t max_tokens = -1;
  int32_t n_choices = 1;
  int32_t n_logprobs = -1;       // -1: none
  bool prompt_logprobs = false;  // of the prompt's tokens as well
  bool ignore_end = false;
  bool reuse_prompt = true;
  std::vector<std::string> stop = {};
};

// A message's role that only some templates know, "messages[2].role".
struct NamedRole {
  std::string field;
  std::string role;
};

// What `role` must be, for messages.
inline constexpr std::string_view kKnownRoles =
    "system, developer, user, assistant, tool, function, ipython or one that the model's chat "
    "template names";

struct ChatRequest {
  GenerationSettings settings = {};
  std::string model = {};       // as given; answers repeat it
  std::string messages = "[]";  // JSON array, in the form that templates expect
  std::vector<NamedRole> other_roles = {};
  std::string tools = {};      // JSON array; empty: none
  bool one_call = false;       // the reply ends behind its first tool call
  std::string variables = {};  // JSON object for the template; empty: none
  bool add_generation_prompt = true;
  bool splits_reasoning = true;
  bool stream = false;
  bool include_usage = false;  // streamed
};

// A prompt as text or as token ids, at least 1.
struct Prompt {
  std::string field = "prompt";  // where it stands, "prompt[1]"
  std::variant<std::string, std::vector<int32_t>> content = {};

  bool operator==(const Prompt&) const = default;
};

struct CompletionRequest {
  GenerationSettings settings = {};
  std::string model = {};
  std::vector<Prompt> prompts = {};  // at least 1; of complete() exactly 1
  bool echo = false;
  bool stream = false;
  bool include_usage = false;
  bool return_tokens = false;
};

struct TokenizeRequest {
  std::string content = {};
  bool add_special = false;
  bool parse_special = true;
  bool with_pieces = false;
};

// POST /v1/chat/completions and /apply-template.
ApiResult<ChatRequest> parse_chat_request(std::string_view body, const RequestDefaults& defaults);
// POST /v1/completions.
ApiResult<CompletionRequest> parse_completion_request(std::string_view body,
                                                      const RequestDefaults& defaults);
// POST /completion, in the shape that clients of ggml servers use.
ApiResult<CompletionRequest> parse_native_request(std::string_view body,
                                                  const RequestDefaults& defaults);
ApiResult<TokenizeRequest> parse_tokenize_request(std::string_view body);
// The ids of POST /detokenize, below `n_vocab`.
ApiResult<std::vector<int32_t>> parse_detokenize_request(std::string_view body, int32_t n_vocab);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_API_REQUESTS_H_
