#include "hotset/server/generation_job.h"

#include <fmt/core.h>

#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/server/json_fields.h"

namespace hotset::server {
namespace {

uint64_t any_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

ApiError submit_error(const Error& error, const std::string& field, size_t n_prompt,
                      int32_t n_ctx) {
  ApiError result = api_error(error);
  if (std::cmp_greater(n_prompt, n_ctx)) {
    result.param = field;
    result.code = "context_length_exceeded";
    result.message = fmt::format(
        "{}: found {} tokens, but the context holds {}; shorten it, or start the server with a "
        "larger -c",
        field, n_prompt, n_ctx);
  }
  return result;
}

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm fields = {};
  localtime_r(&now, &fields);
  return fields;
}

}  // namespace

ApiResult<std::unique_ptr<GenerationJob>> GenerationJob::start(Scheduler& scheduler,
                                                               const text::Tokenizer& tokenizer,
                                                               std::vector<JobPrompt> prompts,
                                                               const GenerationSettings& settings,
                                                               JobOptions options) {
  const auto n_prompts = static_cast<int32_t>(prompts.size());
  std::unique_ptr<GenerationJob> job(new GenerationJob(scheduler, n_prompts * settings.n_choices));
  int32_t choice = 0;
  for (JobPrompt& prompt : prompts) {
    GenerationRequest request{.prompt = std::move(prompt.ids),
                              .max_tokens = settings.max_tokens,
                              .ignore_end = settings.ignore_end,
                              .reuse_prompt = settings.reuse_prompt,
                              .n_logprobs = settings.n_logprobs,
                              .prompt_logprobs = settings.prompt_logprobs,
                              .sampler = settings.sampler};
    request.sampler.seed = settings.seed ? *settings.seed : any_seed();
    for (int32_t i = 0; i < settings.n_choices; ++i) {
      request.sinks.push_back(std::make_shared<ReplySink>(
          tokenizer, job->channel_,
          ReplyOptions{.choice = choice++,
                       .stop = settings.stop,
                       .keeps_tokens = options.keeps_tokens || settings.n_logprobs >= 0,
                       .format = options.format,
                       .one_call = options.one_call,
                       .echo = prompt.echo}));
    }
    const size_t n_prompt = request.prompt.size();
    const auto id = scheduler.submit(std::move(request));
    // What was submitted before ends with the job.
    if (!id)
      return std::unexpected(submit_error(id.error(), prompt.field, n_prompt, scheduler.n_ctx()));
    job->ids_.push_back(*id);
  }
  return job;
}

GenerationJob::~GenerationJob() { cancel(); }

void GenerationJob::cancel() {
  for (const RequestId id : ids_) scheduler_.cancel(id);
}

std::optional<ReplyEvent> GenerationJob::take(double timeout_us) {
  std::optional<ReplyEvent> event = channel_->take(timeout_us);
  if (event && event->end) ++n_ended_;
  return event;
}

ApiResult<JobPrompt> job_prompt(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                bool echoes) {
  JobPrompt job{.field = prompt.field};
  const auto with_field = [&](const Error& error) {
    ApiError result = api_error(error);
    result.message = fmt::format("{}: {}", prompt.field, result.message);
    result.param = prompt.field;
    return std::unexpected(std::move(result));
  };
  if (const auto* given = std::get_if<std::vector<int32_t>>(&prompt.content)) {
    job.ids = *given;
    if (!echoes) return job;
    const auto text = tokenizer.decode(job.ids, {.render_special = true});
    if (!text) return with_field(text.error());
    job.echo = Echo{.text = valid_text(*text)};
    return job;
  }
  const std::string& text = std::get<std::string>(prompt.content);
  auto ids = tokenizer.encode(text, {.parse_special = true});
  if (!ids) return with_field(ids.error());
  job.ids = *std::move(ids);
  const bool has_bos = !job.ids.empty() && tokenizer.bos() == job.ids.front();
  const bool adds_bos = tokenizer.adds_bos() && tokenizer.bos() && !has_bos;
  if (adds_bos) job.ids.insert(job.ids.begin(), *tokenizer.bos());
  if (job.ids.empty()) {
    return std::unexpected(
        ApiError{.message = fmt::format("{}: found \"\", expected a text", prompt.field),
                 .param = prompt.field});
  }
  if (echoes) job.echo = Echo{.text = text, .has_hidden_token = adds_bos};
  return job;
}

