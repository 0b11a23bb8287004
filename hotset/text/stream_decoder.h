// Turns the tokens of a running generation into text that can be shown at once.
// Refers to a Tokenizer, which must outlive it.
// Thread-compatible.
#ifndef HOTSET_TEXT_STREAM_DECODER_H_
#define HOTSET_TEXT_STREAM_DECODER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/text/tokenizer.h"

namespace hotset::text {

// What it gives is always valid UTF-8: bytes wait until the sequence that they begin is whole, and
// bytes that cannot become text are U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, DecodeOptions options = {})
      : tokenizer_(&tokenizer), options_(options), state_{.at_start = !options.continues_text} {}

  // The text that the next token makes certain; often empty.
  // Errors: kInvalidArgument: an id that is no token.
  Result<std::string> push(int32_t id);

  // The end: what stands for a sequence that was never completed. The decoder is then as new.
  std::string finish();

  // The bytes that wait for the rest of their character. Valid until the next call.
  std::string_view pending() const { return pending_; }

 private:
  std::string take_certain();

  const Tokenizer* tokenizer_;
  DecodeOptions options_;
  DecodeState state_;
  std::string pending_;
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_STREAM_DECODER_H_
