#include "hotset/cli/tokenize_command.h"
#include "hotset/base/text_file.h"

#include <fmt/core.h>

#include <vector>

#include "hotset/base/utf8.h"
#include "hotset/engine/weights/model_tokenizer.h"
#include "hotset/measure/model_options.h"
#include "hotset/model/gguf_file.h"
#include "hotset/text/tokenizer.h"

namespace hotset::cli {
namespace {

// Token bytes as one line of a terminal can show them. Most tokens of rare characters are parts of
// one.
std::string quoted(std::string_view bytes) {
  std::string line;
  while (!bytes.empty()) {
    const Utf8Step step = next_utf8(bytes);
    const std::string_view taken = bytes.substr(0, step.n_bytes);
    bytes.remove_prefix(step.n_bytes);
    if (taken == "\n") {
      line += "\\n";
    } else if (taken == "\\" || taken == "'") {
      line += '\\';
      line += taken;
    } else if (step.kind == Utf8Kind::kValid && step.codepoint >= 0x20 &&
               (step.codepoint < 0x7F || step.codepoint > 0x9F)) {
      line += taken;
    } else {
      for (const char c : taken) line += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return line;
}

}  // namespace

Status tokenize(const TokenizeOptions& options) {
  HOTSET_TRY(const model::GgufFile file, model::GgufFile::open(options.model));
  HOTSET_TRY(const text::Tokenizer tokenizer, engine::load_tokenizer(file, options.pre));
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
