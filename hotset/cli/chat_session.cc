#include "hotset/cli/chat_session.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "hotset/base/clock.h"
#include "hotset/text/reply_parser.h"

namespace hotset::cli {
namespace {

using nlohmann::ordered_json;

constexpr engine::SequenceId kSequence = 0;

// A reply as one text: an empty line between what was thought and what is said.
class ReplyText {
 public:
  std::string next(const text::ReplyParts& parts) {
    std::string text;
    add(parts.reasoning, Kind::kReasoning, text);
    add(parts.content, Kind::kContent, text);
    return text;
  }

 private:
  enum class Kind { kNone, kReasoning, kContent };

  void add(const std::string& part, Kind kind, std::string& text) {
    if (part.empty()) return;
    if (last_ != Kind::kNone && last_ != kind) text += "\n\n";
    last_ = kind;
    text += part;
  }

  Kind last_ = Kind::kNone;
};

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm fields = {};
  localtime_r(&now, &fields);
  return fields;
}

}  // namespace

struct ChatSession::Messages {
  ordered_json list = ordered_json::array();

  void add(std::string_view role, std::string content) {
    list.push_back({{"role", role}, {"content", std::move(content)}});
  }
};

ChatSession::ChatSession(measure::EngineSession& session, const text::Tokenizer& tokenizer,
                         text::ChatTemplate chat_template, engine::Sampler sampler,
                         ChatSessionOptions options)
    : session_(&session),
      engine_(&session.engine()),
      tokenizer_(&tokenizer),
      template_(std::move(chat_template)),
      sampler_(std::move(sampler)),
      options_(std::move(options)),
      messages_(std::make_unique<Messages>()) {
  clear();
}

ChatSession::~ChatSession() = default;

void ChatSession::clear() {
  messages_->list.clear();
  if (!options_.system.empty()) messages_->add("system", options_.system);
}

size_t ChatSession::n_messages() const { return messages_->list.size(); }

Result<ChatSession::Prompt> ChatSession::prompt() const {
  HOTSET_TRY(const std::string rendered,
             template_.render({.messages = messages_->list.dump(
                                   -1, ' ', false, ordered_json::error_handler_t::replace),
                               .variables = options_.variables,
                               .now = local_time()}));
  HOTSET_TRY(std::vector<int32_t> ids, text::encode_chat(*tokenizer_, rendered));
  if (ids.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: gives nothing for these messages",
                      template_.name());
  }
  if (std::cmp_greater(ids.size(), engine_->n_ctx())) {
    return make_error(ErrorCode::kOutOfMemory,
                      "the conversation has {} tokens, but the context holds {}; raise it with -c, "
                      "or begin anew with /clear",
                      ids.size(), engine_->n_ctx());
  }
  return Prompt{.ids = std::move(ids),
                .format = text::choose_reply_format(*tokenizer_, template_.source(), rendered,
                                                    /*with_tools=*/false)};
}

Result<std::span<const float>> ChatSession::compute_prompt(const std::vector<int32_t>& ids,
                                                           ChatReply& reply) {
  const auto [kept_end, ids_end] = std::ranges::mismatch(cached_, ids);
  // One token at least must be computed: there are no logits without.
  const size_t n_common = std::min(static_cast<size_t>(ids_end - ids.begin()), ids.size() - 1);
  engine_->forget(kSequence, static_cast<int32_t>(n_common), std::numeric_limits<int32_t>::max());
  // Windowed layers may not reach back that far; then it begins anew.
  const auto n_kept = std::min(n_common, static_cast<size_t>(engine_->next_position(kSequence)));
  cached_.resize(n_kept);
  reply.n_prompt = ids.size();
  reply.n_reused = n_kept;
  std::vector<engine::BatchToken> batch;
  for (size_t i = n_kept; i < ids.size(); ++i) {
    batch.push_back({.token = ids[i],
                     .position = static_cast<int32_t>(i),
                     .sequence = kSequence,
                     .want_logits = i + 1 == ids.size()});
  }
  HOTSET_TRY(const engine::DecodeResult result, session_->decode(batch));
  cached_ = ids;
  sampler_.forget_accepted();
  sampler_.accept(ids);
  return result.logits;
}

Status ChatSession::generate(std::span<const float> logits, text::ReplyFormat format,
                             const Show& show, ChatReply& reply) {
  text::ReplyParser parser(*tokenizer_, std::move(format));
  ReplyText text_of;
  reply.stop = "length";
  Status status;
  while (std::cmp_not_equal(reply.tokens.size(), options_.n_predict)) {
    const int32_t id = sampler_.sample(logits);
    if (!options_.ignore_eos && tokenizer_->is_end_of_generation(id)) {
      reply.stop = "end";
      break;
    }
    reply.tokens.push_back(id);
    sampler_.accept(id);
    auto parts = parser.push(id);
    status = parts ? show(text_of.next(*parts)) : std::unexpected(std::move(parts).error());
    if (!status) break;
    if (std::cmp_equal(reply.tokens.size(), options_.n_predict)) break;
    if (std::cmp_greater_equal(cached_.size(), engine_->n_ctx())) {
      reply.stop = "context";
      break;
    }
    const engine::BatchToken token{.token = id,
                                   .position = static_cast<int32_t>(cached_.size()),
                                   .sequence = kSequence,
                                   .want_logits = true};
    auto result = session_->decode({&token, 1});
    if (!result) {
      if (result.error().code == ErrorCode::kCancelled) {
        reply.stop = "interrupted";
      } else {
        status = std::unexpected(std::move(result).error());
      }
      break;
    }
    cached_.push_back(id);
    logits = result->logits;
  }
  if (status) status = show(text_of.next(parser.finish()));
  reply.text = parser.reply().content;
  reply.thinking = parser.reply().reasoning;
  return status;
}

Result<ChatReply> ChatSession::reply(std::string message, const Show& show) {
  const size_t n_before = n_messages();
  const auto unsay = [this, n_before] {
    messages_->list.erase(messages_->list.begin() + static_cast<std::ptrdiff_t>(n_before),
                          messages_->list.end());
  };
  messages_->add("user", std::move(message));
  ChatReply reply;
  const double start_us = steady_clock().now_us();
  auto asked = prompt();
  if (!asked) {
    unsay();
    return std::unexpected(std::move(asked).error());
  }
  const auto logits = compute_prompt(asked->ids, reply);
  reply.prompt_us = steady_clock().now_us() - start_us;
  if (!logits) {
    unsay();
    if (logits.error().code != ErrorCode::kCancelled) return std::unexpected(logits.error());
    reply.stop = "interrupted";
    return reply;
  }
  if (Status generated = generate(*logits, std::move(asked->format), show, reply); !generated) {
    unsay();
    return std::unexpected(std::move(generated).error());
  }
  reply.generate_us = steady_clock().now_us() - start_us - reply.prompt_us;
  messages_->add("assistant", reply.text);
  if (!reply.thinking.empty()) {
    // Templates know it by one of these names.
    messages_->list.back()["reasoning_content"] = reply.thinking;
    messages_->list.back()["thinking"] = reply.thinking;
  }
  return reply;
}

}  // namespace hotset::cli
