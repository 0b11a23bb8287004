// What a model writes as its reply, token by token, as text: streamed, with what it thought apart
// from what it says where the vocabulary has signs for that (OpenAI's Harmony: "<|channel|>name
// <|message|>text<|end|>" for each part).
// Thread-compatible.
#ifndef HOTSET_TEXT_REPLY_PARSER_H_
#define HOTSET_TEXT_REPLY_PARSER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/error.h"
#include "hotset/text/stream_decoder.h"
#include "hotset/text/tokenizer.h"

namespace hotset::text {

class ReplyParser {
 public:
  // Requires: `tokenizer` outlives this.
  explicit ReplyParser(const Tokenizer& tokenizer);

  // The text to show that the next token makes certain; often empty. A part that follows another
  // one begins behind an empty line. Tokens that the vocabulary has no text for give nothing.
  // Errors: as StreamDecoder::push().
  Result<std::string> push(int32_t id);
  // The end of the reply: the last text to show.
  std::string finish();

  // What the model says, so far.
  const std::string& content() const { return content_; }
  // What it thought before, if the vocabulary tells the two apart.
  const std::string& thinking() const { return thinking_; }

 private:
  enum class Place { kHeader, kChannel, kBody };

  std::string take(std::string text);

  const Tokenizer* tokenizer_;
  StreamDecoder decoder_;
  std::optional<int32_t> channel_;  // the three signs; absent where the vocabulary has not all
  std::optional<int32_t> message_;
  std::optional<int32_t> start_;
  Place place_ = Place::kBody;
  bool has_shown_ = false;
  bool is_new_part_ = false;
  std::string channel_name_;
  std::string content_;
  std::string thinking_;
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_REPLY_PARSER_H_
