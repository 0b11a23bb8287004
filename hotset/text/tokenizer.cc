#include "hotset/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hotset/base/printable.h"
#include "hotset/text/bpe_encoder.h"
#include "hotset/text/byte_alphabet.h"
#include "hotset/text/spm_encoder.h"
#include "hotset/text/text_marks.h"

namespace hotset::text {
namespace {

constexpr std::string_view kBytePairModel = "gpt2";
constexpr std::string_view kSentencePieceModel = "llama";

// The longest in use have some tens of bytes. The bound is what keeps the search for them linear.
constexpr size_t kMaxSpecialTokenBytes = 1024;

// Tokens that end a turn or a text in vocabularies whose files often name one of them only, as EOS.
constexpr std::string_view kEndNames[] = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot|>",
    "<end_of_turn>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<|eom|>",
    "<|endofturn|>",
    "</s>",
};
// In the vocabularies that have both of these, "<|end|>" only ends one message of several.
constexpr std::string_view kLastMessageNames[] = {"<|return|>", "<|call|>"};
constexpr std::string_view kMessageEnd = "<|end|>";

bool is_special(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

Status check_token_id(std::string_view key, std::optional<int32_t> id, size_t n_tokens) {
  if (!id || (*id >= 0 && static_cast<size_t>(*id) < n_tokens)) return {};
  return make_error(ErrorCode::kCorrupt, "tokenizer.ggml.{}: found {}, expected 0 to {}", key, *id,
                    n_tokens - 1);
}

Status check_length(std::string_view key, size_t found, size_t expected) {
  if (found == expected) return {};
  return make_error(ErrorCode::kCorrupt,
                    "tokenizer.ggml.{}: found {} entries, expected {}, one per token", key, found,
                    expected);
}

Status check_spec(const TokenizerSpec& spec) {
  const size_t n_tokens = spec.tokens.size();
  constexpr size_t max_entries = std::numeric_limits<int32_t>::max();
  if (spec.model != kBytePairModel && spec.model != kSentencePieceModel) {
    return make_error(ErrorCode::kUnsupported,
                      "tokenizer.ggml.model: found '{}', expected one of {}, {}",
                      printable(spec.model), kBytePairModel, kSentencePieceModel);
  }
  if (n_tokens == 0 || n_tokens > max_entries || spec.merges.size() > max_entries) {
    return make_error(
        ErrorCode::kCorrupt,
        "tokenizer.ggml.tokens and .merges: found {} and {} entries, expected 1 to {} "
        "and 0 to {}",
        n_tokens, spec.merges.size(), max_entries, max_entries);
  }
  if (!spec.types.empty()) {
    HOTSET_RETURN_IF_ERROR(check_length("token_type", spec.types.size(), n_tokens));
  }
  if (!spec.scores.empty() || spec.model == kSentencePieceModel) {
    HOTSET_RETURN_IF_ERROR(check_length("scores", spec.scores.size(), n_tokens));
  }
  for (size_t id = 0; id < spec.types.size(); ++id) {
    const int32_t type = spec.types[id];
    if (type < static_cast<int32_t>(TokenType::kNormal) ||
        type > static_cast<int32_t>(TokenType::kByte)) {
      return make_error(ErrorCode::kCorrupt,
                        "tokenizer.ggml.token_type[{}]: found {}, expected 1 to 6", id, type);
    }
    const TokenType checked = token_type(spec, id);
    const size_t n_bytes = spec.tokens[id].size();
    if ((is_special(checked) || checked == TokenType::kUserDefined) &&
        n_bytes > kMaxSpecialTokenBytes) {
      return make_error(ErrorCode::kUnsupported,
                        "tokenizer.ggml.tokens[{}]: found a special token of {} bytes, expected at "
                        "most {}",
                        id, n_bytes, kMaxSpecialTokenBytes);
    }
  }
  const std::pair<std::string_view, std::optional<int32_t>> ids[] = {
      {"bos_token_id", spec.bos}, {"eos_token_id", spec.eos},     {"eot_token_id", spec.eot},
      {"eom_token_id", spec.eom}, {"unknown_token_id", spec.unk}, {"padding_token_id", spec.pad}};
  for (const auto& [key, id] : ids) HOTSET_RETURN_IF_ERROR(check_token_id(key, id, n_tokens));
  return {};
}

// The text that a token stands for, see Tokenizer::piece().
std::string make_piece(const TokenizerSpec& spec, size_t id) {
  const std::string& text = spec.tokens[id];
  const TokenType type = token_type(spec, id);
  if (is_special(type) || type == TokenType::kUserDefined) return text;
  if (spec.model == kBytePairModel) return bytes_from_alphabet(text).value_or(text);
  if (type == TokenType::kByte) {
    // The encoder has checked the form.
    return std::string(1, static_cast<char>(parse_byte_token(text).value_or(0)));
  }
  std::string piece;
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(kSpmSpace, at), text.size());
    piece.append(text, at, space - at);
    if (space < text.size()) piece += ' ';
    at = space + kSpmSpace.size();
  }
  return piece;
}

}  // namespace

