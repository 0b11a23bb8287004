#include "hotset/server/reply.h"

#include <chrono>
#include <utility>

namespace hotset::server {

void ReplyChannel::push(ReplyEvent event) {
  const std::lock_guard lock(mutex_);
  events_.push_back(std::move(event));
  comes_.notify_one();
}

std::optional<ReplyEvent> ReplyChannel::take(double timeout_us) {
  std::unique_lock lock(mutex_);
  comes_.wait_for(lock, std::chrono::duration<double, std::micro>(timeout_us),
                  [this] { return !events_.empty(); });
  if (events_.empty()) return std::nullopt;
  ReplyEvent event = std::move(events_.front());
  events_.pop_front();
  return event;
}

std::string token_bytes(const text::Tokenizer& tokenizer, int32_t id) {
  const auto piece = tokenizer.piece(id);
  return piece ? std::string(*piece) : std::string();
}

ReplySink::ReplySink(const text::Tokenizer& tokenizer, std::shared_ptr<ReplyChannel> channel,
                     ReplyOptions options)
    : tokenizer_(tokenizer),
      channel_(std::move(channel)),
      options_(std::move(options)),
      scanner_(options_.stop) {
  if (options_.is_chat) {
    parser_.emplace(tokenizer);
  } else {
    decoder_.emplace(tokenizer, text::DecodeOptions{.continues_text = true});
  }
}

ReplySink::Parts ReplySink::push(int32_t id) {
  // A vocabulary may have fewer tokens than the embedding has rows; the rest say nothing.
  if (id >= tokenizer_.n_tokens()) return {};
  if (!parser_) return {.content = decoder_->push(id).value_or(""), .reasoning = {}};
  Parts parts{.content = parser_->push(id).value_or(""), .reasoning = {}};
  parts.reasoning = parser_->thinking().substr(n_thought_);
  n_thought_ += parts.reasoning.size();
  return parts;
}

ReplySink::Parts ReplySink::finish() {
  return {.content = parser_ ? parser_->finish() : decoder_->finish(), .reasoning = {}};
}

bool ReplySink::on_token(const GeneratedToken& token) {
  Parts parts = push(token.id);
  ReplyEvent event{.choice = options_.choice,
                   .content = scanner_.push(parts.content),
                   .reasoning = std::move(parts.reasoning)};
  if (options_.keeps_tokens) {
    ReplyToken kept{.token = token, .bytes = token_bytes(tokenizer_, token.id), .top_bytes = {}};
    for (const TokenLogprob& top : token.top) {
      kept.top_bytes.push_back(token_bytes(tokenizer_, top.id));
    }
    event.token = std::move(kept);
  }
  if (!event.content.empty() || !event.reasoning.empty() || event.token) {
    channel_->push(std::move(event));
  }
  return !scanner_.found();
}

void ReplySink::on_end(const ChoiceResult& result) {
  ReplyEvent event{.choice = options_.choice};
  if (!scanner_.found()) {
    const Parts parts = finish();
    event.content = scanner_.push(parts.content) + scanner_.finish();
    event.reasoning = parts.reasoning;
  }
  event.end = result;
  event.stop = scanner_.stop();
  // A stop string in the very last piece.
  if (scanner_.found() && result.reason != StopReason::kError &&
      result.reason != StopReason::kCancelled) {
    event.end->reason = StopReason::kStop;
  }
  channel_->push(std::move(event));
}

}  // namespace hotset::server
