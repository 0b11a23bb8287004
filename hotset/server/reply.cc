#include "hotset/server/reply.h"

#include <fmt/core.h>

#include <atomic>
#include <chrono>
#include <random>
#include <utility>

namespace hotset::server {
namespace {

// Where the model gives none. Unique in this process, which is as far as anyone compares them.
std::string new_call_id() {
  static std::atomic<uint64_t> counter = 0;
  static const uint64_t start = std::random_device()();
  return fmt::format("call_{:08x}{:08x}", start, counter++);
}

}  // namespace

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
  if (options_.format) {
    parser_.emplace(tokenizer, *options_.format);
  } else {
    decoder_.emplace(tokenizer, text::DecodeOptions{.continues_text = true});
  }
}

text::ReplyParts ReplySink::push(int32_t id) {
  // A vocabulary may have fewer tokens than the embedding has rows; the rest say nothing.
  if (id >= tokenizer_.n_tokens()) return {};
  if (parser_) return parser_->push(id).value_or(text::ReplyParts{});
  return {.content = decoder_->push(id).value_or(""), .reasoning = {}, .tool_calls = {}};
}

ReplyEvent ReplySink::event_of(text::ReplyParts parts) {
  ReplyEvent event{.choice = options_.choice,
                   .content = scanner_.push(parts.content),
                   .reasoning = std::move(parts.reasoning),
                   .tool_calls = std::move(parts.tool_calls)};
  for (text::ToolCall& call : event.tool_calls) {
    if (call.id.empty()) call.id = new_call_id();
  }
  return event;
}

bool ReplySink::on_token(const GeneratedToken& token) {
  ReplyEvent event = event_of(push(token.id));
  if (options_.keeps_tokens) {
    ReplyToken kept{.token = token, .bytes = token_bytes(tokenizer_, token.id), .top_bytes = {}};
    for (const TokenLogprob& top : token.top) {
      kept.top_bytes.push_back(token_bytes(tokenizer_, top.id));
    }
    event.token = std::move(kept);
  }
  if (!event.content.empty() || !event.reasoning.empty() || !event.tool_calls.empty() ||
      event.token) {
    channel_->push(std::move(event));
  }
  return !scanner_.found();
}

void ReplySink::on_end(const ChoiceResult& result) {
  ReplyEvent event{.choice = options_.choice};
  if (!scanner_.found()) {
    text::ReplyParts rest;
    if (parser_) {
      rest = parser_->finish();
    } else {
      rest.content = decoder_->finish();
    }
    event = event_of(std::move(rest));
    event.content += scanner_.finish();
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
