#include "hotset/server/request_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/json.h"

namespace hotset::server {
namespace {

using enum FieldUse;

// --- Every endpoint that generates

constexpr RequestField kGeneration[] = {
    {.name = "model"},
    {.name = "temperature"},
    {.name = "top_p"},
    {.name = "top_k"},
    {.name = "min_p"},
    {.name = "presence_penalty"},
    {.name = "frequency_penalty"},
    {.name = "repeat_penalty"},
    {.name = "repetition_penalty"},
    {.name = "repeat_last_n"},
    {.name = "samplers"},
    {.name = "logit_bias"},
    {.name = "seed"},
    {.name = "stop"},
    {.name = "ignore_eos"},
    {.name = "cache_prompt"},
    {.name = "stream"},
    {.name = "max_tokens"},
    {.name = "n_predict"},
    {.name = "response_format"},
    // Whom and what a request is for, and who is served first.
    {.name = "user", .use = kIgnored},
    {.name = "metadata", .use = kIgnored},
    {.name = "store", .use = kIgnored},
    {.name = "service_tier", .use = kIgnored},
    {.name = "safety_identifier", .use = kIgnored},
    {.name = "prompt_cache_key", .use = kIgnored},
    {.name = "prompt_cache_retention", .use = kIgnored},
    {.name = "cache_salt", .use = kIgnored},
    {.name = "request_id", .use = kIgnored},
    {.name = "session_id", .use = kIgnored},
    {.name = "chat_id", .use = kIgnored},
    {.name = "priority", .use = kIgnored},
    {.name = "keep_alive", .use = kIgnored},
    {.name = "id_slot", .use = kIgnored},
    {.name = "slot_id", .use = kIgnored},
    // What is shown of the progress.
    {.name = "timings_per_token", .use = kIgnored},
    {.name = "return_progress", .use = kIgnored},
    // How text is shifted out of a full context: here a reply ends there.
    {.name = "n_keep", .use = kIgnored},
    {.name = "n_discard", .use = kIgnored},
    // Details of what is off by the fields below.
    {.name = "xtc_threshold", .use = kIgnored},
    {.name = "dry_base", .use = kIgnored},
    {.name = "dry_allowed_length", .use = kIgnored},
    {.name = "dry_penalty_last_n", .use = kIgnored},
    {.name = "dry_sequence_breakers", .use = kIgnored},
    {.name = "mirostat_tau", .use = kIgnored},
    {.name = "mirostat_eta", .use = kIgnored},
    {.name = "dynatemp_exponent", .use = kIgnored},
    {.name = "adaptive_decay", .use = kIgnored},
    // Where tokens are chosen.
    {.name = "backend_sampling", .use = kIgnored},
    // How drafts are made: they change no answer.
    {.name = "speculative.n_max", .use = kIgnored},
    {.name = "speculative.n_min", .use = kIgnored},
    {.name = "speculative.p_min", .use = kIgnored},
    {.name = "speculative.types", .use = kIgnored},
    // Ways to choose tokens that the sampler does not have.
    {.name = "typical_p", .use = kNeutral, .neutral = "[1]"},
    {.name = "typ_p", .use = kNeutral, .neutral = "[1]"},
    {.name = "tfs_z", .use = kNeutral, .neutral = "[1]"},
    {.name = "top_a", .use = kNeutral, .neutral = "[0]"},
    {.name = "top_n_sigma", .use = kNeutral, .neutral = "[-1, 0]"},
    {.name = "xtc_probability", .use = kNeutral, .neutral = "[0]"},
    {.name = "dry_multiplier", .use = kNeutral, .neutral = "[0]"},
    {.name = "mirostat", .use = kNeutral, .neutral = "[0]"},
    {.name = "dynatemp_range", .use = kNeutral, .neutral = "[0]"},
    {.name = "adaptive_target", .use = kNeutral, .neutral = "[-1]"},
    {.name = "min_keep", .use = kNeutral, .neutral = "[0, 1]"},
    {.name = "penalize_nl", .use = kNeutral, .neutral = "[true]"},
    {.name = "do_sample", .use = kNeutral, .neutral = "[true]"},
    {.name = "num_beams", .use = kNeutral, .neutral = "[1]"},
    {.name = "use_beam_search", .use = kNeutral, .neutral = "[false]"},
    {.name = "early_stopping", .use = kNeutral, .neutral = "[false]"},
    {.name = "length_penalty", .use = kNeutral, .neutral = "[1]"},
    {.name = "no_repeat_ngram_size", .use = kNeutral, .neutral = "[0]"},
    {.name = "logits_processors", .use = kNeutral, .neutral = "[[]]"},
    // What a reply must look like.
    {.name = "grammar", .use = kNeutral, .neutral = "[\"\"]"},
    {.name = "grammar_lazy", .use = kNeutral, .neutral = "[false]"},
    {.name = "grammar_triggers", .use = kNeutral, .neutral = "[[]]"},
    {.name = "preserved_tokens", .use = kNeutral, .neutral = "[[]]"},
    {.name = "min_tokens", .use = kNeutral, .neutral = "[0]"},
    {.name = "stop_token_ids", .use = kNeutral, .neutral = "[[]]"},
    {.name = "bad_words", .use = kNeutral, .neutral = "[[]]"},
    {.name = "allowed_token_ids", .use = kNeutral, .neutral = "[[]]"},
    {.name = "include_stop_str_in_output", .use = kNeutral, .neutral = "[false]"},
    {.name = "no_stop_trim", .use = kNeutral, .neutral = "[false]"},
    {.name = "skip_special_tokens", .use = kNeutral, .neutral = "[true]"},
    {.name = "spaces_between_special_tokens", .use = kNeutral, .neutral = "[true]"},
    {.name = "detokenize", .use = kNeutral, .neutral = "[true]"},
    {.name = "t_max_predict_ms", .use = kNeutral, .neutral = "[-1, 0]"},
    {.name = "t_max_prompt_ms", .use = kNeutral, .neutral = "[-1, 0]"},
    {.name = "n_indent", .use = kNeutral, .neutral = "[0]"},
    {.name = "lora", .use = kNeutral, .neutral = "[[]]"},
    {.name = "image_data", .use = kNeutral, .neutral = "[[]]"},
    // What an answer has beside the text.
    {.name = "post_sampling_probs", .use = kNeutral, .neutral = "[false]"},
    {.name = "return_token_ids", .use = kNeutral, .neutral = "[false]"},
    {.name = "return_tokens_as_token_ids", .use = kNeutral, .neutral = "[false]"},
    {.name = "response_fields", .use = kNeutral, .neutral = "[[]]"},
};

// --- What some of them have

constexpr RequestField kChat[] = {
    {.name = "messages"},
    {.name = "max_completion_tokens"},
    {.name = "n"},
    {.name = "logprobs"},
    {.name = "top_logprobs"},
    {.name = "tools"},
    {.name = "tool_choice"},
    {.name = "parallel_tool_calls"},
    {.name = "chat_template_kwargs"},
    {.name = "enable_thinking"},
    {.name = "reasoning_effort"},
    {.name = "reasoning_format"},
    {.name = "stream_options"},
    {.name = "add_generation_prompt"},
    // A guess at the answer, to have it sooner.
    {.name = "prediction", .use = kIgnored},
    {.name = "modalities", .use = kNeutral, .neutral = R"([["text"]])"},
    {.name = "verbosity", .use = kNeutral, .neutral = R"(["medium"])"},
    {.name = "functions", .use = kNeutral, .neutral = "[[]]"},
    {.name = "function_call", .use = kNeutral, .neutral = R"(["none", "auto"])"},
    {.name = "documents", .use = kNeutral, .neutral = "[[]]"},
    {.name = "continue_final_message", .use = kNeutral, .neutral = "[false]"},
    {.name = "add_special_tokens", .use = kNeutral, .neutral = "[false]"},
    {.name = "echo", .use = kNeutral, .neutral = "[false]"},
    {.name = "best_of", .use = kNeutral, .neutral = "[1]"},
    {.name = "n_probs", .use = kNeutral, .neutral = "[0]"},
    {.name = "return_tokens", .use = kNeutral, .neutral = "[false]"},
    {.name = "parse_tool_calls", .use = kNeutral, .neutral = "[true]"},
    {.name = "separate_reasoning", .use = kNeutral, .neutral = "[true]"},
    {.name = "stream_reasoning", .use = kNeutral, .neutral = "[true]"},
    {.name = "include_reasoning", .use = kNeutral, .neutral = "[true]"},
    {.name = "reasoning_in_content", .use = kNeutral, .neutral = "[false]"},
    {.name = "thinking_forced_open", .use = kNeutral, .neutral = "[false]"},
    {.name = "reasoning_budget", .use = kNeutral, .neutral = "[-1]"},
    {.name = "thinking_budget_tokens", .use = kNeutral, .neutral = "[-1]"},
};

constexpr RequestField kCompletions[] = {
    {.name = "prompt"},
    {.name = "n"},
    {.name = "logprobs"},
    {.name = "echo"},
    {.name = "best_of"},
    {.name = "stream_options"},
    {.name = "suffix", .use = kNeutral, .neutral = "[\"\"]"},
    {.name = "add_special_tokens", .use = kNeutral, .neutral = "[true]"},
    {.name = "n_probs", .use = kNeutral, .neutral = "[0]"},
    {.name = "return_tokens", .use = kNeutral, .neutral = "[false]"},
};

constexpr RequestField kNative[] = {
    {.name = "prompt"},
    {.name = "n_probs"},
    {.name = "return_tokens"},
    {.name = "n", .use = kNeutral, .neutral = "[1]"},
    {.name = "echo", .use = kNeutral, .neutral = "[false]"},
    {.name = "best_of", .use = kNeutral, .neutral = "[1]"},
    {.name = "suffix", .use = kNeutral, .neutral = "[\"\"]"},
    {.name = "system_prompt", .use = kNeutral, .neutral = "[\"\"]"},
};

// --- Tokens

constexpr RequestField kTokenize[] = {
    {.name = "content"},
    {.name = "add_special"},
    {.name = "parse_special"},
    {.name = "with_pieces"},
    {.name = "model", .use = kIgnored},
};

constexpr RequestField kDetokenize[] = {
    {.name = "tokens"},
    {.name = "model", .use = kIgnored},
};

std::vector<RequestField> joined(std::initializer_list<std::span<const RequestField>> tables) {
  std::vector<RequestField> all;
  for (const auto table : tables) std::ranges::copy(table, std::back_inserter(all));
  std::ranges::sort(all, {}, &RequestField::name);
  return all;
}

std::string accepted(std::string_view neutral) {
  std::string text;
  const Json values = hotset::parse_json(neutral).value();
  for (const Json& value : values) {
    if (!text.empty()) text += " or ";
    text += value.dump();
  }
  return text;
}

}  // namespace

std::span<const RequestField> request_fields(Endpoint endpoint) {
  static const std::vector<RequestField> chat = joined({kGeneration, kChat});
  static const std::vector<RequestField> completions = joined({kGeneration, kCompletions});
  static const std::vector<RequestField> native = joined({kGeneration, kNative});
  static const std::vector<RequestField> tokenize = joined({kTokenize});
  static const std::vector<RequestField> detokenize = joined({kDetokenize});
  switch (endpoint) {
    case Endpoint::kChat:
      return chat;
    case Endpoint::kCompletions:
      return completions;
    case Endpoint::kNative:
      return native;
    case Endpoint::kTokenize:
      return tokenize;
    case Endpoint::kDetokenize:
      return detokenize;
  }
  return {};
}

ApiResult<void> check_fields(const Json& object, Endpoint endpoint) {
  const auto refuse = [](const std::string& name, const Json& value, std::string_view why) {
    const std::string shown = shortened(name);
    return std::unexpected(
        ApiError{.message = fmt::format("{}: found {}, but {}", shown, found_text(value), why),
                 .param = shown,
                 .code = "unsupported_parameter"});
  };
  const std::span<const RequestField> fields = request_fields(endpoint);
  for (const auto& [name, value] : object.items()) {
    if (value.is_null()) continue;
    const auto field = std::ranges::lower_bound(fields, name, {}, &RequestField::name);
    if (field == fields.end() || field->name != name) {
      return refuse(name, value, "hotset does not support this field");
    }
    if (field->use != FieldUse::kNeutral) continue;
    const Json neutral = hotset::parse_json(field->neutral).value();
    if (std::ranges::find(neutral, value) != neutral.end()) continue;
    return refuse(name, value,
                  fmt::format("hotset does not support this field; {} would be accepted",
                              accepted(field->neutral)));
  }
  return {};
}

}  // namespace hotset::server
