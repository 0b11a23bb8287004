#include "hotset/cli/command.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <string>

#include "hotset/base/log.h"

namespace hotset::cli {

int report(const Status& status) {
  if (status) return 0;
  log_error("{}", status.error().message);
  return 1;
}

void add_environment_variables(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_lnames().empty() || option == command.get_help_ptr()) continue;
    std::string name = "HOTSET_";
    for (const char c : option->get_lnames().front()) {
      name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    option->envname(name);
  }
}

}  // namespace hotset::cli
