// Small vocabularies and random texts for the tests of this folder.
// Thread-compatible.
#ifndef HOTSET_TEXT_TEXT_TEST_UTIL_H_
#define HOTSET_TEXT_TEXT_TEST_UTIL_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/base/utf8.h"
#include "hotset/text/byte_alphabet.h"
#include "hotset/text/spm_encoder.h"
#include "hotset/text/tokenizer_spec.h"

namespace hotset::text {

inline void add_token(TokenizerSpec& spec, std::string text, TokenType type, float score = 0) {
  spec.tokens.push_back(std::move(text));
  spec.types.push_back(static_cast<int32_t>(type));
  spec.scores.push_back(score);
}

// Byte-level BPE: ids 0 to 255 are the bytes, then one token for each of `merges` ("t h").
inline TokenizerSpec byte_level_spec(const std::vector<std::string>& merges,
                                     std::string pre = "gpt-2") {
  TokenizerSpec spec{.model = "gpt2", .pre = std::move(pre)};
  for (int byte = 0; byte < 256; ++byte) {
    add_token(spec, bytes_to_alphabet(std::string(1, static_cast<char>(byte))), TokenType::kNormal);
  }
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ');
    add_token(spec, merge.substr(0, space) + merge.substr(space + 1), TokenType::kNormal);
  }
  spec.merges = merges;
  return spec;
}

// The same with `n_merges` random merges of tokens made so far, which share few letters so that
// they overlap in many ways.
inline TokenizerSpec random_byte_level_spec(Random& random, size_t n_merges, std::string pre) {
  std::vector<std::string> parts;
  for (const char byte : std::string_view("ab .\n1\xC3\xA9")) {
    parts.push_back(bytes_to_alphabet(std::string(1, byte)));
  }
  std::set<std::string> products;
  std::vector<std::string> merges;
  for (size_t i = 0; i < 20 * n_merges && merges.size() < n_merges; ++i) {
    const std::string left = parts[random.below(parts.size())];
    const std::string right = parts[random.below(parts.size())];
    if (left.size() + right.size() > 16 || !products.insert(left + right).second) continue;
    merges.push_back(left + " " + right);
    parts.push_back(left + right);
  }
  return byte_level_spec(merges, std::move(pre));
}

// SentencePiece BPE: <unk>, <s>, </s>, the bytes as ids 3 to 258, then `texts` (a space is written
// as such here) with falling scores.
inline TokenizerSpec sentencepiece_spec(const std::vector<std::string>& texts) {
  TokenizerSpec spec{.model = "llama", .pre = "default"};
  add_token(spec, "<unk>", TokenType::kUnknown);
  add_token(spec, "<s>", TokenType::kControl);
  add_token(spec, "</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    add_token(spec, fmt::format("<0x{:02X}>", byte), TokenType::kByte);
  }
  float score = 0;
  for (const std::string& text : texts) {
    std::string written;
    for (const char c : text) written += c == ' ' ? std::string(kSpmSpace) : std::string(1, c);
    add_token(spec, written, TokenType::kNormal, score -= 1);
  }
  return spec;
}

inline std::string random_bytes(Random& random, size_t n_bytes) {
  std::string bytes(n_bytes, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random.next_u64());
  return bytes;
}

// Characters of many kinds, those of `favourites` half of the time, now and then a byte that is no
// text.
inline std::string random_text(Random& random, size_t n_characters,
                               std::u32string_view favourites = U"ab .\n1é") {
  static constexpr std::u32string_view kOthers =
      U"zZÀß'sStTlLvVeErRmMdD 0579½²Ⅷ\t\r\n\u00A0\u2003\u180E\u200B\u3000!?…。，、«»$+<=>^`|~/_-"
      U"пЁ你好のテ한\u0301\u0335ʰǅªم१😀\u200D\U0001F1E9\uFFFD\u0000\u007F\U0010FFFF";
  std::string text;
  for (size_t i = 0; i < n_characters; ++i) {
    if (random.below(64) == 0) {
      text += static_cast<char>(random.next_u64());
      continue;
    }
    const std::u32string_view from = random.below(2) == 0 ? favourites : kOthers;
    append_utf8(text, from[random.below(from.size())]);
  }
  return text;
}

}  // namespace hotset::text

#endif  // HOTSET_TEXT_TEXT_TEST_UTIL_H_