Result<Tokenizer> Tokenizer::create(TokenizerSpec spec) {
  HOTSET_RETURN_IF_ERROR(check_spec(spec));
  Tokenizer made;
  made.spec_ = std::move(spec);
  HOTSET_RETURN_IF_ERROR(made.index_tokens());
  if (made.spec_.model == kBytePairModel) {
    made.make_pieces();
    HOTSET_TRY(std::unique_ptr<BpeEncoder> encoder, BpeEncoder::create(made.spec_, made.pieces_));
    const bool default_bos = encoder->traits().add_bos;
    made.encoder_ = std::move(encoder);
    HOTSET_RETURN_IF_ERROR(made.choose_bos_and_eos(default_bos));
  } else {
    // Files from before these keys were usual rely on the names.
    if (!made.spec_.bos) made.spec_.bos = made.find_token("<s>");
    if (!made.spec_.eos) made.spec_.eos = made.find_token("</s>");
    if (!made.spec_.unk) made.spec_.unk = made.find_token("<unk>");
    HOTSET_TRY(made.encoder_, SpmEncoder::create(made.spec_));
    made.make_pieces();
    made.strips_space_ = made.spec_.add_space_prefix.value_or(true);
    HOTSET_RETURN_IF_ERROR(made.choose_bos_and_eos(true));
  }
  made.collect_special_tokens();
  made.collect_end_of_generation();
  made.spec_.merges = {};  // the encoder has its own form of them
  return made;
}

Status Tokenizer::index_tokens() {
  by_text_.reserve(spec_.tokens.size());
  for (size_t id = 0; id < spec_.tokens.size(); ++id) {
    if (spec_.tokens[id].empty()) continue;
    const auto [found, is_new] = by_text_.try_emplace(spec_.tokens[id], static_cast<int32_t>(id));
    if (!is_new) {
      return make_error(ErrorCode::kCorrupt,
                        "tokenizer.ggml.tokens[{}]: found '{}' again, which is token {}; expected "
                        "no text twice",
                        id, printable(spec_.tokens[id]), found->second);
    }
  }
  return {};
}

void Tokenizer::make_pieces() {
  pieces_.reserve(spec_.tokens.size());
  for (size_t id = 0; id < spec_.tokens.size(); ++id) {
    pieces_.push_back(make_piece(spec_, id));
    if (!is_special(token_type(spec_, id))) {
      max_piece_bytes_ = std::max(max_piece_bytes_, pieces_.back().size());
    }
  }
}

Status Tokenizer::choose_bos_and_eos(bool default_bos) {
  if (spec_.add_bos.value_or(false) && !spec_.bos) {
    return make_error(ErrorCode::kCorrupt,
                      "tokenizer.ggml.add_bos_token: found true, expected bos_token_id beside it");
  }
  if (spec_.add_eos.value_or(false) && !spec_.eos) {
    return make_error(ErrorCode::kCorrupt,
                      "tokenizer.ggml.add_eos_token: found true, expected eos_token_id beside it");
  }
  adds_bos_ = spec_.bos && spec_.add_bos.value_or(default_bos);
  adds_eos_ = spec_.add_eos.value_or(false);
  return {};
}

