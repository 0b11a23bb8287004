// The tokenizers over arbitrary texts and over small vocabularies made of the input. They must end;
// what create() accepts must encode any text to ids of its own, which decode to the same bytes,
// whole or streamed.
#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/base/utf8.h"
#include "hotset/text/byte_alphabet.h"
#include "hotset/text/pretokenizer.h"
#include "hotset/text/spm_encoder.h"
#include "hotset/text/stream_decoder.h"
#include "hotset/text/tokenizer.h"

namespace {

using hotset::text::Tokenizer;
using hotset::text::TokenizerSpec;
using hotset::text::TokenType;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "tokenizer_fuzz: %s\n", what);
  std::abort();
}

// Takes values off the front of the input; zeros when it is used up.
class Input {
 public:
  explicit Input(std::string_view bytes) : bytes_(bytes) {}

  uint8_t byte() {
    if (bytes_.empty()) return 0;
    const auto value = static_cast<uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    return value;
  }
  std::string_view bytes(size_t n_bytes) {
    const std::string_view taken = bytes_.substr(0, n_bytes);
    bytes_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return bytes_; }

 private:
  std::string_view bytes_;
};

void add_token(TokenizerSpec& spec, std::string text, TokenType type, float score) {
  spec.tokens.push_back(std::move(text));
  spec.types.push_back(static_cast<int32_t>(type));
  spec.scores.push_back(score);
}

std::string pre_name(uint8_t byte) {
  const auto names = hotset::text::known_pretokenizers();
  return std::string(names[byte % names.size()]);
}

// A vocabulary that is always accepted: all bytes, a few merges and special tokens.
TokenizerSpec fixed_spec(Input& input) {
  TokenizerSpec spec;
  const bool is_bpe = input.byte() % 4 != 0;
  spec.model = is_bpe ? "gpt2" : "llama";
  spec.pre = pre_name(input.byte());
  for (int byte = 0; byte < 256; ++byte) {
    if (is_bpe) {
      add_token(spec, hotset::text::bytes_to_alphabet(std::string(1, static_cast<char>(byte))),
                TokenType::kNormal, 0);
    } else {
      add_token(spec, fmt::format("<0x{:02X}>", byte), TokenType::kByte, 0);
    }
  }
  const std::string space(hotset::text::kSpmSpace);
  if (is_bpe) {
    spec.merges = {"a a", "aa a", "a b", "\u0120 a", "\u0120 \u0120", "1 2", "\u00C3 \u00A9"};
    for (const std::string_view merge : spec.merges) {
      const size_t at = merge.find(' ');
      add_token(spec, std::string(merge.substr(0, at)) + std::string(merge.substr(at + 1)),
                TokenType::kNormal, 0);
    }
  } else {
    float score = 0;
    for (const std::string& text : {space, std::string("a"), space + "a", std::string("aa"),
                                    std::string("ab"), std::string("\u00E9"), space + space}) {
      add_token(spec, text, TokenType::kNormal, score -= 1);
    }
  }
  add_token(spec, "<|end|>", TokenType::kControl, 0);
  add_token(spec, "<|e", TokenType::kUserDefined, 0);
  add_token(spec, " \n", TokenType::kUserDefined, 0);
  return spec;
}

TokenizerSpec random_spec(Input& input) {
  TokenizerSpec spec;
  const uint8_t flags = input.byte();
  spec.model = flags % 8 == 7 ? "wordpiece" : flags % 2 == 0 ? "gpt2" : "llama";
  spec.pre = pre_name(input.byte());
  if ((flags & 8) != 0) spec.add_bos = (flags & 16) != 0;
  if ((flags & 32) != 0) spec.add_space_prefix = (flags & 64) != 0;
  for (int n = input.byte() % 32; n > 0; --n) {
    const uint8_t kind = input.byte();
    std::string text(input.bytes(kind / 16));
    if (kind % 16 >= 8) text = hotset::text::bytes_to_alphabet(text);
    add_token(spec, std::move(text), static_cast<TokenType>(kind % 8),
              static_cast<float>(input.byte()));
  }
  for (int n = input.byte() % 32; n > 0 && !spec.tokens.empty(); --n) {
    const std::string& left = spec.tokens[input.byte() % spec.tokens.size()];
    const std::string& right = spec.tokens[input.byte() % spec.tokens.size()];
    spec.merges.push_back(left + " " + right);
    if (input.byte() % 2 == 0) continue;
    add_token(spec, left + right, TokenType::kNormal, 0);
  }
  const uint8_t ids = input.byte();
  if ((ids & 1) != 0) spec.bos = input.byte();
  if ((ids & 2) != 0) spec.unk = input.byte();
  if ((ids & 4) != 0) spec.types.clear();
  if ((ids & 8) != 0) spec.scores.clear();
  if ((ids & 16) != 0) spec.scores.push_back(0);
  return spec;
}

std::string replace_what_is_no_text(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const auto step = hotset::next_utf8(bytes);
    const bool is_valid = step.kind == hotset::Utf8Kind::kValid;
    text += is_valid ? bytes.substr(0, step.n_bytes) : hotset::kReplacementCharacter;
    bytes.remove_prefix(step.n_bytes);
  }
  return text;
}

// Whether every text comes back: spaces can be told from U+2581, and nothing became unknown.
bool is_reversible(const Tokenizer& tokenizer, const TokenizerSpec& spec, std::string_view text,
                   const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) {
    if (id == tokenizer.unk() || tokenizer.type(id) == TokenType::kUnknown) return false;
  }
  if (spec.model != "llama") return true;
  const auto space = tokenizer.find_token(hotset::text::kSpmSpace);
  return space && tokenizer.type(*space) == TokenType::kNormal &&
         !text.contains(hotset::text::kSpmSpace);
}

void check_text(const Tokenizer& tokenizer, const TokenizerSpec& spec, std::string_view text,
                bool parse_special) {
  const auto ids = tokenizer.encode(text, {.parse_special = parse_special});
  if (!ids) return;
  for (const int32_t id : *ids) {
    require(id >= 0 && id < tokenizer.n_tokens(), "an id that is no token");
    if (parse_special || id == tokenizer.unk()) continue;
    const TokenType type = *tokenizer.type(id);
    require(type != TokenType::kControl, "a control token made of text");
  }
  const hotset::text::DecodeOptions options = {.render_special = true};
  const auto decoded = tokenizer.decode(*ids, options);
  require(decoded.has_value(), "ids that do not decode");
  if (is_reversible(tokenizer, spec, text, *ids)) {
    require(*decoded == text, "another text than was encoded");
  }
  hotset::text::StreamDecoder decoder(tokenizer, options);
  std::string streamed;
  for (const int32_t id : *ids) streamed += *decoder.push(id);
  streamed += decoder.finish();
  require(streamed == replace_what_is_no_text(*decoded), "another text when streamed");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  Input input({reinterpret_cast<const char*>(data), n_bytes});
  const bool is_fixed = input.byte() % 2 == 0;
  const TokenizerSpec spec = is_fixed ? fixed_spec(input) : random_spec(input);
  const auto tokenizer = Tokenizer::create(spec);
  require(tokenizer || !is_fixed, "the fixed vocabulary is refused");
  if (!tokenizer) return 0;
  for (const bool parse_special : {false, true}) {
    check_text(*tokenizer, spec, input.rest(), parse_special);
  }
  return 0;
}
