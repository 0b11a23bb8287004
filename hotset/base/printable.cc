#include "hotset/base/printable.h"

#include <fmt/core.h>

#include <iterator>

#include "hotset/base/utf8.h"

namespace hotset {
namespace {

bool is_in(char32_t codepoint, char32_t first, char32_t last) {
  return codepoint >= first && codepoint <= last;
}

// Characters beyond ASCII that act instead of showing.
bool acts(char32_t codepoint) {
  return is_in(codepoint, 0x80, 0x9F) ||      // C1 controls
         codepoint == 0x061C ||               // Arabic letter mark
         is_in(codepoint, 0x200E, 0x200F) ||  // marks of direction
         is_in(codepoint, 0x2028, 0x202E) ||  // separators; embeddings and overrides of direction
         is_in(codepoint, 0x2066, 0x2069);    // isolates of direction
}

}  // namespace

std::string printable(std::string_view text, size_t max_bytes) {
  const size_t n_bytes = text.size();
  std::string result;
  while (!text.empty()) {
    const Utf8Step step = next_utf8(text);
    const std::string_view taken = text.substr(0, step.n_bytes);
    if (n_bytes > max_bytes && n_bytes - text.size() + taken.size() > max_bytes) {
      fmt::format_to(std::back_inserter(result), "... ({} bytes)", n_bytes);
      break;
    }
    text.remove_prefix(step.n_bytes);
    const bool is_ascii = taken.size() == 1 && step.codepoint < 0x80;
    if (step.kind != Utf8Kind::kValid || (is_ascii && (taken[0] < 0x20 || taken[0] == 0x7F))) {
      for (const char c : taken) {
        fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(c));
      }
    } else if (acts(step.codepoint)) {
      fmt::format_to(std::back_inserter(result), "\\u{:04x}",
                     static_cast<unsigned>(step.codepoint));
    } else {
      result += taken;
    }
  }
  return result;
}

}  // namespace hotset
