// The alphabet that byte-level BPE vocabularies are written in: each byte is one printable
// character. Bytes that are printable in Latin-1 stand for themselves, the other 68 are the
// characters from U+0100 on, in order (Radford et al., GPT-2, 2019: a space is U+0120).
// Thread-safe: pure functions.
#ifndef HOTSET_TEXT_BYTE_ALPHABET_H_
#define HOTSET_TEXT_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace hotset::text {

// The bytes that `written` stands for; nothing if a character of it is not in the alphabet.
std::optional<std::string> bytes_from_alphabet(std::string_view written);

// `bytes` written in the alphabet.
std::string bytes_to_alphabet(std::string_view bytes);

}  // namespace hotset::text

#endif  // HOTSET_TEXT_BYTE_ALPHABET_H_
