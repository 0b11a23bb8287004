#include "hotset/cli/command.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/base/nearest.h"
#include "hotset/base/printable.h"
#include "hotset/cli/foreign_flags.h"

namespace hotset::cli {
namespace {

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// What a word is that was found where a command belongs.
std::string unknown_command(const CLI::App& app, const std::string& found) {
  const std::vector<std::string> names = names_of_commands(app);
  std::string advice = did_you_mean(found, names);
  // As other programs are called, whose names people have in their fingers.
  if (found.starts_with("-") && found.size() > 1 && std::ranges::contains(names, "run")) {
    advice = "; flags stand behind the command: hotset run " + printable(found) + " ...";
  } else if (found == "chat" && advice.empty()) {
    advice = "; a conversation is hotset run -i";
  } else if (found == "perplexity") {
    advice = "; perplexity is hotset eval";
  }
  return fmt::format("found '{}', expected one of: {}{}", found, fmt::join(names, ", "), advice);
}

// What the parser says, said better where it complains of a missing flag although the reason is an
// argument that nothing takes.
std::string usage_message(const CLI::App& app, const CLI::App& command,
                          const CLI::ParseError& error) {
  const std::vector<std::string> unknown = app.remaining(true);
  const bool takes_commands = !command.get_subcommands({}).empty();
  if (takes_commands && command.get_subcommands().empty()) {
    return unknown.empty() ? fmt::format("found no command, expected one of: {}",
                                         fmt::join(names_of_commands(command), ", "))
                           : unknown_command(command, unknown.front());
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

CommandFlags flags_of(const CLI::App& command, std::string name) {
  CommandFlags result{.command = std::move(name), .flags = {}};
  for (const CLI::Option* option : command.get_options()) {
    OwnFlag flag{.names = {}, .n_values = option->get_items_expected_min()};
    for (const std::string& one : option->get_snames()) flag.names.push_back("-" + one);
    for (const std::string& one : option->get_lnames()) flag.names.push_back("--" + one);
    if (option->get_positional()) result.takes_positionals = true;
    if (!flag.names.empty()) result.flags.push_back(std::move(flag));
  }
  return result;
}

Result<std::vector<std::string>> translate_command_line(const CLI::App& app,
                                                        std::vector<std::string> arguments) {
  std::vector<CommandFlags> all;
  for (const CLI::App* command : app.get_subcommands({})) {
    all.push_back(flags_of(*command, command->get_name()));
  }
  const CLI::App* command = &app;
  std::string name;
  size_t n_names = 0;
  while (n_names < arguments.size()) {
    const CLI::App* inner = nullptr;
    for (const CLI::App* one : command->get_subcommands({})) {
      if (one->get_name() == arguments[n_names]) inner = one;
    }
    if (inner == nullptr) break;
    command = inner;
    name += (name.empty() ? "" : " ") + arguments[n_names++];
  }
  // Without a command the parser says best what is wrong.
  if (!command->get_subcommands({}).empty()) return arguments;
  auto translated =
      translate_arguments(flags_of(*command, name), all, std::span(arguments).subspan(n_names));
  if (!translated) {
    return make_error(ErrorCode::kInvalidArgument, "{} (see hotset {} --help)",
                      translated.error().message, name);
  }
  for (const std::string& note : translated->notes) log_info("{}", note);
  arguments.resize(n_names);
  arguments.insert(arguments.end(), translated->arguments.begin(), translated->arguments.end());
  return arguments;
}

std::vector<std::string> setting_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_envname().empty()) names.push_back(option->get_lnames().front());
  }
  return names;
}

void warn_of_misspelt_variables(const CLI::App& app) {
  std::set<std::string> known;
  const auto add = [&](const CLI::App& command, const auto& self) -> void {
    for (const CLI::Option* option : command.get_options()) known.insert(option->get_envname());
    for (const CLI::App* one : command.get_subcommands({})) self(*one, self);
  };
  add(app, add);
  known.erase("");
  const std::vector<std::string> names(known.begin(), known.end());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    if (!name.starts_with("HOTSET_") || known.contains(name)) continue;
    // By the part behind what all have in common.
    constexpr size_t kPrefix = std::string_view("HOTSET_").size();
    std::vector<std::string> flags;
    for (const std::string& one : names) flags.push_back(one.substr(kPrefix));
    const std::string near = nearest(name.substr(kPrefix), flags);
    if (!near.empty()) log_warning("{}: nothing reads it; did you mean HOTSET_{}?", name, near);
  }
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

Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list) {
  std::vector<int32_t> ids;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view part = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    const size_t first = part.find_first_not_of(" \t\n");
    part = first == std::string_view::npos
               ? std::string_view()
               : part.substr(first, part.find_last_not_of(" \t\n") - first + 1);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || end != part.data() + part.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: found '{}', expected token ids separated by commas", flag, part);
    }
    ids.push_back(id);
  }
  if (ids.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found nothing, expected token ids", flag);
  }
  return ids;
}

Status check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t n_vocab) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < n_vocab) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}: found token id {}, expected 0 to {}", flag,
                      id, n_vocab - 1);
  }
  return {};
}

}  // namespace hotset::cli
