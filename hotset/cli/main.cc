#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/base/log.h"
#include "hotset/cli/bench_command.h"
#include "hotset/cli/command.h"
#include "hotset/cli/config_file.h"
#include "hotset/cli/model_flags.h"
#include "hotset/cli/reference_command.h"
#include "hotset/cli/replay_flags.h"
#include "hotset/cli/serve_flags.h"
#include "hotset/cli/tune_command.h"

#ifndef HOTSET_VERSION
#define HOTSET_VERSION "unknown"
#endif

namespace {

// Whoever starts this program may have closed its standard streams, or close them while it runs.
void prepare_streams() {
  // A file that is opened must not become stdout. Nothing can be written here, so output is an
  // error and not lost.
  while (true) {
    const int fd = open("/dev/null", O_RDONLY);
    if (fd > STDERR_FILENO) close(fd);
    if (fd < 0 || fd > STDERR_FILENO) break;
  }
  // A pipe that nobody reads any more and a file that may not grow are errors like others, not the
  // end by a signal.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// For what is thrown where nothing may be: mostly memory that was refused while something ended
// (JSON's destructors allocate). ggml has set a handler that prints a stack, and crashes without
// memory.
[[noreturn]] void end_process() {
  // Nothing here may allocate.
  const auto say = [](std::string_view text) {
    [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, text.data(), text.size());
  };
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    say("hotset: error: out of memory\n");
    _exit(1);
  } catch (const std::exception& error) {
    say("hotset: internal error: thrown where nothing may be: ");
    say(error.what());
    say("\n");
  } catch (...) {
  }
  std::abort();
}

int run(int argc, char** argv) {
  CLI::App app(
      "hotset runs Mixture-of-Experts language models that are larger than the GPU.\n"
      "Start with: hotset run -m MODEL.gguf -p \"Once upon a time\"\n"
      "Flags of llama.cpp's programs are understood (docs/coming-from-llama-cpp.md).",
      "hotset");
  app.set_version_flag("--version", std::string("hotset ") + HOTSET_VERSION);
  app.require_subcommand(1);
  hotset::cli::add_list_devices(app);
  int exit_status = 0;
  hotset::cli::add_model_commands(app, exit_status);
  hotset::cli::add_bench_command(app, exit_status);
  hotset::cli::add_tune_command(app, exit_status);
  hotset::cli::add_serve_command(app, exit_status, HOTSET_VERSION);
  hotset::cli::add_replay_commands(app, exit_status);
  hotset::cli::add_reference_commands(app, exit_status, HOTSET_VERSION);
  for (CLI::App* command : app.get_subcommands({}))
    hotset::cli::add_environment_variables(*command);
  const auto translated =
      hotset::cli::translate_command_line(app, std::vector<std::string>(argv + 1, argv + argc));
  if (!translated) {
    hotset::log_error("{}", translated.error().message);
    return 2;
  }
  hotset::cli::warn_of_misspelt_variables(app);
  std::vector<std::string> arguments = *translated;
  if (const hotset::Status configured = hotset::cli::apply_config(app, arguments); !configured) {
    return hotset::cli::report(configured);
  }
  std::ranges::reverse(arguments);  // CLI11 takes them from the back
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();  // reported already
  } catch (const CLI::ParseError& error) {
    return hotset::cli::report_usage(app, error);
  }
  return exit_status;
}

}  // namespace

int main(int argc, char** argv) {
  prepare_streams();
  std::set_terminate(end_process);
  // Nothing below throws on purpose; what a library throws must still end with a message.
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    // Without memory for a message that is put together.
    std::fputs("hotset: error: out of memory\n", stderr);
    return 1;
  } catch (const std::exception& error) {
    hotset::log_error("unexpected failure: {}", error.what());
    return 1;
  }
}
