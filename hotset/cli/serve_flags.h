// Declares `hotset serve`.
#ifndef HOTSET_CLI_SERVE_FLAGS_H_
#define HOTSET_CLI_SERVE_FLAGS_H_

#include <string>

#include "hotset/base/setting.h"
#include "hotset/cli/flags.h"

namespace hotset::cli {

struct ServeOptions;

// What a user may say of the server itself, not of the model. Without keys, which are given again.
const Settings<ServeOptions>& serve_settings();

void add_serve_command(Command& program, const std::string& version);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_SERVE_FLAGS_H_
