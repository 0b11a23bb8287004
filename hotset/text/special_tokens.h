// Finds literal tokens (control, user-defined) in a text: at each place the longest one that
// begins there, from left to right. Owns nothing: the texts must outlive it.
// Thread-safe: constant after creation.
#ifndef HOTSET_TEXT_SPECIAL_TOKENS_H_
#define HOTSET_TEXT_SPECIAL_TOKENS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace hotset::text {

struct SpecialToken {
  std::string_view text;  // not empty
  int32_t id = 0;
};

class SpecialTokens {
 public:
  SpecialTokens() = default;
  explicit SpecialTokens(std::vector<SpecialToken> tokens);

  struct Found {
    size_t begin;  // byte offset
    SpecialToken token;
  };
  // The first token in `text` at or after the byte `from`. Time: at most the length of the longest
  // token per byte, times the logarithm of the number of tokens.
  std::optional<Found> find(std::string_view text, size_t from) const;

 private:
  std::vector<SpecialToken> tokens_;           // sorted by text
  std::array<uint32_t, 257> first_by_byte_{};  // tokens_ that begin with a byte, as ranges
};

}  // namespace hotset::text

#endif  // HOTSET_TEXT_SPECIAL_TOKENS_H_
