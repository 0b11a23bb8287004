#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include "hotset/base/log.h"
#include "hotset/cli/bench_command.h"
#include "hotset/cli/command_line.h"
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
  hotset::cli::CommandLine line(
      "hotset runs Mixture-of-Experts language models that are larger than the GPU.\n"
      "Start with: hotset run -m MODEL.gguf -p \"Once upon a time\"\n"
      "Flags of llama.cpp's programs are understood (docs/coming-from-llama-cpp.md).",
      HOTSET_VERSION);
  hotset::cli::Command& program = line.program();
  hotset::cli::add_list_devices(program);
  hotset::cli::add_model_commands(program);
  hotset::cli::add_bench_command(program);
  hotset::cli::add_tune_command(program);
  hotset::cli::add_serve_command(program, HOTSET_VERSION);
  hotset::cli::add_replay_commands(program);
  hotset::cli::add_reference_commands(program, HOTSET_VERSION);
  return line.run({argv + 1, argv + argc});
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
