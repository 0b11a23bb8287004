// Declares the commands that work on routing traces: replay and trace.
#ifndef HOTSET_CLI_REPLAY_FLAGS_H_
#define HOTSET_CLI_REPLAY_FLAGS_H_

#include "hotset/base/setting.h"
#include "hotset/cli/flags.h"

namespace hotset::cli {

struct ReplayCommandOptions;

// What a user may say of `hotset replay` beside its traces and its format.
const Settings<ReplayCommandOptions>& replay_settings();

void add_replay_commands(Command& program);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_REPLAY_FLAGS_H_
