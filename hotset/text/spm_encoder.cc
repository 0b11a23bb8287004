#include "hotset/text/spm_encoder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>
#include <tuple>

#include "hotset/base/printable.h"
#include "hotset/base/utf8.h"

namespace hotset::text {
namespace {

constexpr int32_t kNone = -1;

}  // namespace

std::optional<uint8_t> parse_byte_token(std::string_view token) {
  constexpr std::string_view prefix = "<0x";
  if (token.size() != prefix.size() + 3 || !token.starts_with(prefix) || !token.ends_with('>')) {
    return std::nullopt;
  }
  uint8_t byte = 0;
  const char* const digits = token.data() + prefix.size();
  const auto [end, error] = std::from_chars(digits, digits + 2, byte, 16);
  if (error != std::errc() || end != digits + 2) return std::nullopt;
  return byte;
}

Result<std::unique_ptr<SpmEncoder>> SpmEncoder::create(const TokenizerSpec& spec) {
  std::unique_ptr<SpmEncoder> encoder(new SpmEncoder);
  encoder->unk_ = spec.unk;
  encoder->add_space_prefix_ = spec.add_space_prefix.value_or(true);
  encoder->byte_ids_.fill(kNone);
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& text = spec.tokens[i];
    if (!std::isfinite(spec.scores[i])) {
      return make_error(ErrorCode::kCorrupt,
                        "tokenizer.ggml.scores[{}]: found {}, expected a finite number", i,
                        spec.scores[i]);
    }
    const TokenType type = token_type(spec, i);
    if (type == TokenType::kByte) {
      const std::optional<uint8_t> byte = parse_byte_token(text);
      if (!byte) {
        return make_error(ErrorCode::kCorrupt,
                          "tokenizer.ggml.tokens[{}]: found '{}' of type byte, expected the form "
                          "<0x0A>",
                          i, printable(text));
      }
      encoder->byte_ids_[*byte] = id;
    } else if ((type == TokenType::kNormal || type == TokenType::kUnused) && !text.empty()) {
      encoder->tokens_.try_emplace(text, Token{id, spec.scores[i], type == TokenType::kUnused});
      encoder->longest_bytes_ = std::max(encoder->longest_bytes_, text.size());
    }
  }
  return encoder;
}

Status SpmEncoder::encode(std::string_view text, std::vector<int32_t>& ids) const {
  HOTSET_CHECK(!text.empty() && text.size() <= kMaxTextBytes);
  Workspace workspace;
  split_into_symbols(text, workspace);
  merge_all(workspace);
  for (int32_t i = 0; i >= 0;) {
    const Symbol& symbol = workspace.symbols[i];
    const auto found = tokens_.find(workspace.text_of(symbol));
    if (found != tokens_.end() && !found->second.unused) {
      ids.push_back(found->second.id);
    } else {
      HOTSET_RETURN_IF_ERROR(append_parts(workspace.text_of(symbol), workspace.halves, ids));
    }
    i = symbol.next;
  }
  return {};
}

void SpmEncoder::split_into_symbols(std::string_view text, Workspace& workspace) const {
  std::string& written = workspace.written;
  written.reserve(text.size() + text.size() / 2);
  if (add_space_prefix_) written += kSpmSpace;
  for (const char c : text) {
    if (c == ' ') {
      written += kSpmSpace;
    } else {
      written += c;
    }
  }
  std::vector<Symbol>& symbols = workspace.symbols;
  for (size_t at = 0; at < written.size();) {
    const Utf8Step step = next_utf8(std::string_view(written).substr(at));
    // Bytes that are no text stay alone, so that each finds its byte token.
    const size_t n_bytes = step.kind == Utf8Kind::kValid ? step.n_bytes : 1;
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(n_bytes), i - 1, i + 1});
    at += n_bytes;
  }
  symbols.back().next = kNone;
}

void SpmEncoder::add_candidate(int32_t left, Workspace& workspace) const {
  if (left < 0) return;
  const Symbol& symbol = workspace.symbols[left];
  if (symbol.next < 0) return;
  // Neighbours lie side by side in the text.
  Symbol joined = symbol;
  joined.n_bytes += workspace.symbols[symbol.next].n_bytes;
  if (joined.n_bytes > longest_bytes_) return;
  const std::string_view text = workspace.text_of(joined);
  const auto found = tokens_.find(text);
  if (found == tokens_.end()) return;
  workspace.heap.push_back({found->second.score, left, joined.n_bytes});
  if (found->second.unused) workspace.halves[text] = symbol.n_bytes;
}

void SpmEncoder::merge_all(Workspace& workspace) const {
  std::vector<Symbol>& symbols = workspace.symbols;
  std::vector<Join>& heap = workspace.heap;
  // A heap with this order has the highest score at the top, the leftmost of equals.
  const auto later = [](const Join& a, const Join& b) {
    return std::tie(a.score, b.left) < std::tie(b.score, a.left);
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) add_candidate(static_cast<int32_t>(i), workspace);
  std::ranges::make_heap(heap, later);
  while (!heap.empty()) {
    std::ranges::pop_heap(heap, later);
    const Join candidate = heap.back();
    heap.pop_back();
    Symbol& left = symbols[candidate.left];
    if (left.n_bytes == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    // Symbols only grow, so the same number of bytes is the same pair.
    if (left.n_bytes + right.n_bytes != candidate.n_bytes) continue;
    left.n_bytes = candidate.n_bytes;
    left.next = right.next;
    right.n_bytes = 0;
    if (left.next >= 0) symbols[left.next].previous = candidate.left;
    for (const int32_t changed : {left.previous, candidate.left}) {
      const size_t n_before = heap.size();
      add_candidate(changed, workspace);
      if (heap.size() > n_before) std::ranges::push_heap(heap, later);
    }
  }
}

Status SpmEncoder::append_parts(std::string_view symbol, const Halves& halves,
                                std::vector<int32_t>& ids) const {
  std::vector<std::string_view> pending = {symbol};
  while (!pending.empty()) {
    const std::string_view text = pending.back();
    pending.pop_back();
    const auto found = tokens_.find(text);
    if (found != tokens_.end() && !found->second.unused) {
      ids.push_back(found->second.id);
      continue;
    }
    if (const auto half = halves.find(text); half != halves.end()) {
      pending.push_back(text.substr(half->second));
      pending.push_back(text.substr(0, half->second));
      continue;
    }
    const bool all_bytes = std::ranges::all_of(
        text, [&](char byte) { return byte_ids_[static_cast<uint8_t>(byte)] >= 0; });
    if (!all_bytes && !unk_) {
      return make_error(ErrorCode::kUnsupported,
                        "'{}' has no token, and the vocabulary neither tokens for its bytes nor an "
                        "unknown token",
                        printable(text));
    }
    if (!all_bytes) {
      ids.push_back(*unk_);
      continue;
    }
    for (const char byte : text) ids.push_back(byte_ids_[static_cast<uint8_t>(byte)]);
  }
  return {};
}

}  // namespace hotset::text
