#include "hotset/text/stream_decoder.h"

#include <string_view>

#include "hotset/base/utf8.h"

namespace hotset::text {

std::string StreamDecoder::take_certain() {
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const std::string_view rest = std::string_view(pending_).substr(at);
    const Utf8Step step = next_utf8(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    text += step.kind == Utf8Kind::kValid ? rest.substr(0, step.n_bytes) : kReplacementCharacter;
    at += step.n_bytes;
  }
  pending_.erase(0, at);
  return text;
}

Result<std::string> StreamDecoder::push(int32_t id) {
  HOTSET_RETURN_IF_ERROR(tokenizer_->decode_next(id, options_, state_, pending_));
  return take_certain();
}

std::string StreamDecoder::finish() {
  const bool is_cut_off = !pending_.empty();
  pending_.clear();
  state_ = {.at_start = !options_.continues_text};
  return is_cut_off ? std::string(kReplacementCharacter) : std::string();
}

}  // namespace hotset::text
