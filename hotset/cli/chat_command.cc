#include "hotset/cli/chat_command.h"
#include "hotset/base/text_file.h"
#include "hotset/engine/weights/model_tokenizer.h"

#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/cli/chat_session.h"
#include "hotset/cli/command.h"
#include "hotset/engine/weights/chat_template_source.h"

namespace hotset::cli {
namespace {

constexpr size_t kMaxMessageBytes = size_t{64} << 20;

Status print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return stdout_error();
  }
  return {};
}

// The next message of standard input; nothing at its end. Errors: kIo, kInvalidArgument.
Result<std::optional<std::string>> read_message(bool show_prompt) {
  std::string message;
  bool has_read = false;
  if (show_prompt) HOTSET_RETURN_IF_ERROR(print("> "));
  while (true) {
    const int c = std::getc(stdin);
    if (c == EOF) {
      if (std::ferror(stdin) != 0) {
        return make_error(ErrorCode::kIo, "standard input: cannot read");
      }
      if (!has_read) return std::optional<std::string>();
      break;
    }
    has_read = true;
    if (c != '\n') {
      message += static_cast<char>(c);
      if (message.size() > kMaxMessageBytes) {
        return make_error(ErrorCode::kInvalidArgument,
                          "standard input: found a message of more than 64 MiB");
      }
      continue;
    }
    if (message.ends_with('\r')) message.pop_back();
    if (!message.ends_with('\\')) break;
    message.back() = '\n';
    if (show_prompt) HOTSET_RETURN_IF_ERROR(print("  "));
  }
  return std::optional(std::move(message));
}

class Chat {
 public:
  explicit Chat(const RunOptions& options) : options_(options) {}

  Status start();
  Status converse();
  Status finish() { return engine_session_->finish(); }

 private:
  Status take(std::string message);
  Status report(const ChatReply& reply);

  const RunOptions& options_;
  std::optional<measure::EngineSession> engine_session_;
  std::optional<text::Tokenizer> tokenizer_;
  std::optional<ChatSession> session_;
  std::optional<std::string> first_message_;
  bool is_terminal_ = false;
  Status last_refusal_;
};

Status Chat::start() {
  if (options_.prompt && options_.prompt_file) {
    return make_error(ErrorCode::kInvalidArgument, "found -p and -f, expected one of them");
  }
  if (options_.prompt_tokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--prompt-tokens: found together with --interactive, expected text");
  }
  HOTSET_TRY(const Sampling sampling, make_sampling(options_));
  HOTSET_TRY(engine::EngineOptions engine_flags, engine_options(options_.model));
  engine_flags.context.n_sequences = 1;
  HOTSET_TRY(engine::Sampler sampler, engine::Sampler::create(sampling.options));
  std::optional<text::ChatTemplate> chat_template;
  HOTSET_TRY(
      engine_session_,
      measure::EngineSession::start(
          options_.model, engine_flags, [&](const engine::ModelDescription& model) -> Status {
            HOTSET_RETURN_IF_ERROR(check_logit_bias(sampling.options, model.spec));
            HOTSET_TRY(tokenizer_, engine::model_tokenizer(model));
            HOTSET_TRY(chat_template,
                       engine::load_chat_template(model.file, *tokenizer_, options_.chat_template));
            return {};
          }));
  session_.emplace(*engine_session_, *tokenizer_, *std::move(chat_template), std::move(sampler),
                   ChatSessionOptions{.system = options_.system,
                                      .variables = options_.chat_variables,
                                      .n_predict = options_.n_predict,
                                      .ignore_eos = options_.ignore_eos});
  first_message_ = options_.prompt;
  if (options_.prompt_file) {
    HOTSET_TRY(first_message_, read_text(*options_.prompt_file));
  }
  is_terminal_ = isatty(STDIN_FILENO) == 1;
  if (options_.sampler.temperature > 0 && !options_.seed) log_info("--seed {}", sampling.seed);
  if (is_terminal_) {
    log_info(
        "/clear begins anew, /exit ends, Ctrl-C stops a reply; \\ at the end of a line goes on");
  }
  return {};
}

Status Chat::report(const ChatReply& reply) {
  const auto per_second = [](size_t n, double us) {
    return us > 0 ? static_cast<double>(n) * 1e6 / us : 0;
  };
  const size_t n_computed = reply.n_prompt - reply.n_reused;
  if (options_.json) {
    const nlohmann::ordered_json object = {
        {"text", reply.text},
        {"thinking", reply.thinking},
        {"tokens", reply.tokens},
        {"stop", reply.stop},
        {"n_prompt", reply.n_prompt},
        {"n_reused", reply.n_reused},
        {"n_generated", reply.tokens.size()},
        {"prompt_ms", reply.prompt_us / 1e3},
        {"generate_ms", reply.generate_us / 1e3},
        {"moe_cache", engine_session_->cache_json()},
    };
    return print(object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  HOTSET_RETURN_IF_ERROR(print("\n"));
  if (reply.stop == "context") {
    log_warning("stopped: the context of {} positions is full; raise it with -c, or /clear",
                engine_session_->engine().n_ctx());
  }
  if (reply.stop == "interrupted") log_info("stopped by Ctrl-C");
  log_info("prompt {} tokens, {} reused, {:.1f} tokens/s | generated {} tokens, {:.1f} tokens/s",
           reply.n_prompt, reply.n_reused, per_second(n_computed, reply.prompt_us),
           reply.tokens.size(), per_second(reply.tokens.size(), reply.generate_us));
  return {};
}

Status Chat::take(std::string message) {
  const InterruptScope scope;
  bool has_shown = false;
  const auto show = [&](std::string_view text) -> Status {
    has_shown = has_shown || !text.empty();
    return options_.json ? Status() : print(text);
  };
  auto reply = session_->reply(std::move(message), show);
  if (reply) return report(*reply);
  // A reply that broke off is ended, so that the message does not follow it on its line.
  if (has_shown && !options_.json) HOTSET_RETURN_IF_ERROR(print("\n"));
  const bool may_go_on = reply.error().code == ErrorCode::kInvalidArgument ||
                         reply.error().code == ErrorCode::kOutOfMemory ||
                         reply.error().code == ErrorCode::kUnsupported ||
                         reply.error().code == ErrorCode::kCancelled;
  if (!may_go_on) return std::unexpected(std::move(reply).error());
  log_warning("{}", reply.error().message);
  last_refusal_ = std::unexpected(std::move(reply).error());
  return {};
}

Status Chat::converse() {
  if (first_message_) HOTSET_RETURN_IF_ERROR(take(*std::exchange(first_message_, std::nullopt)));
  while (true) {
    HOTSET_TRY(std::optional<std::string> message, read_message(is_terminal_));
    if (!message) {
      if (is_terminal_) HOTSET_RETURN_IF_ERROR(print("\n"));
      break;
    }
    if (*message == "/exit") break;
    if (*message == "/clear") {
      session_->clear();
      log_info("the conversation begins anew");
      continue;
    }
    if (message->find_first_not_of(" \t\r\n") == std::string::npos) continue;
    HOTSET_RETURN_IF_ERROR(take(*std::move(message)));
  }
  return last_refusal_;
}

}  // namespace

Status chat(const RunOptions& options) {
  Chat chat(options);
  HOTSET_RETURN_IF_ERROR(chat.start());
  const Status conversed = chat.converse();
  const Status finished = chat.finish();
  return conversed ? finished : conversed;
}

}  // namespace hotset::cli
