// How ordinary text, without special tokens, becomes token ids: one implementation per tokenizer
// model. The Tokenizer owns one.
// Thread-safe: constant after creation.
#ifndef HOTSET_TEXT_TEXT_ENCODER_H_
#define HOTSET_TEXT_TEXT_ENCODER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::text {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;

  // Appends the ids of `text`, which begins a text or follows a special token and is not empty.
  // Requires: text.size() <= kMaxTextBytes.
  // Errors: kUnsupported: a byte has no token and the vocabulary no unknown token;
  // kInvalidArgument: a limit of the pre-tokenizer.
  virtual Status encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
};

// Positions in a text are 32 bits wide.
inline constexpr size_t kMaxTextBytes = 1u << 30;

}  // namespace hotset::text

#endif  // HOTSET_TEXT_TEXT_ENCODER_H_
