#include "hotset/text/text_marks.h"

#include <algorithm>
#include <utility>

#include "hotset/base/utf8.h"

namespace hotset::text {
namespace {

char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  while (true) {
    const size_t at = text.find(from);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += to;
    text.remove_prefix(at + from.size());
  }
}

}  // namespace

TextMarker::TextMarker(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const std::string& token) { return token.empty(); });
  tag_begins_ = "<[{";
  for (std::string& token : tokens_) {
    std::ranges::transform(token, token.begin(), to_lower);
    if (!tag_begins_.contains(token[0])) tag_begins_ += token[0];
  }
  std::ranges::sort(tokens_);
}

bool TextMarker::may_begin_token(std::string_view rest) const {
  // All tokens in [low, high) begin with the first `depth` bytes of `rest`.
  auto low = tokens_.begin();
  auto high = tokens_.end();
  for (size_t depth = 0; depth < rest.size(); ++depth) {
    const char c = to_lower(rest[depth]);
    if (depth > 0 && (is_space(c) || tag_begins_.contains(c))) return true;
    const auto byte_at = [depth](const std::string& token) { return token[depth]; };
    // Bytes are compared as they were sorted: as unsigned ones.
    const auto less = [](char a, char b) {
      return static_cast<unsigned char>(a) < static_cast<unsigned char>(b);
    };
    const auto narrowed = std::ranges::equal_range(low, high, c, less, byte_at);
    low = narrowed.begin();
    high = narrowed.end();
    if (low == high) return false;
    if (low->size() == depth + 1) return true;  // the shortest is the first
  }
  return true;
}

std::string TextMarker::marked(std::string_view text) const {
  const std::string clean = replace_all(replace_all(text, kTextMark, kReplacementCharacter),
                                        kReservedMark, kReplacementCharacter);
  std::string out;
  for (size_t at = 0; at < clean.size();) {
    const std::string_view rest = std::string_view(clean).substr(at);
    const size_t n_bytes = next_utf8(rest).n_bytes;
    out += rest.substr(0, n_bytes);
    if (may_begin_token(rest)) out += kTextMark;
    at += n_bytes;
  }
  return out;
}

std::string without_marks(std::string_view text) { return replace_all(text, kTextMark, ""); }

}  // namespace hotset::text
