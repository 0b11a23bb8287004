// The subcommands of the one binary. Each add_*_command() declares its flags on `app` and sets a
// callback that runs the command and leaves its exit status in `exit_status`: 0 for success, 1 for
// an error that was reported (wrong usage is 2, from the parser).
// CLI11 is included only by the .cc files that declare flags; the work itself is done by functions
// over plain option structs, so that it can be tested without a command line.
// Thread-compatible.
#ifndef HOTSET_CLI_COMMAND_H_
#define HOTSET_CLI_COMMAND_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cli/foreign_flags.h"

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace hotset::cli {

// Reports a failed command on stderr; the exit status that goes with it. Output that is still on
// its way to stdout is written first: that it cannot be is a failure as well.
int report(const Status& status);

// The error of a write to stdout that failed just now (errno says why).
std::unexpected<Error> stdout_error();

// Says on stderr what is wrong with the command line, or prints the help that was asked for; the
// exit status that goes with it.
int report_usage(const CLI::App& app, const CLI::ParseError& error);

// What a command takes; `name` as users write it.
CommandFlags flags_of(const CLI::App& command, std::string name);

// Says a command line in the flags of the command that it names (foreign_flags.h) and tells what
// was ignored or read otherwise. `arguments` without the program's name.
// Errors: kInvalidArgument, wrong usage.
Result<std::vector<std::string>> translate_command_line(const CLI::App& app,
                                                        std::vector<std::string> arguments);

// The long names of a command's flags that have environment variables, without dashes.
std::vector<std::string> setting_names(const CLI::App& command);

// Warns of each variable HOTSET_... that nothing reads but whose name is like one that is read.
void warn_of_misspelt_variables(const CLI::App& app);

// Gives every long flag of `command` and its subcommands the environment variable HOTSET_<NAME>:
// --cache-mib reads HOTSET_CACHE_MIB. The flag on the command line wins. Flags that exclude others
// have none: they say what to work on, and a variable would contradict the command line.
void add_environment_variables(CLI::App& command);

// "1,2,3" to ids. Errors: kInvalidArgument, naming `flag` and the part that is no number.
Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list);

// That ids are tokens of a model. Errors: kInvalidArgument, naming `flag`, the id and the range.
Status check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t n_vocab);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_COMMAND_H_
