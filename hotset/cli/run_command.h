// `hotset run`: a model continues a text.
#ifndef HOTSET_CLI_RUN_COMMAND_H_
#define HOTSET_CLI_RUN_COMMAND_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/error.h"
#include "hotset/cli/model_options.h"
#include "hotset/engine/sampler.h"

namespace hotset::cli {

struct RunOptions {
  ModelOptions model;
  std::optional<std::string> prompt;         // one of the three
  std::optional<std::string> prompt_file;    // "-" is standard input
  std::optional<std::string> prompt_tokens;  // "1,2,3"
  int32_t n_predict = -1;                    // tokens to generate; -1: until the end
  bool ignore_eos = false;
  bool parse_special = false;  // control tokens written in the prompt count as such
  bool echo = false;           // print the prompt first
  bool json = false;
  engine::SamplerOptions sampler;
  std::optional<uint64_t> seed;  // absent: another one each time, which is said
};

// Generated text goes to stdout as it comes, speeds to stderr; with `json` one object to stdout.
// Errors: kInvalidArgument, and what loading and computing give.
Status run(const RunOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_RUN_COMMAND_H_
