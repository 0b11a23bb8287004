// Declares the commands that work on routing traces: replay and trace.
#ifndef HOTSET_CLI_REPLAY_FLAGS_H_
#define HOTSET_CLI_REPLAY_FLAGS_H_

namespace CLI {
class App;
}

namespace hotset::cli {

// `exit_status` must live until the command has run.
void add_replay_commands(CLI::App& app, int& exit_status);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_REPLAY_FLAGS_H_
