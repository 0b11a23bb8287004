// Checks the header of a GGUF file before ggml's reader sees it.
//
// ggml's own reader trusts counts, compares every key with every other one and reports through a
// log callback; hotset's files come from strangers. So the bytes are walked once here, with every
// length checked against what is left of the file, and only what passes goes on. The values
// themselves are then read through ggml's API, but for texts: it ends them at their first NUL, so
// their places are kept here.
// Thread-safe: a pure function.
#ifndef HOTSET_MODEL_GGUF_SCAN_H_
#define HOTSET_MODEL_GGUF_SCAN_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "hotset/base/error.h"

namespace hotset::model {

// Upper bounds that no real file comes near: the largest have 100 keys and 3,000 tensors a file.
inline constexpr uint64_t kMaxGgufKeys = 16384;
inline constexpr uint64_t kMaxGgufTensors = 32768;

// For every key whose value is a text or an array of texts, the byte of the file where the first
// one's length stands, eight bytes in front of its text; the others follow without a gap.
using TextPositions = std::unordered_map<std::string, uint64_t>;

// `file_name` goes into messages.
// Errors: kCorrupt (the message has the byte offset), kUnsupported (version, byte order, tensor
// type that this ggml does not know).
Result<TextPositions> scan_gguf(std::span<const uint8_t> bytes, std::string_view file_name);

}  // namespace hotset::model

#endif  // HOTSET_MODEL_GGUF_SCAN_H_
