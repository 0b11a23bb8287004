// `hotset tokenize`: the token ids of a text.
#ifndef HOTSET_CLI_TOKENIZE_COMMAND_H_
#define HOTSET_CLI_TOKENIZE_COMMAND_H_

#include <optional>
#include <string>

#include "hotset/base/error.h"

namespace hotset::cli {

struct TokenizeOptions {
  std::string model = {};               // a GGUF file; it needs no tensors
  std::optional<std::string> pre = {};  // another pre-tokenizer than the file names
  bool parse_special = false;           // control tokens written in the text count as such
  std::string text = {};                // "-" is standard input
  bool json = false;                    // an array of ids instead of a line per token
};

// Prints to stdout. No BOS is added. Errors: those of the file, the tokenizer and the text.
Status tokenize(const TokenizeOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_TOKENIZE_COMMAND_H_
