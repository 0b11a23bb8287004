// Configuration files: a flag a line, "moe-cache-mib = 4096", # for comments. A flag on the command
// line wins over the file, and the file over the environment.
// Thread-compatible: before there are other threads, because it changes the environment.
#ifndef HOTSET_CLI_CONFIG_FILE_H_
#define HOTSET_CLI_CONFIG_FILE_H_

#include <string>
#include <utility>
#include <vector>

#include "hotset/base/error.h"

namespace CLI {
class App;
}

namespace hotset::cli {

// Errors: kCorrupt, naming `name`, the line, what was found and what was expected.
Result<std::vector<std::pair<std::string, std::string>>> parse_config(const std::string& name,
                                                                      const std::string& text);

// Takes "--config FILE" out of the arguments of a command that has it (without one: HOTSET_CONFIG),
// and gives the file's flags to the command by their environment variables.
// Errors: those of read_text and parse_config; kInvalidArgument, a flag that the command does not
// have.
Status apply_config(const CLI::App& app, std::vector<std::string>& arguments);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_CONFIG_FILE_H_
