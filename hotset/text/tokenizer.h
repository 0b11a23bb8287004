// Text to token ids and back, as a model's vocabulary defines it. Owns the vocabulary.
// Thread-safe: constant after creation; any number of threads may encode and decode at once.
#ifndef HOTSET_TEXT_TOKENIZER_H_
#define HOTSET_TEXT_TOKENIZER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/text/special_tokens.h"
#include "hotset/text/text_encoder.h"
#include "hotset/text/tokenizer_spec.h"

namespace hotset::text {

struct EncodeOptions {
  // Control tokens that are written in the text ("<|im_end|>") become these tokens. Off for text
  // from outside, which must not be able to end a turn. User-defined tokens always do.
  bool parse_special = false;
  // The text has text marks (text_marks.h): no token is recognised across one, and then they are
  // nothing.
  bool drop_marks = false;
  // BOS in front, if texts of this model begin with one (Tokenizer::adds_bos()).
  bool add_bos = false;
  // EOS behind, if texts of this model end with one (Tokenizer::adds_eos()).
  bool add_eos = false;
};

struct DecodeOptions {
  // Control and unknown tokens are written as their names; otherwise they are nothing.
  bool render_special = false;
  // The ids go on where others ended, so the space that a vocabulary puts in front of a text is
  // part of this one.
  bool continues_text = false;
};

// Where a decoder stands; a fresh one is at the start of a text.
struct DecodeState {
  bool at_start = true;  // of a text, or behind a special token
};

class Tokenizer {
 public:
  // Checks all of `spec`.
  // Errors: kUnsupported: the model or pre-tokenizer is unknown (the message lists the known ones);
  // kCorrupt: sizes that disagree, ids out of range, duplicate tokens, merges of unknown tokens,
  // ...; the message names the field, what was found and what was expected.
  static Result<Tokenizer> create(TokenizerSpec spec);

  // The ids of `text`, which may be any bytes.
  // Errors: kInvalidArgument: longer than 1 GiB; kUnsupported: the vocabulary has no token for a
  // byte of the text, nor an unknown token.
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;

  // The text of `ids`, which is that of encode() byte for byte.
  // Errors: kInvalidArgument: an id that is no token.
  Result<std::string> decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  // Appends the bytes of one more token. Errors: as decode().
  Status decode_next(int32_t id, DecodeOptions options, DecodeState& state,
                     std::string& bytes) const;

  // The bytes that a token stands for, a control token's name included; not always whole
  // characters. Errors: kInvalidArgument: no such id.
  Result<std::string_view> piece(int32_t id) const;

  // The most bytes of ordinary text that one token stands for; at least 4, those of a character
  // that is unknown. So a text of n bytes has n divided by this many tokens or more.
  size_t max_piece_bytes() const { return max_piece_bytes_; }

  // The token that the file writes as `text`; nothing if there is none.
  std::optional<int32_t> find_token(std::string_view text) const;

  int32_t n_tokens() const { return static_cast<int32_t>(spec_.tokens.size()); }
  // Errors: kInvalidArgument: no such id.
  Result<TokenType> type(int32_t id) const;
  std::optional<int32_t> bos() const { return spec_.bos; }
  std::optional<int32_t> eos() const { return spec_.eos; }
  std::optional<int32_t> eot() const { return spec_.eot; }
  std::optional<int32_t> unk() const { return spec_.unk; }
  std::optional<int32_t> pad() const { return spec_.pad; }
  bool adds_bos() const { return adds_bos_; }
  bool adds_eos() const { return adds_eos_; }

  // Whether a model that gives this token has said all it wants to: EOS, the end of a turn or of a
  // message to a tool. False for ids that are no tokens.
  bool is_end_of_generation(int32_t id) const;
  // All such ids, ascending.
  std::span<const int32_t> end_of_generation_ids() const { return end_of_generation_; }

 private:
  Tokenizer() = default;
  Status index_tokens();
  void make_pieces();
  Status choose_bos_and_eos(bool default_bos);
  void collect_special_tokens();
  void collect_end_of_generation();
  Status check_id(int32_t id) const;

  TokenizerSpec spec_;
  std::vector<std::string> pieces_;  // by id
  size_t max_piece_bytes_ = 4;
  std::unordered_map<std::string_view, int32_t> by_text_;  // into spec_.tokens
  std::unique_ptr<const TextEncoder> encoder_;             // refers to spec_.tokens and pieces_
  SpecialTokens user_defined_;
  SpecialTokens special_;  // user-defined, control and unknown ones
  std::vector<int32_t> end_of_generation_;
  bool adds_bos_ = false;
  bool adds_eos_ = false;
  bool strips_space_ = false;  // encode() puts a space in front of a text, decode() takes it away
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_TOKENIZER_H_