ApiResult<void> check_roles(const text::ChatTemplate& chat_template, const ChatRequest& request) {
  for (const NamedRole& other : request.other_roles) {
    // As a template writes it: a word that is compared with.
    const bool is_known = chat_template.mentions(fmt::format("'{}'", other.role)) ||
                          chat_template.mentions(fmt::format("\"{}\"", other.role));
    if (!is_known) return field_error(other.field, Json(other.role), kKnownRoles);
  }
  return {};
}

ApiResult<void> check_prompt_length(const text::Tokenizer& tokenizer, const Prompt& prompt,
                                    int32_t n_ctx) {
  const auto* text = std::get_if<std::string>(&prompt.content);
  const size_t n_tokens = text == nullptr ? 0 : text->size() / tokenizer.max_piece_bytes();
  if (std::cmp_less_equal(n_tokens, n_ctx)) return {};
  return std::unexpected(ApiError{
      .message = fmt::format("{}: found a text of at least {} tokens, but the context holds "
                             "{}; shorten it, or start the server with a larger -c",
                             prompt.field, n_tokens, n_ctx),
      .param = prompt.field,
      .code = "context_length_exceeded"});
}

ApiResult<void> check_chat_length(const text::Tokenizer& tokenizer, const ChatRequest& request,
                                  int32_t n_ctx) {
  // As JSON a text is never shorter, so most chats are not read for this.
  if (request.messages.size() / tokenizer.max_piece_bytes() <= static_cast<size_t>(n_ctx)) {
    return {};
  }
  const size_t n_tokens = text::least_chat_tokens(tokenizer, request.messages);
  if (std::cmp_less_equal(n_tokens, n_ctx)) return {};
  return std::unexpected(ApiError{
      .message = fmt::format("messages: found a chat of at least {} tokens, but the context holds "
                             "{}; shorten it, or start the server with a larger -c",
                             n_tokens, n_ctx),
      .param = "messages",
      .code = "context_length_exceeded"});
}

ApiResult<std::string> render_chat(const text::ChatTemplate& chat_template,
                                   const ChatRequest& request, const std::string& variables) {
  Json merged = Json::object();
  for (const std::string* given : {&variables, &request.variables}) {
    if (given->empty()) continue;
    const auto parsed = hotset::parse_json(*given);
    if (parsed && parsed->is_object()) merged.update(*parsed);
  }
  std::string messages = request.messages;
  // Most chats have none, and need not be read once more.
  if (!chat_template.mentions("developer") && messages.contains("developer")) {
    auto list = hotset::parse_json(messages, text::kMaxChatJsonDepth);
    if (list && list->is_array()) {
      for (Json& message : *list) {
        if (message["role"] == "developer") message["role"] = "system";
      }
      messages = list->dump(-1, ' ', false, Json::error_handler_t::replace);
    }
  }
  auto rendered = chat_template.render({.messages = std::move(messages),
                                        .tools = request.tools,
                                        .variables = merged.empty() ? std::string() : merged.dump(),
                                        .add_generation_prompt = request.add_generation_prompt,
                                        .now = local_time()});
  if (rendered) return *std::move(rendered);
  // A limit of the sandbox is not the caller's fault (503): the same chat may pass another time.
  ApiError error = api_error(rendered.error());
  if (error.status < 500) error.param = "messages";
  return std::unexpected(std::move(error));
}

}  // namespace hotset::server
