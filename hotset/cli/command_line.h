// The command line of the program: its commands, and what becomes of arguments, configuration files
// and variables of the environment.
// Thread-compatible. run() changes the environment, so there must not be other threads.
#ifndef HOTSET_CLI_COMMAND_LINE_H_
#define HOTSET_CLI_COMMAND_LINE_H_

#include <memory>
#include <string>
#include <vector>

#include "hotset/cli/flags.h"
#include "hotset/cli/foreign_flags.h"

namespace CLI {
class App;
}

namespace hotset::cli {

class CommandLine {
 public:
  // `version` is what --version prints.
  CommandLine(const std::string& about, const std::string& version);
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // The program, below which commands are added.
  Command& program() { return program_; }

  // What each command takes; of commands that have some below them, not of these.
  std::vector<CommandFlags> commands() const;

  // `hotset ARGUMENTS`. Every long flag of a command has the variable HOTSET_<NAME>: --cache-mib
  // reads HOTSET_CACHE_MIB. The flag on the command line wins over the configuration file, and that
  // over the variable. Flags that exclude others have none: they say what to work on, and a
  // variable would contradict the command line.
  // The exit status: 0 for success, 2 for wrong usage, else what the command gave. What is wrong is
  // reported. Call once, when all commands were added.
  int run(std::vector<std::string> arguments);

 private:
  std::unique_ptr<CLI::App> app_;
  int exit_status_ = 0;
  Command program_;
};

}  // namespace hotset::cli

#endif  // HOTSET_CLI_COMMAND_LINE_H_
