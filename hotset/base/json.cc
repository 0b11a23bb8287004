#include "hotset/base/json.h"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <string>

namespace hotset {
namespace {

using nlohmann::ordered_json;

// Whether brackets of `text` are nested more deeply than that. As far as the text is JSON; behind
// the first mistake the parser reads nothing.
bool is_too_deep(std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return true;
    } else if (c == ']' || c == '}') {
      if (--depth < 0) return false;
    }
  }
  return false;
}

// What the parser says, without its own name and number in front, and cut where it quotes much.
std::string reason(std::string_view what) {
  constexpr size_t kMost = 60;
  const size_t end = what.find("] ");
  std::string text(end == std::string_view::npos ? what : what.substr(end + 2));
  if (text.size() <= kMost) return text;
  // Not within a character.
  size_t n_kept = kMost;
  while (n_kept > 0 && (static_cast<unsigned char>(text[n_kept]) & 0xC0U) == 0x80U) --n_kept;
  return text.substr(0, n_kept) + "...";
}

}  // namespace

Result<ordered_json> parse_json(std::string_view text, int max_depth) {
  if (is_too_deep(text, max_depth)) {
    return make_error(ErrorCode::kUnsupported, "nested more than {} levels deep", max_depth);
  }
  try {
    return ordered_json::parse(text);
  } catch (const ordered_json::exception& error) {
    return make_error(ErrorCode::kCorrupt, "no JSON: {}", reason(error.what()));
  }
}

}  // namespace hotset
