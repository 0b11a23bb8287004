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
  std::vector<std::string> traces = {};
  std::vector<std::string> policies = {std::string(policy::kDefaultPolicy), "class_lru", "lru"};
  std::vector<double> cache_mib = {};               // if both are empty: 5, 10, 20, 30 and 40%
  std::vector<double> cache_pct = {};               // of the bytes of all experts
  std::vector<std::optional<double>> shares = {0};  // 0 to 1; none: the chooser decides
  std::optional<int64_t> skip_tokens = {};          // absent: 100, or 0 with compat_zero_slots
  // Lookups of more tokens, 1 or more, are streamed; none: the costs decide.
  std::optional<int32_t> batch = {};
  bool fills = true;  // experts that the CPU computed may be copied
  bool compat_zero_slots = false;
  std::string profile_trace = {};  // for the policy `static`
  lanes::LaneRates rates = lanes::kTypicalRates;
  size_t n_threads = 0;  // 0: one per CPU that may be used
  ReplayFormat format = ReplayFormat::kTable;
  std::string svg_path = {};  // empty: no picture
};

// What replay_matrix() is to do for these options.
// Errors: kInvalidArgument, a value that its setting does not take.
Result<sim::MatrixOptions> matrix_options(const ReplayCommandOptions& options);

// Replays, writes the picture if there is one to write, and returns what is to be printed. Shows
// progress on a terminal.
// Errors: those of matrix_options() and replay_matrix(), kCancelled after Ctrl-C; kIo, the picture
// cannot be written.
Result<std::string> run_replay(const ReplayCommandOptions& options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_REPLAY_COMMAND_H_
