// Checks the header of a GGUF file before ggml's reader sees it.
//
// ggml's own reader trusts counts, compares every key with every other one and reports through a
// log callback; hotset's files come from strangers. So the bytes are walked once here, with every
// length checked against what is left of the file, and only what passes goes on. The values
// themselves are then read through ggml's API.
// Thread-safe: a pure function.
#ifndef HOTSET_MODEL_GGUF_SCAN_H_
#define HOTSET_MODEL_GGUF_SCAN_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "hotset/base/error.h"

namespace hotset::model {

// Upper bounds that no real file comes near: the largest have 100 keys and 3,000 tensors a file.
inline constexpr uint64_t kMaxGgufKeys = 16384;
inline constexpr uint64_t kMaxGgufTensors = 32768;

// `file_name` goes into messages.
// Errors: kCorrupt (the message has the byte offset), kUnsupported (version, byte order, tensor
// type that this ggml does not know).
Status scan_gguf(std::span<const uint8_t> bytes, std::string_view file_name);

}  // namespace hotset::model

#endif  // HOTSET_MODEL_GGUF_SCAN_H_
