#include "hotset/text/special_tokens.h"

#include <algorithm>
#include <utility>

namespace hotset::text {

SpecialTokens::SpecialTokens(std::vector<SpecialToken> tokens) : tokens_(std::move(tokens)) {
  std::ranges::sort(tokens_, {}, &SpecialToken::text);
  for (const SpecialToken& token : tokens_) {
    ++first_by_byte_[static_cast<uint8_t>(token.text[0]) + size_t{1}];
  }
  for (size_t i = 1; i < first_by_byte_.size(); ++i) first_by_byte_[i] += first_by_byte_[i - 1];
}

std::optional<SpecialTokens::Found> SpecialTokens::find(std::string_view text, size_t from) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    const auto first_byte = static_cast<uint8_t>(text[begin]);
    auto low = tokens_.begin() + first_by_byte_[first_byte];
    auto high = tokens_.begin() + first_by_byte_[first_byte + size_t{1}];
    // All tokens in [low, high) begin with the `depth` bytes at `begin`; the shortest is the first.
    std::optional<SpecialToken> longest;
    for (size_t depth = 1; low != high; ++depth) {
      if (low->text.size() == depth) longest = *low++;
      if (low == high || begin + depth == text.size()) break;
      const auto byte_at = [depth](const SpecialToken& token) {
        return static_cast<uint8_t>(token.text[depth]);
      };
      const auto next = static_cast<uint8_t>(text[begin + depth]);
      const auto narrowed = std::ranges::equal_range(low, high, next, {}, byte_at);
      low = narrowed.begin();
      high = narrowed.end();
    }
    if (longest) return Found{begin, *longest};
  }
  return std::nullopt;
}

}  // namespace hotset::text
