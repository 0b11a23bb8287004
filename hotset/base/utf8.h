// UTF-8 as Unicode defines it (Table 3-7): no surrogates, no overlong forms, nothing above
// U+10FFFF. Thread-safe: pure functions.
#ifndef HOTSET_BASE_UTF8_H_
#define HOTSET_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hotset {

enum class Utf8Kind {
  kValid,       // a whole sequence
  kInvalid,     // bytes that no continuation can make valid
  kIncomplete,  // the text ends inside a sequence that was valid so far
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kInvalid;
  size_t n_bytes = 0;  // of the sequence, or of the maximal part of one that is invalid or cut off
  char32_t codepoint = 0;  // of a valid sequence
};

// The first step of `text`. Requires: text is not empty.
Utf8Step next_utf8(std::string_view text);

// Number of bytes at the start of `text` that are whole valid sequences.
size_t valid_utf8_prefix(std::string_view text);

// Appends the UTF-8 form of `codepoint`. Requires: a Unicode scalar value.
void append_utf8(std::string& out, char32_t codepoint);

// What stands for bytes that are no text: U+FFFD.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace hotset

#endif  // HOTSET_BASE_UTF8_H_
