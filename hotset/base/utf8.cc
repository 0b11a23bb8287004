#include "hotset/base/utf8.h"

#include <cstring>

#include "hotset/base/error.h"

namespace hotset {
namespace {

constexpr char32_t kMaxCodepoint = 0x10FFFF;

// How a lead byte goes on: number of bytes, and the range of the second one, which is what rules
// out overlong forms, surrogates and values above U+10FFFF.
struct Lead {
  size_t n_bytes = 0;  // 0: not a lead byte
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {.n_bytes = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.n_bytes = 2};
  if (byte == 0xE0) return {.n_bytes = 3, .second_min = 0xA0};
  if (byte == 0xED) return {.n_bytes = 3, .second_max = 0x9F};
  if (byte < 0xF0) return {.n_bytes = 3};
  if (byte == 0xF0) return {.n_bytes = 4, .second_min = 0x90};
  if (byte < 0xF4) return {.n_bytes = 4};
  if (byte == 0xF4) return {.n_bytes = 4, .second_max = 0x8F};
  return {};
}

}  // namespace

Utf8Step next_utf8(std::string_view text) {
  HOTSET_CHECK(!text.empty());
  const auto first = static_cast<uint8_t>(text[0]);
  const Lead lead = lead_of(first);
  if (lead.n_bytes == 0) return {Utf8Kind::kInvalid, 1, 0};
  if (lead.n_bytes == 1) return {Utf8Kind::kValid, 1, first};
  char32_t codepoint = first & (0x7Fu >> lead.n_bytes);
  for (size_t i = 1; i < lead.n_bytes; ++i) {
    if (i == text.size()) return {Utf8Kind::kIncomplete, i, 0};
    const auto byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Kind::kInvalid, i, 0};
    codepoint = (codepoint << 6) | (byte & 0x3Fu);
  }
  return {Utf8Kind::kValid, lead.n_bytes, codepoint};
}

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Most text is ASCII: eight bytes at a time.
    uint64_t word = 0;
    while (text.size() - at >= sizeof(word)) {
      std::memcpy(&word, text.data() + at, sizeof(word));
      if ((word & 0x8080808080808080u) != 0) break;
      at += sizeof(word);
    }
    if (at == text.size()) break;
    const Utf8Step step = next_utf8(text.substr(at));
    if (step.kind != Utf8Kind::kValid) break;
    at += step.n_bytes;
  }
  return at;
}

void append_utf8(std::string& out, char32_t codepoint) {
  HOTSET_CHECK(codepoint <= kMaxCodepoint && (codepoint < 0xD800 || codepoint > 0xDFFF));
  const auto tail = [&](int shift) {
    out += static_cast<char>(0x80u | ((codepoint >> shift) & 0x3Fu));
  };
  if (codepoint < 0x80) {
    out += static_cast<char>(codepoint);
  } else if (codepoint < 0x800) {
    out += static_cast<char>(0xC0u | (codepoint >> 6));
    tail(0);
  } else if (codepoint < 0x10000) {
    out += static_cast<char>(0xE0u | (codepoint >> 12));
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0u | (codepoint >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace hotset
