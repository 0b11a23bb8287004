// `hotset bench`: how fast a model is, and how fast it could be.
// Thread-compatible.
#ifndef HOTSET_CLI_BENCH_COMMAND_H_
#define HOTSET_CLI_BENCH_COMMAND_H_

#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cli/flags.h"
#include "hotset/measure/bench_options.h"

namespace hotset::cli {

// What is printed: the results so far where Ctrl-C came (`interrupted` is then true).
// Errors: those of run_bench(); kUnsupported, a build that must not be measured.
struct BenchOutput {
  std::string text;
  bool interrupted = false;
};
Result<BenchOutput> bench(const measure::BenchOptions& options);

// `paths`: the two files. Errors: those of read_text() and compare_bench().
Result<std::string> bench_compare(const std::vector<std::string>& paths,
                                  measure::BenchFormat format);

void add_bench_command(Command& program);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_BENCH_COMMAND_H_
