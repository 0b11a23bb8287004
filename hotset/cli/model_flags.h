// Declares the commands that work on models: run, eval, info, tokenize, model.
#ifndef HOTSET_CLI_MODEL_FLAGS_H_
#define HOTSET_CLI_MODEL_FLAGS_H_

namespace CLI {
class App;
}

namespace hotset::cli {

// `exit_status` must live until the command has run.
void add_model_commands(CLI::App& app, int& exit_status);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_MODEL_FLAGS_H_
