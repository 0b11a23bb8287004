#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "hotset/base/log.h"
#include "hotset/cli/command.h"

#ifndef HOTSET_VERSION
#define HOTSET_VERSION "unknown"
#endif

namespace {

int run(int argc, char** argv) {
  CLI::App app(
      "hotset runs Mixture-of-Experts language models that are larger than the GPU.\n"
      "Start with: hotset run -m MODEL.gguf -p \"Once upon a time\"");
  app.set_version_flag("--version", std::string("hotset ") + HOTSET_VERSION);
  app.require_subcommand(1);
  int exit_status = 0;
  (void)exit_status;
  for (CLI::App* command : app.get_subcommands({})) hotset::cli::add_environment_variables(*command);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return exit_status;
}

}  // namespace

int main(int argc, char** argv) {
  // Nothing below throws on purpose; what a library throws must still end with a message.
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    hotset::log_error("unexpected failure: {}", error.what());
    return 1;
  }
}
