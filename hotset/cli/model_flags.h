// Declares the commands that work on models: run, eval, info, tokenize, model; and what other
// commands have in common with them.
#ifndef HOTSET_CLI_MODEL_FLAGS_H_
#define HOTSET_CLI_MODEL_FLAGS_H_

#include <initializer_list>
#include <string_view>

#include "hotset/cli/flags.h"

namespace hotset::measure {
struct ModelOptions;
}

namespace hotset::cli {

struct RunOptions;

// The flags of every command that computes with a model: the file, the device, the cache and so on,
// but those of the names in `without`.
void add_model_options(Command& command, measure::ModelOptions& options,
                       std::initializer_list<std::string_view> without = {});
// Flags of what engine/sampler.h does, in its order.
void add_sampling(Command& command, RunOptions& options);
// --chat-template and its variables.
void add_chat_template(Command& command, RunOptions& options);

// --list-devices, which prints and ends the program with success.
void add_list_devices(Command& command);

void add_model_commands(Command& program);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_MODEL_FLAGS_H_
