// SentencePiece's BPE: a space is written U+2581, each character is a symbol, and the pair of
// neighbouring symbols whose joined text is the token with the highest score becomes one, leftmost
// first (Kudo, Richardson 2018). Characters without a token become tokens of their bytes.
// Thread-safe: constant after creation.
#ifndef HOTSET_TEXT_SPM_ENCODER_H_
#define HOTSET_TEXT_SPM_ENCODER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hotset/text/text_encoder.h"
#include "hotset/text/tokenizer_spec.h"

namespace hotset::text {

// How a space is written in the vocabulary.
inline constexpr std::string_view kSpmSpace = "\xE2\x96\x81";

// The byte that "<0x0A>" names; nothing if `token` has another form.
std::optional<uint8_t> parse_byte_token(std::string_view token);

class SpmEncoder final : public TextEncoder {
 public:
  // Uses tokens, types, scores, unk and add_space_prefix of `spec`, whose sizes and types have been
  // checked and which must outlive the encoder.
  // Errors: kCorrupt: a score that is not a number, a byte token that names no byte.
  static Result<std::unique_ptr<SpmEncoder>> create(const TokenizerSpec& spec);

  // Puts a space in front of the text where the vocabulary asks for it (the default).
  // Time O(n log n) for n bytes.
  Status encode(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  struct Token {
    int32_t id;
    float score;
    bool unused;  // may be passed through on the way to a longer token, but is no result
  };
  struct Symbol {
    uint32_t begin;    // in Workspace::written
    uint32_t n_bytes;  // 0: merged into the symbol before it
    int32_t previous;  // positions in Workspace::symbols, below 0 at the ends
    int32_t next;
  };
  // A pair that may be merged, unless one of its symbols has changed since it was found.
  struct Join {
    float score;
    int32_t left;
    uint32_t n_bytes;  // of both symbols
  };
  using Halves = std::unordered_map<std::string_view, size_t>;  // text -> bytes of its left half
  // Memory of one call to encode().
  struct Workspace {
    std::string written;  // the text in the vocabulary's way
    std::vector<Symbol> symbols;
    std::vector<Join> heap;
    Halves halves;  // of unused tokens that were made

    std::string_view text_of(const Symbol& symbol) const {
      return std::string_view(written).substr(symbol.begin, symbol.n_bytes);
    }
  };

  SpmEncoder() = default;
  void split_into_symbols(std::string_view text, Workspace& workspace) const;
  void add_candidate(int32_t left, Workspace& workspace) const;
  void merge_all(Workspace& workspace) const;
  // The ids of a symbol that is no token by itself: of the halves that an unused token was made of,
  // as deep as it takes, or of its bytes.
  Status append_parts(std::string_view symbol, const Halves& halves,
                      std::vector<int32_t>& ids) const;

  std::unordered_map<std::string_view, Token> tokens_;  // that ordinary text may become
  size_t longest_bytes_ = 0;                            // of the texts in tokens_
  std::array<int32_t, 256> byte_ids_;                   // below 0: no token
  std::optional<int32_t> unk_;
  bool add_space_prefix_ = true;
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_SPM_ENCODER_H_
