// `hotset completion SHELL` and `hotset reference man|markdown`: what the parser knows of commands
// and flags, printed, so that man page, completions and docs/flags.md cannot differ from it.
// Thread-compatible.
#ifndef HOTSET_CLI_REFERENCE_COMMAND_H_
#define HOTSET_CLI_REFERENCE_COMMAND_H_

#include <string>

#include "hotset/cli/command_reference.h"
#include "hotset/cli/flags.h"

namespace CLI {
class App;
}

namespace hotset::cli {

// What `app` and the commands below it take. Reads declarations only, so it is the same on every
// machine and in every environment. Requires: all flags and variables are declared.
// Not const: validators are asked what they expect.
CommandReference reference_of(CLI::App& app);

// Adds the commands to the program, which they describe.
void add_reference_commands(Command program, const std::string& version);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_REFERENCE_COMMAND_H_
