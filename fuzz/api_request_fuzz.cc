// The bodies of requests over arbitrary text: an error that says something, or values within what
// is accepted, whose own JSON parts are JSON.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "hotset/server/api_error.h"
#include "hotset/server/api_keys.h"
#include "hotset/server/api_requests.h"
#include "hotset/server/json_fields.h"

namespace {

using hotset::server::ApiError;
using hotset::server::GenerationSettings;

void check(bool condition) {
  if (!condition) std::abort();
}

void check_error(const ApiError& error) {
  check(error.status == 400 && !error.message.empty());
  check(nlohmann::json::accept(hotset::server::error_body(error)));
}

void check_settings(const GenerationSettings& s) {
  check(s.sampler.temperature >= 0 && s.sampler.temperature <= 100);
  check(s.sampler.top_p >= 0 && s.sampler.top_p <= 1 && s.sampler.top_k >= 0);
  check(s.max_tokens >= -1 && s.n_choices >= 1 && s.n_choices <= 16);
  check(s.n_logprobs >= -1 && s.n_logprobs <= 20 && s.stop.size() <= 32);
  for (const std::string& stop : s.stop) check(!stop.empty() && stop.size() <= 4096);
  check(!s.prompt_logprobs || s.n_logprobs >= 0);
  for (const auto& bias : s.sampler.logit_bias) check(bias.id >= 0 && !std::isnan(bias.bias));
  check(hotset::engine::Sampler::create(s.sampler).has_value());
}

bool is_json(const std::string& text) { return text.empty() || nlohmann::json::accept(text); }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const std::string_view body(reinterpret_cast<const char*>(data), n_bytes);
  const hotset::server::RequestDefaults defaults;
  if (const auto chat = hotset::server::parse_chat_request(body, defaults)) {
    check_settings(chat->settings);
    check(is_json(chat->messages) && is_json(chat->tools) && is_json(chat->variables));
  } else {
    check_error(chat.error());
  }
  for (const auto& completion : {hotset::server::parse_completion_request(body, defaults),
                                 hotset::server::parse_native_request(body, defaults)}) {
    if (completion) {
      check_settings(completion->settings);
      check(!completion->prompts.empty() && completion->prompts.size() <= 16);
    } else {
      check_error(completion.error());
    }
  }
  if (const auto r = hotset::server::parse_tokenize_request(body); !r) check_error(r.error());
  if (const auto r = hotset::server::parse_detokenize_request(body, 1000)) {
    for (const int32_t id : *r) check(id >= 0 && id < 1000);
  } else {
    check_error(r.error());
  }
  const hotset::server::ApiKeys keys({"key"});
  check(keys.accept(body) == (body == "key"));
  (void)keys.accept_headers(body, "");
  return 0;
}
