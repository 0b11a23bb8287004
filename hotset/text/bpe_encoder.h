// Byte-level BPE: a text is cut into words, each byte of a word is a symbol, and the pair of
// neighbouring symbols that stands first in the list of merges becomes one, leftmost first, until
// no pair is in the list (Sennrich, Haddow, Birch 2016; on bytes: Radford et al. 2019).
// Thread-safe: constant after creation.
#ifndef HOTSET_TEXT_BPE_ENCODER_H_
#define HOTSET_TEXT_BPE_ENCODER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hotset/text/pretokenizer.h"
#include "hotset/text/text_encoder.h"
#include "hotset/text/tokenizer_spec.h"

namespace hotset::text {

class BpeEncoder final : public TextEncoder {
 public:
  // Uses tokens, types, merges, pre and unk of `spec`, whose sizes and types have been checked.
  // `pieces[id]` is the text that token id stands for; it must outlive the encoder.
  // Errors: kUnsupported: unknown pre-tokenizer; kCorrupt: a merge that is malformed or names
  // a text that is no token.
  static Result<std::unique_ptr<BpeEncoder>> create(const TokenizerSpec& spec,
                                                    const std::vector<std::string>& pieces);

  // Time O(n log n) for a word of n bytes.
  Status encode(std::string_view text, std::vector<int32_t>& ids) const override;

  const Pretokenizer::Traits& traits() const { return pretokenizer_.traits(); }

 private:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t rank;     // its place in the list
    int32_t product;  // the token that the pair becomes
  };
  struct Symbol {
    int32_t id;        // below 0: a byte without a token, or merged into the symbol before it
    int32_t previous;  // positions in Workspace::symbols, below 0 at the ends
    int32_t next;
  };
  // A pair that may be merged, unless one of its symbols has changed since it was found.
  struct PossibleMerge {
    int32_t rank;
    int32_t left;  // position in Workspace::symbols
    int32_t left_id;
    int32_t right_id;
    int32_t product;
  };
  // Memory of one call to encode(), reused from word to word.
  struct Workspace {
    std::vector<Symbol> symbols;
    std::vector<PossibleMerge> heap;
  };

  explicit BpeEncoder(Pretokenizer pretokenizer) : pretokenizer_(std::move(pretokenizer)) {}

  void add_tokens(const TokenizerSpec& spec, const std::vector<std::string>& pieces);
  Status add_merges(const TokenizerSpec& spec);
  const Merge* find_merge(int32_t left, int32_t right) const;
  Status encode_word(std::string_view word, Workspace& workspace, std::vector<int32_t>& ids) const;
  void add_candidate(int32_t left, Workspace& workspace) const;

  Pretokenizer pretokenizer_;
  std::optional<int32_t> unk_;
  std::array<int32_t, 256> byte_ids_;
  // Tokens that ordinary text may become, by the text they stand for.
  std::unordered_map<std::string_view, int32_t> ids_;
  // Sorted by (left, right), with the range of each left token: a lookup is one short binary
  // search, bounded whatever the file holds.
  std::vector<Merge> merges_;
  std::vector<uint32_t> first_merge_;  // [n_tokens + 1]
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_BPE_ENCODER_H_
