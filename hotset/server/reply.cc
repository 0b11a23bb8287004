#include "hotset/server/reply.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <utility>

#include "hotset/base/utf8.h"

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

size_t n_characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string valid_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Step step = next_utf8(bytes);
    text += step.kind == Utf8Kind::kValid ? bytes.substr(0, step.n_bytes) : kReplacementCharacter;
    bytes.remove_prefix(step.n_bytes);
  }
  return text;
}

// --- TokenPlaces

TokenPlaces::Step TokenPlaces::push(int32_t id) {
  Step step{.text = {}, .begin = n_bytes_, .offset = n_characters_};
  // A vocabulary may have fewer tokens than the embedding has rows; the rest say nothing.
  if (id >= tokenizer_.n_tokens()) return step;
  if (!decoder_.pending().empty()) {
    const size_t n_pending = decoder_.pending().size();
    const std::string bytes = std::string(decoder_.pending()) + token_bytes(tokenizer_, id);
    if (bytes.size() > n_pending && next_utf8(bytes).n_bytes == n_pending) {
      // What waited is no beginning of a character that the token goes on with.
      step.begin += kReplacementCharacter.size();
      ++step.offset;
    }
  }
  step.text = decoder_.push(id).value_or("");
  n_bytes_ += step.text.size();
  n_characters_ += n_characters(step.text);
  return step;
}

// --- HeldTokens

void HeldTokens::push(ReplyToken token, const TokenPlaces::Step& place) {
  held_.push_back({.token = std::move(token), .begin = place.begin});
  unknown_ += place.text;
  n_text_ += place.text.size();
}

size_t HeldTokens::find(std::string_view part) {
  const size_t begin = n_text_ - unknown_.size();
  size_t at = 0;
  // Behind a sign, or behind what is known to be none only now.
  if (!unknown_.starts_with(part)) {
    at = unknown_.rfind(part);
    if (at == std::string::npos) at = unknown_.size() - std::min(part.size(), unknown_.size());
  }
  unknown_.erase(0, at + part.size());
  return begin + at;
}

void HeldTokens::said(std::string_view content) {
  if (content.empty()) return;
  const size_t begin = find(content);
  parts_.push_back({.content_begin = n_content_, .begin = begin, .n_bytes = content.size()});
  n_content_ += content.size();
}

std::vector<ReplyToken> HeldTokens::take(size_t n_content) {
  while (!parts_.empty() && parts_.front().content_begin + parts_.front().n_bytes <= n_content) {
    parts_.pop_front();
  }
  size_t end = n_text_ - unknown_.size();
  if (!parts_.empty()) {
    const Part& part = parts_.front();
    end = part.begin + (n_content - std::min(n_content, part.content_begin));
  }
  std::vector<ReplyToken> tokens;
  for (; !held_.empty() && held_.front().begin < end; held_.pop_front()) {
    tokens.push_back(std::move(held_.front().token));
  }
  return tokens;
}

std::vector<ReplyToken> HeldTokens::take_all() {
  std::vector<ReplyToken> tokens;
  for (Held& held : held_) tokens.push_back(std::move(held.token));
  held_.clear();
  return tokens;
}

// --- ReplySink

ReplySink::ReplySink(const text::Tokenizer& tokenizer, std::shared_ptr<ReplyChannel> channel,
                     ReplyOptions options)
    : tokenizer_(tokenizer),
      channel_(std::move(channel)),
      options_(std::move(options)),
      scanner_(options_.stop) {
  if (options_.format) parser_.emplace(tokenizer, *options_.format);
  if (parser_ && !(options_.keeps_tokens && scanner_.has_stops())) return;
  places_.emplace(
      tokenizer, text::DecodeOptions{.render_special = parser_.has_value(), .continues_text = true},
      options_.echo ? n_characters(options_.echo->text) : 0);
}

ReplyToken ReplySink::reply_token(const GeneratedToken& token, size_t offset) const {
  ReplyToken kept{
      .token = token, .bytes = token_bytes(tokenizer_, token.id), .text_offset = offset};
  for (const TokenLogprob& top : token.top) {
    kept.top_bytes.push_back(token_bytes(tokenizer_, top.id));
  }
  return kept;
}

void ReplySink::on_prompt(std::span<const GeneratedToken> tokens) {
  if (!options_.echo) return;
  has_echoed_ = true;
  ReplyEvent event{.choice = options_.choice, .content = options_.echo->text};
  TokenPlaces places(tokenizer_, {.render_special = true}, 0);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool is_hidden = i == 0 && options_.echo->has_hidden_token;
    const size_t offset = is_hidden ? 0 : places.push(tokens[i].id).offset;
    event.tokens.push_back(reply_token(tokens[i], offset));
    event.tokens.back().has_logprob = i > 0;
  }
  channel_->push(std::move(event));
}

text::ReplyParts ReplySink::push(const GeneratedToken& token) {
  TokenPlaces::Step place{};
  if (places_) place = places_->push(token.id);
  text::ReplyParts parts;
  if (!parser_) {
    parts.content = place.text;
  } else if (token.id < tokenizer_.n_tokens()) {
    parts = parser_->push(token.id).value_or(text::ReplyParts{});
  }
  if (!options_.keeps_tokens) return parts;
  ReplyToken kept = reply_token(token, place.offset);
  if (!scanner_.has_stops()) {
    next_tokens_.push_back(std::move(kept));
    return parts;
  }
  held_.push(std::move(kept), place);
  return parts;
}

ReplyEvent ReplySink::event_of(text::ReplyParts parts) {
  if (options_.one_call && !parts.tool_calls.empty()) parts.tool_calls.resize(1);
  has_called_ = has_called_ || !parts.tool_calls.empty();
  if (scanner_.has_stops() && options_.keeps_tokens) {
    held_.thought(parts.reasoning);
    held_.said(parts.content);
    if (!parts.tool_calls.empty()) held_.settle();
  }
  ReplyEvent event{.choice = options_.choice,
                   .content = scanner_.push(parts.content),
                   .reasoning = std::move(parts.reasoning),
                   .tool_calls = std::move(parts.tool_calls),
                   .tokens = std::exchange(next_tokens_, {})};
  for (text::ToolCall& call : event.tool_calls) {
    if (call.id.empty()) call.id = new_call_id();
  }
  if (scanner_.has_stops()) event.tokens = held_.take(scanner_.n_certain());
  return event;
}

bool ReplySink::on_token(const GeneratedToken& token) {
  ReplyEvent event = event_of(push(token));
  if (!event.content.empty() || !event.reasoning.empty() || !event.tool_calls.empty() ||
      !event.tokens.empty()) {
    channel_->push(std::move(event));
  }
  return !has_enough();
}

void ReplySink::on_end(const ChoiceResult& result) {
  const bool is_broken_off =
      result.reason == StopReason::kError || result.reason == StopReason::kCancelled;
  if (options_.echo && !has_echoed_ && !is_broken_off) on_prompt({});
  ReplyEvent event{.choice = options_.choice};
  if (!has_enough()) {
    text::ReplyParts rest;
    if (parser_) {
      rest = parser_->finish();
    } else {
      rest.content = places_->finish();
    }
    event = event_of(std::move(rest));
    event.content += scanner_.finish();
    if (!scanner_.found()) std::ranges::move(held_.take_all(), std::back_inserter(event.tokens));
  }
  event.end = result;
  event.stop = scanner_.stop();
  // A stop string in the very last piece.
  if (scanner_.found() && !is_broken_off) event.end->reason = StopReason::kStop;
  channel_->push(std::move(event));
}

}  // namespace hotset::server
