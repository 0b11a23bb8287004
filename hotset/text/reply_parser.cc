#include "hotset/text/reply_parser.h"

#include <utility>

namespace hotset::text {
namespace {

constexpr std::string_view kSayingChannel = "final";

}  // namespace

ReplyParser::ReplyParser(const Tokenizer& tokenizer)
    : tokenizer_(&tokenizer), decoder_(tokenizer, {.continues_text = true}) {
  const auto channel = tokenizer.find_token("<|channel|>");
  const auto message = tokenizer.find_token("<|message|>");
  const auto start = tokenizer.find_token("<|start|>");
  if (!channel || !message || !start) return;
  channel_ = channel;
  message_ = message;
  start_ = start;
  place_ = Place::kHeader;
}

std::string ReplyParser::take(std::string text) {
  if (place_ == Place::kHeader || text.empty()) return "";
  if (place_ == Place::kChannel) {
    channel_name_ += text;
    return "";
  }
  // A channel may be followed by who is meant: "commentary to=...".
  const bool says = !channel_ || channel_name_.starts_with(kSayingChannel) || channel_name_.empty();
  (says ? content_ : thinking_) += text;
  if (std::exchange(is_new_part_, false) && has_shown_) text.insert(0, "\n\n");
  has_shown_ = true;
  return text;
}

Result<std::string> ReplyParser::push(int32_t id) {
  if (id >= tokenizer_->n_tokens()) return std::string();
  if (channel_ && (id == *channel_ || id == *message_ || id == *start_)) {
    std::string shown = take(decoder_.finish());
    if (id == *channel_) channel_name_.clear();
    place_ = id == *channel_ ? Place::kChannel : id == *message_ ? Place::kBody : Place::kHeader;
    is_new_part_ = is_new_part_ || id == *message_;
    return shown;
  }
  HOTSET_TRY(std::string text, decoder_.push(id));
  return take(std::move(text));
}

std::string ReplyParser::finish() { return take(decoder_.finish()); }

}  // namespace hotset::text
