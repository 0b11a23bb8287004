// `hotset replay`: what a cache would have done with the routing of a trace.
#ifndef HOTSET_CLI_REPLAY_COMMAND_H_
#define HOTSET_CLI_REPLAY_COMMAND_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/lanes/lane_costs.h"
#include "hotset/policy/registry.h"
#include "hotset/sim/matrix.h"

namespace hotset::cli {

enum class ReplayFormat { kTable, kCsv, kMarkdown, kJson };

struct ReplayCommandOptions {
  // Its sizes, shares and batch are those of the texts below.
  sim::MatrixOptions matrix = {
      .policies = {std::string(policy::kDefaultPolicy), "class_lru", "lru"},
      .rules = {.rates = lanes::kTypicalRates}};
  std::vector<double> sizes_mib = {};            // if both are empty: 5, 10, 20, 30 and 40%
  std::vector<double> sizes_percent = {};        // of the bytes of all experts
  std::vector<std::string> share_texts = {"0"};  // "auto" or 0 to 1
  std::string batch_text = "auto";               // or 1 or more
  ReplayFormat format = ReplayFormat::kTable;
  std::string svg_path = {};  // empty: no picture
};

// What replay_matrix() is to do for these options.
// Errors: kInvalidArgument, a share is neither a number nor auto.
Result<sim::MatrixOptions> matrix_options(const ReplayCommandOptions& options);

// Replays, writes the picture if there is one to write, and returns what is to be printed. Shows
// progress on a terminal.
// Errors: those of matrix_options() and replay_matrix(), kCancelled after Ctrl-C; kIo, the picture
// cannot be written.
Result<std::string> run_replay(const ReplayCommandOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_REPLAY_COMMAND_H_
