// What a model file says about its tokenizer, as plain data: read by someone else, checked by
// Tokenizer::create(). Field names follow the GGUF keys `tokenizer.ggml.*`.
// Thread-compatible: plain values.
#ifndef HOTSET_TEXT_TOKENIZER_SPEC_H_
#define HOTSET_TEXT_TOKENIZER_SPEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hotset::text {

// The values are those of the file.
enum class TokenType : int32_t {
  kNormal = 1,       // text, written in the way of the tokenizer's model
  kUnknown = 2,      // stands for text that has no token
  kControl = 3,      // a sign between model and runtime, never made of ordinary text
  kUserDefined = 4,  // literal text that is always one token
  kUnused = 5,       // a place that nothing may use
  kByte = 6,         // "<0x0A>": one byte of text that has no other token (model `llama`)
};

struct TokenizerSpec {
  std::string model = {};  // "gpt2": byte-level BPE; "llama": SentencePiece's BPE with scores
  std::string pre =
      {};  // pre-tokenizer of `gpt2`, a name of known_pretokenizers(); empty: "default"

  // By token id. Bytes as the file has them: for `gpt2` in the byte alphabet, for `llama` with
  // U+2581 for a space; control, unknown and user-defined tokens are literal.
  std::vector<std::string> tokens = {};
  std::vector<int32_t> types = {};  // values of TokenType; empty: all normal
  std::vector<float> scores = {};  // `llama`: higher merges first; otherwise not used, may be empty
  // `gpt2`: "left right", both texts of tokens, the first merges first.
  std::vector<std::string> merges = {};

  std::optional<int32_t> bos = {};  // begin of sequence
  std::optional<int32_t> eos = {};  // end of sequence
  std::optional<int32_t> eot = {};  // end of turn
  std::optional<int32_t> eom = {};  // end of message, a tool answers next
  std::optional<int32_t> unk = {};
  std::optional<int32_t> pad = {};

  // Absent: what is usual for the model and pre-tokenizer.
  std::optional<bool> add_bos = {};
  std::optional<bool> add_eos = {};
  std::optional<bool> add_space_prefix = {};  // `llama` only
};

// Requires: types is empty or has an entry for `id`.
inline TokenType token_type(const TokenizerSpec& spec, size_t id) {
  return spec.types.empty() ? TokenType::kNormal : static_cast<TokenType>(spec.types[id]);
}

}  // namespace hotset::text

#endif  // HOTSET_TEXT_TOKENIZER_SPEC_H_
