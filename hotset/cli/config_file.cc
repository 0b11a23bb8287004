#include "hotset/cli/config_file.h"
#include "hotset/base/text_file.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "hotset/base/nearest.h"
#include "hotset/base/printable.h"
#include "hotset/cli/command.h"
#include "hotset/cli/foreign_flags.h"
#include "hotset/measure/model_options.h"

namespace hotset::cli {
namespace {

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

// The option of this long name, without dashes; null if there is none.
const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options()) {
    if (std::ranges::find(option->get_lnames(), name) != option->get_lnames().end()) return option;
  }
  return nullptr;
}

}  // namespace

Result<std::vector<std::pair<std::string, std::string>>> parse_config(const std::string& name,
                                                                      const std::string& text) {
  std::vector<std::pair<std::string, std::string>> flags;
  int n_line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = trimmed(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++n_line;
    if (line.empty() || line.starts_with('#')) continue;
    const size_t equals = line.find('=');
    const std::string flag = trimmed(std::string_view(line).substr(0, equals));
    if (equals == std::string::npos || flag.empty() || flag.starts_with('-')) {
      return make_error(ErrorCode::kCorrupt, "{}: line {}: found '{}', expected 'flag = value'",
                        name, n_line, printable(line));
    }
    flags.emplace_back(flag, trimmed(std::string_view(line).substr(equals + 1)));
  }
  return flags;
}

Status apply_config(const CLI::App& app, std::vector<std::string>& arguments) {
  const CLI::App* command = nullptr;
  for (const CLI::App* one : app.get_subcommands({})) {
    if (!arguments.empty() && one->get_name() == arguments.front()) command = one;
  }
  if (command == nullptr || find_option(*command, "config") == nullptr) return {};
  const char* const variable = std::getenv("HOTSET_CONFIG");
  std::string path = variable == nullptr ? "" : variable;
  for (auto it = arguments.begin(); it != arguments.end() && *it != "--";) {
    if (it->starts_with("--config=")) {
      path = it->substr(std::string_view("--config=").size());
    } else if (*it == "--config" && it + 1 != arguments.end()) {
      path = *(it + 1);
      it = arguments.erase(it);
    } else {
      ++it;
      continue;
    }
    it = arguments.erase(it);
  }
  if (path.empty()) return {};
  HOTSET_TRY(const std::string text, read_text(path));
  HOTSET_TRY(const auto flags, parse_config(path, text));
  for (const auto& [flag, value] : flags) {
    const CLI::Option* option = find_option(*command, flag);
    if (option == nullptr || option->get_envname().empty()) {
      const std::string about = about_foreign_flag(flag);
      return make_error(ErrorCode::kInvalidArgument, "{}: {}: hotset {} has no such setting{}",
                        path, flag, command->get_name(),
                        about.empty() ? did_you_mean(flag, setting_names(*command)) : "; " + about);
    }
    setenv(option->get_envname().c_str(), value.c_str(), 1);
  }
  return {};
}

}  // namespace hotset::cli
