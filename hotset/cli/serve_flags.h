// Declares `hotset serve`.
#ifndef HOTSET_CLI_SERVE_FLAGS_H_
#define HOTSET_CLI_SERVE_FLAGS_H_

#include <string>

namespace CLI {
class App;
}

namespace hotset::cli {

// `exit_status` must live until the command has run.
void add_serve_command(CLI::App& app, int& exit_status, const std::string& version);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_SERVE_FLAGS_H_
