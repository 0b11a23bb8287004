#include "hotset/cli/command.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "hotset/base/log.h"

namespace hotset::cli {

int report(const Status& status) {
  if (status) return 0;
  log_error("{}", status.error().message);
  return 1;
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
    std::string name = "HOTSET_";
    for (const char c : option->get_lnames().front()) {
      name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    option->envname(name);
  }
  for (CLI::App* subcommand : command.get_subcommands({})) add_environment_variables(*subcommand);
}

}  // namespace hotset::cli
