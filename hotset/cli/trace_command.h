// `hotset trace info|cut|merge|synth`: what a trace holds, and new ones.
#ifndef HOTSET_CLI_TRACE_COMMAND_H_
#define HOTSET_CLI_TRACE_COMMAND_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/trace/edit.h"
#include "hotset/trace/synth.h"

namespace hotset::cli {

struct TraceInfoOptions {
  std::vector<std::string> traces = {};
  bool layers = false;  // a line per layer as well
  bool json = false;    // an array with an object per trace
};

struct TraceCutOptions {
  std::string in = {};
  std::string out = {};
  std::string layers = {};  // "0-3,7"; empty: all
  trace::CutOptions cut = {};
};

struct TraceMergeOptions {
  std::vector<std::string> in = {};
  std::string out = {};
  std::string mode = "concatenate";  // interleave, batch
  int64_t interleave_steps = 1;
};

struct TraceSynthOptions {
  std::string out = {};
  std::vector<int64_t> expert_bytes = {884736, 884736, 884736};  // per tensor
  trace::SynthOptions synth = {};
};

// Each returns what is to be printed.
// Errors: those of the functions of hotset/trace; kInvalidArgument for a list of layers or a mode
// that cannot be read; kCancelled after Ctrl-C.
Result<std::string> trace_info(const TraceInfoOptions& options);
Result<std::string> trace_cut(const TraceCutOptions& options);
Result<std::string> trace_merge(const TraceMergeOptions& options);
Result<std::string> trace_synth(const TraceSynthOptions& options);

// "0-3,7" to 0 1 2 3 7. Errors: kInvalidArgument, with the part that is no number or range.
Result<std::vector<int32_t>> parse_layers(std::string_view list);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_TRACE_COMMAND_H_
