#include "hotset/cli/config_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "hotset/base/log.h"
#include "hotset/base/nearest.h"
#include "hotset/base/printable.h"
#include "hotset/base/text_file.h"

namespace hotset::cli {
namespace {

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

// The long names of a command's flags that have variables, without dashes.
std::vector<std::string> setting_names(const CommandFlags& command) {
  std::vector<std::string> names;
  for (const OwnFlag& flag : command.flags) {
    if (flag.variable.empty()) continue;
    names.push_back(std::ranges::find_if(flag.names, [](const std::string& name) {
                      return name.starts_with("--");
                    })->substr(2));
  }
  return names;
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

Status apply_config(std::span<const CommandFlags> commands, std::vector<std::string>& arguments) {
  const auto command = std::ranges::find_if(commands, [&](const CommandFlags& one) {
    return !arguments.empty() && one.command == arguments.front();
  });
  if (command == commands.end() || command->find("--config") == nullptr) return {};
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
    const OwnFlag* own = command->find("--" + flag);
    if (own == nullptr || own->variable.empty()) {
      const std::string about = about_foreign_flag(flag);
      return make_error(ErrorCode::kInvalidArgument, "{}: {}: hotset {} has no such setting{}",
                        path, flag, command->command,
                        about.empty() ? did_you_mean(flag, setting_names(*command)) : "; " + about);
    }
    setenv(own->variable.c_str(), value.c_str(), 1);
  }
  return {};
}

void warn_of_misspelt_variables(const std::vector<std::string>& names) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("HOTSET_") || std::ranges::contains(names, name)) continue;
    // By the part behind what all have in common.
    constexpr size_t kPrefix = std::string_view("HOTSET_").size();
    std::vector<std::string> flags;
    for (const std::string& one : names) flags.push_back(one.substr(kPrefix));
    const std::string near = nearest(name.substr(kPrefix), flags);
    if (!near.empty()) log_warning("{}: nothing reads it; did you mean HOTSET_{}?", name, near);
  }
}

}  // namespace hotset::cli
