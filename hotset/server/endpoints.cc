#include "hotset/server/endpoints.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "hotset/base/utf8.h"
#include "hotset/report/cache_json.h"
#include "hotset/server/api_responses.h"
#include "hotset/text/text_marks.h"

namespace hotset::server {
namespace {

// How long a wait for tokens lasts before it looks whether the client is still there.
constexpr double kLookUs = 20e3;

int64_t unix_time_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Nobody can guess it, nor meets it twice.
std::string new_id(std::string_view prefix) {
  static std::atomic<uint64_t> counter = 0;
  static const uint64_t start = uint64_t{std::random_device()()} << 32 | std::random_device()();
  return fmt::format("{}-{:016x}{:08x}", prefix, start, counter++);
}

// --- Whole answers

// All choices of a job; none once the client has left.
ApiResult<std::vector<ChoiceText>> collect(GenerationJob& job, const HasLeft& has_left) {
  std::vector<ChoiceText> choices(static_cast<size_t>(job.n_choices()));
  while (!job.done()) {
    const std::optional<ReplyEvent> event = job.take(kLookUs);
    if (event) choices[event->choice].add(*event);
    if (!event && has_left()) return std::unexpected(ApiError{.status = 499, .message = "left"});
  }
  for (const ChoiceText& choice : choices) {
    if (choice.result.reason == StopReason::kError) {
      return std::unexpected(ApiError{.status = choice.result.is_out_of_memory ? 503 : 500,
                                      .message = choice.result.error});
    }
    if (choice.result.reason == StopReason::kCancelled) {
      return std::unexpected(ApiError{.status = 503, .message = "the server is shutting down"});
    }
  }
  return choices;
}

// --- Streamed answers

// What makes texts of events, by endpoint.
struct StreamForm {
  // Text for an event of a choice.
  std::function<std::string(const ReplyEvent&)> event;
  // Text behind the last one.
  std::function<std::string(const std::vector<ChoiceResult>&)> end;
};

class JobStream final : public AnswerStream {
 public:
  JobStream(std::unique_ptr<GenerationJob> job, StreamForm form)
      : job_(std::move(job)), form_(std::move(form)), results_(job_->n_choices()) {}

  std::string next(double timeout_us) override {
    if (done_) return {};
    const std::optional<ReplyEvent> event = job_->take(timeout_us);
    if (!event) return {};
    if (event->end) {
      if (event->end->reason == StopReason::kError ||
          event->end->reason == StopReason::kCancelled) {
        return broken_off(*event->end);
      }
      results_[event->choice] = *event->end;
    }
    std::string text = form_.event(*event);
    if (job_->done()) {
      text += form_.end(results_);
      done_ = true;
    }
    return text;
  }
  bool done() const override { return done_; }

 private:
  std::string broken_off(const ChoiceResult& result) {
    done_ = true;
    job_->cancel();
    const bool is_error = result.reason == StopReason::kError;
    return fmt::format(
        "data: {}\n\n",
        error_body({.status = is_error && !result.is_out_of_memory ? 500 : 503,
                    .message = is_error ? result.error : "the server is shutting down"}));
  }

