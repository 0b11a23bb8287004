// `hotset tune`: which cache is best on this machine.
#ifndef HOTSET_CLI_TUNE_COMMAND_H_
#define HOTSET_CLI_TUNE_COMMAND_H_

#include <string>

#include "hotset/base/error.h"
#include "hotset/cli/flags.h"
#include "hotset/measure/tune_options.h"

namespace hotset::cli {

// Tunes, writes the files that were asked for and prints the report. Where nothing is recommended
// it prints the report, too, and returns the reason as an error. Errors: those of run_tune(); kIo;
// kUnsupported: a build that must not be measured, and no virtual clock.
Status tune_command(const measure::TuneCommandOptions& options);

void add_tune_command(Command& program);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_TUNE_COMMAND_H_
