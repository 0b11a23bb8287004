// `hotset run`: a model continues a text.
#ifndef HOTSET_CLI_RUN_COMMAND_H_
#define HOTSET_CLI_RUN_COMMAND_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/run/sampler.h"
#include "hotset/measure/model_options.h"
#include "hotset/text/tokenizer.h"

namespace hotset::cli {

struct RunOptions {
  measure::ModelOptions model;
  std::optional<std::string> prompt;         // one of the three
  std::optional<std::string> prompt_file;    // "-" is standard input
  std::optional<std::string> prompt_tokens;  // "1,2,3"
  int32_t n_predict = -1;                    // tokens to generate; -1: until the end
  bool ignore_eos = false;
  bool parse_special = false;  // control tokens written in the prompt count as such
  bool echo = false;           // print the prompt first
  bool json = false;
  bool interactive = false;            // chat() instead of run()
  std::string system = {};             // of a conversation: the system message
  std::string chat_template = "auto";  // as engine::load_chat_template()
  std::string chat_variables = {};     // JSON object: variables of the chat template
  engine::SamplerOptions sampler;
  std::vector<std::string> logit_bias = {};  // "ID=BIAS"
  std::optional<uint64_t> seed;              // absent: another one each time, which is said
};

// Generated text goes to stdout as it comes, speeds to stderr; with `json` one object to stdout.
// Errors: kInvalidArgument, and what loading and computing give.
Status run(const RunOptions& options);

// --- What run() and chat() have in common

struct Sampling {
  engine::SamplerOptions options;  // with seed and logit bias
  uint64_t seed = 0;
};

// Checks the flags. Errors: kInvalidArgument, naming flag, value and what was expected.
Result<Sampling> make_sampling(const RunOptions& options);

// That tokens with a bias are tokens of the model. Errors: kInvalidArgument.
Status check_logit_bias(const engine::SamplerOptions& options, const model::ModelSpec& spec);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_RUN_COMMAND_H_