  std::unique_ptr<GenerationJob> job_;
  StreamForm form_;
  std::vector<ChoiceResult> results_;
  bool done_ = false;
};

constexpr std::string_view kDone = "data: [DONE]\n\n";

std::string chat_events(const AnswerHead& head, bool logprobs, std::vector<bool>& has_begun,
                        std::vector<size_t>& n_calls, const ReplyEvent& event) {
  const auto at = static_cast<size_t>(event.choice);
  std::string text;
  const size_t n_before = n_calls[at];
  n_calls[at] += event.tool_calls.size();
  // The reason of the end comes in a chunk of its own, as clients know it.
  ReplyEvent content = event;
  content.end.reset();
  const bool has_content = !event.content.empty() || !event.reasoning.empty() ||
                           !event.tool_calls.empty() || !event.tokens.empty();
  if (!has_begun[at]) {
    text += sse(chat_chunk(head, {.choice = event.choice}, true, false, 0, false));
    has_begun[at] = true;
  }
  if (has_content) text += sse(chat_chunk(head, content, false, false, n_before, logprobs));
  if (event.end) {
    const ReplyEvent end{.choice = event.choice, .end = event.end};
    text += sse(chat_chunk(head, end, false, n_calls[at] > 0, 0, false));
  }
  return text;
}

StreamForm chat_form(const AnswerHead& head, int32_t n_choices, bool logprobs, bool usage) {
  auto has_begun = std::make_shared<std::vector<bool>>(static_cast<size_t>(n_choices));
  auto n_calls = std::make_shared<std::vector<size_t>>(static_cast<size_t>(n_choices));
  return {.event =
              [=](const ReplyEvent& event) {
                return chat_events(head, logprobs, *has_begun, *n_calls, event);
              },
          .end =
              [=](const std::vector<ChoiceResult>& results) {
                std::string text;
                if (usage) {
                  text += sse(usage_chunk(head, "chat.completion.chunk", results, n_choices));
                }
                return text.append(kDone);
              }};
}

// --- Shapes that endpoints share

// Gives the memory back, which assigning an empty text does not.
void release(std::string& text) { std::string().swap(text); }

Json model_json(const ServedModel& model, const std::string& name, int64_t created_s) {
  return {{"id", name},
          {"object", "model"},
          {"created", created_s},
          {"owned_by", "hotset"},
          {"meta",
           {{"architecture", model.architecture},
            {"n_vocab", model.tokenizer->n_tokens()},
            {"n_ctx", model.scheduler->n_ctx()},
            {"n_ctx_train", model.n_ctx_train},
            {"n_embd", model.n_embd},
            {"size", model.n_bytes}}}};
}

Json sampling_json(const engine::SamplerOptions& s, int32_t max_tokens) {
  // As it was given, not as the float that is nearest to it.
  const auto number = [](float value) { return std::round(double{value} * 1e6) / 1e6; };
  return {{"temperature", number(s.temperature)},
          {"top_k", s.top_k},
          {"top_p", number(s.top_p)},
          {"min_p", number(s.min_p)},
          {"repeat_penalty", number(s.repeat_penalty)},
          {"repeat_last_n", s.repeat_last_n},
          {"presence_penalty", number(s.presence_penalty)},
          {"frequency_penalty", number(s.frequency_penalty)},
          {"n_predict", max_tokens}};
}

Json rules_json(const std::optional<engine::CacheOptions>& options) {
  if (!options) return nullptr;
  const auto& rules = options->rules;
  Json json = {{"policy", rules.policy}, {"fills", rules.fills}};
  if (rules.cache_batch) {
    json["max_decode_tokens"] = *rules.cache_batch;
  } else {
    json["max_decode_tokens"] = "auto";
  }
  return json;
}

}  // namespace

Endpoints::Endpoints(ServedModel model, const ServerOptions& options)
    : model_(std::move(model)), options_(options), defaults_(options.defaults) {
  // Ids behind the tokens that have a text would be computed, but say nothing.
  defaults_.n_vocab = std::min(model_.scheduler->n_vocab(), model_.tokenizer->n_tokens());
}

ApiResult<std::string> Endpoints::model_name(const std::string& asked) const {
  if (asked.empty()) return model_.name;
  if (!model_.has_aliases) return asked;
  if (std::ranges::contains(model_.names(), asked)) return asked;
  return std::unexpected(
      ApiError{.status = 404,
               .message = fmt::format("model: found \"{}\", expected {}", shortened(asked),
                                      fmt::join(model_.names(), " or ")),
               .param = "model",
               .code = "model_not_found"});
}

ApiResult<Answer> Endpoints::chat(std::string body, const Caller& caller) const {
  HOTSET_TRY(ChatRequest request, parse_chat_request(body, defaults_));
  release(body);
  HOTSET_TRY(const std::string name, model_name(request.model));
  HOTSET_RETURN_IF_ERROR(check_roles(*model_.chat_template, request));
  HOTSET_RETURN_IF_ERROR(check_chat_length(*model_.tokenizer, request, model_.scheduler->n_ctx()));
  HOTSET_TRY(std::string rendered,
             render_chat(*model_.chat_template, request, options_.chat_variables));
  release(request.messages);
  auto ids = text::encode_chat(*model_.tokenizer, rendered);
  if (!ids) return std::unexpected(api_error(ids.error()));
  if (ids->empty()) {
    return std::unexpected(ApiError{.message = "messages: the chat template makes nothing of them",
                                    .param = "messages"});
  }
  text::ReplyFormat format = text::choose_reply_format(
      *model_.tokenizer, model_.chat_template->source(), rendered, !request.tools.empty());
  format.tool_definitions = request.tools;
  format.splits_reasoning = request.splits_reasoning;
  std::vector<JobPrompt> prompts;
  prompts.push_back({.ids = *std::move(ids), .field = "messages"});
  HOTSET_TRY(std::unique_ptr<GenerationJob> job,
             GenerationJob::start(*model_.scheduler, *model_.tokenizer, std::move(prompts),
                                  request.settings,
                                  {.format = std::move(format), .one_call = request.one_call}));
  release(rendered);
  caller.prompt_is_made();
  const AnswerHead head{.id = new_id("chatcmpl"),
                        .model = name,
                        .fingerprint = "hotset-" + options_.version,
                        .created_s = unix_time_s()};
  const bool logprobs = request.settings.n_logprobs >= 0;
  if (request.stream) {
    StreamForm form = chat_form(head, job->n_choices(), logprobs, request.include_usage);
    return Answer{.stream = std::make_unique<JobStream>(std::move(job), std::move(form))};
  }
  HOTSET_TRY(const std::vector<ChoiceText> choices, collect(*job, caller.has_left));
  return Answer{.body = to_body(chat_answer(head, choices, logprobs))};
}

ApiResult<Answer> Endpoints::completions(std::string body, const Caller& caller) const {
  HOTSET_TRY(CompletionRequest request, parse_completion_request(body, defaults_));
  release(body);
  HOTSET_TRY(const std::string name, model_name(request.model));
  std::vector<JobPrompt> prompts;
  for (const Prompt& prompt : request.prompts) {
    HOTSET_RETURN_IF_ERROR(
        check_prompt_length(*model_.tokenizer, prompt, model_.scheduler->n_ctx()));
    HOTSET_TRY(JobPrompt job_with, job_prompt(*model_.tokenizer, prompt, request.echo));
    prompts.push_back(std::move(job_with));
  }
  const int32_t n_choices = request.settings.n_choices;
  HOTSET_TRY(std::unique_ptr<GenerationJob> job,
             GenerationJob::start(*model_.scheduler, *model_.tokenizer, std::move(prompts),
                                  request.settings, {}));
  request.prompts.clear();
  caller.prompt_is_made();
  const AnswerHead head{.id = new_id("cmpl"),
                        .model = name,
                        .fingerprint = "hotset-" + options_.version,
                        .created_s = unix_time_s()};
  const bool logprobs = request.settings.n_logprobs >= 0;
  if (request.stream) {
    StreamForm form{
        .event =
            [=](const ReplyEvent& event) { return sse(completion_chunk(head, event, logprobs)); },
        .end =
            [=, usage = request.include_usage](const std::vector<ChoiceResult>& results) {
              std::string text;
              if (usage) text += sse(usage_chunk(head, "text_completion", results, n_choices));
              return text.append(kDone);
            }};
    return Answer{.stream = std::make_unique<JobStream>(std::move(job), std::move(form))};
  }
  HOTSET_TRY(const std::vector<ChoiceText> choices, collect(*job, caller.has_left));
  return Answer{.body = to_body(completion_answer(head, choices, n_choices, logprobs))};
}

ApiResult<Answer> Endpoints::native(std::string body, const Caller& caller) const {
  HOTSET_TRY(CompletionRequest request, parse_native_request(body, defaults_));
  release(body);
  HOTSET_TRY(const std::string name, model_name(request.model));
  HOTSET_RETURN_IF_ERROR(
      check_prompt_length(*model_.tokenizer, request.prompts[0], model_.scheduler->n_ctx()));
  std::vector<JobPrompt> prompts(1);
  HOTSET_TRY(prompts[0], job_prompt(*model_.tokenizer, request.prompts[0], false));
  HOTSET_TRY(std::unique_ptr<GenerationJob> job,
             GenerationJob::start(*model_.scheduler, *model_.tokenizer, std::move(prompts),
                                  request.settings, {.keeps_tokens = request.return_tokens}));
  request.prompts.clear();
  caller.prompt_is_made();
  const bool logprobs = request.settings.n_logprobs >= 0;
  const bool tokens = request.return_tokens;
  const int32_t n_ctx = model_.scheduler->n_ctx();
  if (request.stream) {
    StreamForm form{.event =
                        [=](const ReplyEvent& event) {
                          ReplyEvent text = event;
                          text.end.reset();
                          std::string out;
                          if (!text.content.empty() || !text.tokens.empty()) {
                            out += sse(native_chunk(text, logprobs, tokens));
                          }
                          if (!event.end) return out;
                          ChoiceText rest;
                          rest.add({.end = event.end, .stop = event.stop});
                          return out + sse(native_answer(name, rest, n_ctx, false, false));
                        },
                    .end = [](const std::vector<ChoiceResult>&) { return std::string(); }};
    return Answer{.stream = std::make_unique<JobStream>(std::move(job), std::move(form))};
  }
  HOTSET_TRY(const std::vector<ChoiceText> choices, collect(*job, caller.has_left));
  return Answer{.body = to_body(native_answer(name, choices[0], n_ctx, logprobs, tokens))};
}

ApiResult<std::string> Endpoints::tokenize(std::string_view body) const {
  HOTSET_TRY(const TokenizeRequest request, parse_tokenize_request(body));
  const auto ids =
      model_.tokenizer->encode(request.content, {.parse_special = request.parse_special,
                                                 .add_bos = request.add_special,
                                                 .add_eos = request.add_special});
  if (!ids) return std::unexpected(api_error(ids.error()));
  Json tokens = Json::array();
  for (const int32_t id : *ids) {
    if (!request.with_pieces) {
      tokens.push_back(id);
      continue;
    }
    const std::string bytes = token_bytes(*model_.tokenizer, id);
    Json piece = bytes;
    if (valid_utf8_prefix(bytes) != bytes.size()) {
      piece = Json::array();
      for (const char c : bytes) piece.push_back(static_cast<unsigned char>(c));
    }
    tokens.push_back({{"id", id}, {"piece", std::move(piece)}});
  }
  return to_body({{"tokens", std::move(tokens)}});
}

ApiResult<std::string> Endpoints::detokenize(std::string_view body) const {
  HOTSET_TRY(const std::vector<int32_t> ids,
             parse_detokenize_request(body, model_.tokenizer->n_tokens()));
  const auto text = model_.tokenizer->decode(ids, {.render_special = true});
  if (!text) return std::unexpected(api_error(text.error()));
  return to_body({{"content", valid_text(*text)}});
}

ApiResult<std::string> Endpoints::apply_template(std::string_view body) const {
  HOTSET_TRY(const ChatRequest request, parse_chat_request(body, defaults_));
  HOTSET_TRY([[maybe_unused]] const std::string name, model_name(request.model));
  HOTSET_RETURN_IF_ERROR(check_roles(*model_.chat_template, request));
  HOTSET_TRY(const std::string rendered,
             render_chat(*model_.chat_template, request, options_.chat_variables));
  return to_body({{"prompt", text::without_marks(rendered)}});
}

std::string Endpoints::models() const {
  Json list = {{"object", "list"}};
  list["data"] = Json::array();
  for (const std::string& name : model_.names()) {
    list["data"].push_back(model_json(model_, name, unix_time_s()));
  }
  return to_body(list);
}

ApiResult<std::string> Endpoints::model_object(const std::string& name) const {
  if (std::ranges::contains(model_.names(), name)) {
    return to_body(model_json(model_, name, unix_time_s()));
  }
  return std::unexpected(
      ApiError{.status = 404,
               .message = fmt::format("found no model '{}', expected {}", shortened(name),
                                      fmt::join(model_.names(), " or ")),
               .code = "model_not_found"});
}

std::string Endpoints::props() const {
  const auto token_text = [&](std::optional<int32_t> id) {
    return id ? valid_text(token_bytes(*model_.tokenizer, *id)) : std::string();
  };
  return to_body(
      {{"default_generation_settings",
        {{"n_ctx", model_.scheduler->n_ctx()},
         {"params", sampling_json(options_.defaults.sampler, options_.defaults.max_tokens)}}},
       {"total_slots", model_.scheduler->n_parallel()},
       {"n_ctx", model_.scheduler->n_ctx()},
       {"model_alias", model_.name},
       {"model_path", model_.path},
       {"chat_template", model_.chat_template->source()},
       {"bos_token", token_text(model_.tokenizer->bos())},
       {"eos_token", token_text(model_.tokenizer->eos())},
       {"moe_cache", rules_json(model_.cache_options)},
       {"build_info", "hotset " + options_.version}});
}

std::string Endpoints::slots() const {
  const SchedulerStatus status = model_.scheduler->status();
  Json list = Json::array();
  for (size_t i = 0; i < status.slots.size(); ++i) {
    const SlotStatus& slot = status.slots[i];
    Json json = {{"id", i},
                 {"n_ctx", status.n_ctx},
                 {"is_processing", slot.is_busy},
                 {"n_cached", slot.n_cached}};
    if (slot.is_busy) {
      json["id_task"] = slot.request;
      json["choice"] = slot.choice;
      json["n_prompt"] = slot.n_prompt;
      json["n_decoded"] = slot.n_generated;
    }
    list.push_back(std::move(json));
  }
  return to_body(list);
}

ApiResult<std::string> Endpoints::cache() const {
  report::CacheView view;
  const bool was_run = model_.cache == nullptr ||
                       model_.scheduler->between_steps([&] { view = model_.cache->view(); });
  if (!was_run) {
    return std::unexpected(ApiError{.status = 503, .message = "the server is shutting down"});
  }
  Json json = report::cache_json(view);
  const SchedulerStatus status = model_.scheduler->status();
  json["generation"] = {{"generated_tokens", status.n_generated},
                        {"prompt_tokens_computed", status.n_prompt_computed},
                        {"prompt_tokens_reused", status.n_prompt_reused},
                        {"decode_us", status.decode_us},
                        {"prefill_us", status.prefill_us},
                        {"queued", status.n_queued},
                        {"kv_positions", status.n_ctx},
                        {"kv_positions_used", status.n_used}};
  return to_body(json);
}

}  // namespace hotset::server
