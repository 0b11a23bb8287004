#include "hotset/cli/tokenize_command.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "hotset/cli/model_options.h"
#include "hotset/engine/tokenizer_spec.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/tokenizer.h"

namespace hotset::cli {
namespace {

// Token bytes as one line of a terminal can show them.
std::string quoted(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      text += "\\n";
    } else if (c == '\\' || c == '\'') {
      text += fmt::format("\\{}", c);
    } else if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

Status tokenize(const TokenizeOptions& options) {
  HOTSET_TRY(const model::GgufFile file, model::GgufFile::open(options.model));
  HOTSET_TRY(text::TokenizerSpec spec, engine::read_tokenizer_spec(file));
  if (options.pre) spec.pre = *options.pre;
  HOTSET_TRY(const text::Tokenizer tokenizer, text::Tokenizer::create(std::move(spec)));
  std::string text = options.text;
  if (text == "-") {
    HOTSET_TRY(text, read_text("-"));
  }
  HOTSET_TRY(const std::vector<int32_t> ids,
             tokenizer.encode(text, {.parse_special = options.parse_special}));
  if (options.json) {
    fmt::print("[");
    for (size_t i = 0; i < ids.size(); ++i) fmt::print("{}{}", i > 0 ? "," : "", ids[i]);
    fmt::print("]\n");
    return {};
  }
  for (const int32_t id : ids) {
    HOTSET_TRY(const std::string_view piece, tokenizer.piece(id));
    fmt::print("{:>7}  '{}'\n", id, quoted(piece));
  }
  return {};
}

}  // namespace hotset::cli
