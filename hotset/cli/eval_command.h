// `hotset eval`: what a model computes for given tokens, for comparing and for measuring.
#ifndef HOTSET_CLI_EVAL_COMMAND_H_
#define HOTSET_CLI_EVAL_COMMAND_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/error.h"
#include "hotset/measure/model_options.h"

namespace hotset::cli {

struct EvalOptions {
  measure::ModelOptions model;
  std::optional<std::string> tokens;     // "1,2,3", or
  std::optional<std::string> text_file;  // a text; "-" is standard input
  int32_t n_generate = 0;                // greedy tokens after the given ones
  std::string logits_out;                // raw float32 rows [positions, n_vocab]; empty: none
  std::string routing_out;               // JSON; empty: none
  bool json = false;
};

// Evaluates the tokens in contexts of n_ctx, the last one shorter. Logits are written for every
// position, then the row after each generated token. Routed experts are written as
// {"LAYER": [ids...]}, flat, k per position in routing order. The perplexity is over all tokens but
// the first of each context.
// Errors: kInvalidArgument, kIo, and what loading and computing give.
Status eval(const EvalOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_EVAL_COMMAND_H_
