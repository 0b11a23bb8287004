// Configuration files: a flag a line, "moe-cache-mib = 4096", # for comments. A flag on the command
// line wins over the file, and the file over the environment.
// Thread-compatible: before there are other threads, because it changes the environment.
#ifndef HOTSET_CLI_CONFIG_FILE_H_
#define HOTSET_CLI_CONFIG_FILE_H_

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cli/foreign_flags.h"

namespace hotset::cli {

// Errors: kCorrupt, naming `name`, the line, what was found and what was expected.
Result<std::vector<std::pair<std::string, std::string>>> parse_config(const std::string& name,
                                                                      const std::string& text);

// Takes "--config FILE" out of the arguments of a command that has it (without one: HOTSET_CONFIG),
// and gives the file's flags to the command by their environment variables.
// Errors: those of read_text and parse_config; kInvalidArgument, a flag that the command does not
// have.
Status apply_config(std::span<const CommandFlags> commands, std::vector<std::string>& arguments);

// Warns of each variable HOTSET_... that nothing reads but whose name is like one of `names`, which
// are read.
void warn_of_misspelt_variables(const std::vector<std::string>& names);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_CONFIG_FILE_H_
