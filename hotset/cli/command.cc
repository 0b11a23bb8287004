#include "hotset/cli/command.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "hotset/base/log.h"

namespace hotset::cli {
namespace {

// "run, eval, info"
std::string command_names(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names += (names.empty() ? "" : ", ") + command->get_name();
  }
  return names;
}

// What the parser says, said better where it complains of a missing flag although the reason is an
// argument that nothing takes.
std::string usage_message(const CLI::App& app, const CLI::App& command,
                          const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  const bool takes_commands = !command.get_subcommands({}).empty();
  if (takes_commands && command.get_subcommands().empty()) {
    return unknown.empty() ? "found no command, expected one of: " + command_names(command)
                           : fmt::format("found '{}', expected one of: {}", unknown.front(),
                                         command_names(command));
  }
  if (!unknown.empty()) return fmt::format("found '{}', which nothing takes", unknown.front());
  return error.what();
}

// Prints the help or version that `error` asks for. Not by std::cout, which loses the reason of a
// failure.
Status print_help(const CLI::App& app, const CLI::ParseError& error) {
  std::ostringstream text;
  app.exit(error, text, text);
  const std::string help = text.str();
  errno = 0;
  if (std::fwrite(help.data(), 1, help.size(), stdout) != help.size() || std::fflush(stdout) != 0) {
    return stdout_error();
  }
  return {};
}

// What an option has against a value.
std::string objection(CLI::Option& option, std::string value) {
  for (int i = 0;; ++i) {
    try {
      const CLI::Validator* validator = option.get_validator(i);
      if (std::string why = (*validator)(value); !why.empty()) return why;
    } catch (const CLI::OptionNotFound&) {
      return fmt::format("found '{}'", value);
    }
  }
}

// CLI11 passes over a variable whose value its option does not take; here it is an error.
void check_environment(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_envname().empty() || option->count() > 0) continue;
    const char* value = std::getenv(option->get_envname().c_str());
    if (value == nullptr || *value == '\0') continue;
    throw CLI::ValidationError(option->get_envname(), objection(*option, value));
  }
}

}  // namespace

int report(const Status& status) {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (status && written) return 0;
  log_error("{}", status ? stdout_error().error().message : status.error().message);
  return 1;
}

std::unexpected<Error> stdout_error() {
  // An earlier failure has left no reason.
  return make_error(ErrorCode::kIo, "standard output: cannot write{}{}", errno == 0 ? "" : ": ",
                    errno == 0 ? "" : std::strerror(errno));
}

int report_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) return report(print_help(app, error));
  const CLI::App* command = &app;
  std::string name = app.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += (name.empty() ? "" : " ") + command->get_name();
  }
  log_error("{} (see {} --help)", usage_message(app, *command, error), name);
  return 2;
}

std::vector<std::string> expand_short_flags(int argc, const char* const* argv) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kLongNames = {{
      {"-ub", "--ubatch-size"},
      {"-fa", "--flash-attn"},
      {"-ngl", "--n-gpu-layers"},
      {"-ctk", "--cache-type-k"},
      {"-ctv", "--cache-type-v"},
  }};
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (std::string& argument : arguments) {
    if (argument == "--") break;
    for (const auto& [short_name, long_name] : kLongNames) {
      if (argument == short_name) {
        argument = long_name;
      } else if (argument.starts_with(short_name) && argument[short_name.size()] == '=') {
        argument.replace(0, short_name.size(), long_name);
      }
    }
  }
  return arguments;
}

void add_environment_variables(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    // What acts as soon as it is seen (--list-devices) is not a setting.
    if (option->get_lnames().empty() || option == command.get_help_ptr() ||
        option->get_trigger_on_parse()) {
      continue;
    }
    if (!option->get_excludes().empty()) continue;
    std::string name = "HOTSET_";
    for (const char c : option->get_lnames().front()) {
      name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    option->envname(name);
  }
  command.parse_complete_callback([&command] { check_environment(command); });
  for (CLI::App* subcommand : command.get_subcommands({})) add_environment_variables(*subcommand);
}

}  // namespace hotset::cli