void Tokenizer::collect_special_tokens() {
  std::vector<SpecialToken> user_defined;
  std::vector<SpecialToken> all;
  for (size_t id = 0; id < spec_.tokens.size(); ++id) {
    const TokenType type = token_type(spec_, id);
    const SpecialToken token = {spec_.tokens[id], static_cast<int32_t>(id)};
    if (token.text.empty()) continue;
    if (type == TokenType::kUserDefined) user_defined.push_back(token);
    if (type == TokenType::kUserDefined || is_special(type)) all.push_back(token);
  }
  user_defined_ = SpecialTokens(std::move(user_defined));
  special_ = SpecialTokens(std::move(all));
}

void Tokenizer::collect_end_of_generation() {
  std::vector<int32_t>& ids = end_of_generation_;
  for (const std::optional<int32_t> id : {spec_.eos, spec_.eot, spec_.eom}) {
    if (id) ids.push_back(*id);
  }
  const bool ends_later = std::ranges::all_of(
      kLastMessageNames, [this](std::string_view name) { return find_token(name).has_value(); });
  for (const std::string_view name : kEndNames) {
    const std::optional<int32_t> id = find_token(name);
    if (!id || (name == kMessageEnd && ends_later)) continue;
    const TokenType type = token_type(spec_, static_cast<size_t>(*id));
    if (type == TokenType::kControl || type == TokenType::kUserDefined) ids.push_back(*id);
  }
  std::ranges::sort(ids);
  const auto repeated = std::ranges::unique(ids);
  ids.erase(repeated.begin(), repeated.end());
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "text to encode: found {} bytes, expected at most {}", text.size(),
                      kMaxTextBytes);
  }
  std::vector<int32_t> ids;
  if (options.add_bos && adds_bos_) ids.push_back(*spec_.bos);
  const SpecialTokens& special = options.parse_special ? special_ : user_defined_;
  for (size_t at = 0; at < text.size();) {
    const std::optional<SpecialTokens::Found> found = special.find(text, at);
    const size_t end = found ? found->begin : text.size();
    const std::string_view plain = text.substr(at, end - at);
    if (options.drop_marks && plain.contains(kTextMark)) {
      const std::string clean = without_marks(plain);
      if (!clean.empty()) HOTSET_RETURN_IF_ERROR(encoder_->encode(clean, ids));
    } else if (!plain.empty()) {
      HOTSET_RETURN_IF_ERROR(encoder_->encode(plain, ids));
    }
    if (!found) break;
    ids.push_back(found->token.id);
    at = end + found->token.text.size();
  }
  if (options.add_eos && adds_eos_) ids.push_back(*spec_.eos);
  return ids;
}

Status Tokenizer::check_id(int32_t id) const {
  if (id >= 0 && id < n_tokens()) return {};
  return make_error(ErrorCode::kInvalidArgument, "token id: found {}, expected 0 to {}", id,
                    n_tokens() - 1);
}

Result<std::string_view> Tokenizer::piece(int32_t id) const {
  HOTSET_RETURN_IF_ERROR(check_id(id));
  return pieces_[id];
}

Result<TokenType> Tokenizer::type(int32_t id) const {
  HOTSET_RETURN_IF_ERROR(check_id(id));
  return token_type(spec_, static_cast<size_t>(id));
}

std::optional<int32_t> Tokenizer::find_token(std::string_view text) const {
  const auto found = by_text_.find(text);
  if (found == by_text_.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::is_end_of_generation(int32_t id) const {
  return std::ranges::binary_search(end_of_generation_, id);
}

Status Tokenizer::decode_next(int32_t id, DecodeOptions options, DecodeState& state,
                              std::string& bytes) const {
  HOTSET_RETURN_IF_ERROR(check_id(id));
  const TokenType type = token_type(spec_, static_cast<size_t>(id));
  std::string_view piece = pieces_[id];
  if (is_special(type) || type == TokenType::kUserDefined) {
    if (!is_special(type) || options.render_special) bytes += piece;
    // An unknown token stands amid text, the others are where encode() begins anew.
    state.at_start = type != TokenType::kUnknown;
    return {};
  }
  if (strips_space_ && state.at_start && piece.starts_with(' ')) piece.remove_prefix(1);
  bytes += piece;
  state.at_start = false;
  return {};
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, DecodeOptions options) const {
  std::string bytes;
  DecodeState state = {.at_start = !options.continues_text};
  for (const int32_t id : ids) {
    HOTSET_RETURN_IF_ERROR(decode_next(id, options, state, bytes));
  }
  return bytes;
}

}  // namespace hotset::text
