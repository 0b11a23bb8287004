// Declares the commands that work on models: run, eval, info, tokenize, model.
#ifndef HOTSET_CLI_MODEL_FLAGS_H_
#define HOTSET_CLI_MODEL_FLAGS_H_

namespace CLI {
class App;
}

namespace hotset::measure {
struct ModelOptions;
}

namespace hotset::cli {

struct RunOptions;

// The flags of every command that computes with a model: the file, the device, the cache and so on.
void add_model_options(CLI::App& command, measure::ModelOptions& options);
// Flags of what engine/sampler.h does, in its order.
void add_sampling(CLI::App& command, RunOptions& options);
// --chat-template and its variables.
void add_chat_template(CLI::App& command, RunOptions& options);

// --list-devices, which prints and ends the program with success.
void add_list_devices(CLI::App& command);

// `exit_status` must live until the command has run.
void add_model_commands(CLI::App& app, int& exit_status);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_MODEL_FLAGS_H_
