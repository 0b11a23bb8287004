#include "hotset/text/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "hotset/base/utf8.h"

namespace hotset::text {
namespace {

// All characters of the alphabet are below this.
constexpr size_t kAlphabetEnd = 0x100 + 68;
constexpr int16_t kNoByte = -1;

constexpr bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    characters[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}
constexpr std::array<char32_t, 256> kCharacters = make_characters();

constexpr std::array<int16_t, kAlphabetEnd> make_bytes() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(kNoByte);
  for (size_t byte = 0; byte < 256; ++byte) bytes[kCharacters[byte]] = static_cast<int16_t>(byte);
  return bytes;
}
constexpr std::array<int16_t, kAlphabetEnd> kBytes = make_bytes();

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view written) {
  std::string bytes;
  bytes.reserve(written.size());
  while (!written.empty()) {
    const Utf8Step step = next_utf8(written);
    if (step.kind != Utf8Kind::kValid || step.codepoint >= kAlphabetEnd) return std::nullopt;
    const int16_t byte = kBytes[step.codepoint];
    if (byte == kNoByte) return std::nullopt;
    bytes += static_cast<char>(byte);
    written.remove_prefix(step.n_bytes);
  }
  return bytes;
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string written;
  written.reserve(2 * bytes.size());
  for (const char byte : bytes) append_utf8(written, kCharacters[static_cast<uint8_t>(byte)]);
  return written;
}

}  // namespace hotset::text
