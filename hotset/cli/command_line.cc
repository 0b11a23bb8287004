#include "hotset/cli/command_line.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/base/nearest.h"
#include "hotset/base/printable.h"
#include "hotset/cli/command.h"
#include "hotset/cli/config_file.h"

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

// Says on stderr what is wrong with the command line, or prints the help that was asked for; the
// exit status that goes with it.
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
    OwnFlag flag{.names = {},
                 .n_values = option->get_items_expected_min(),
                 .variable = option->get_envname()};
    for (const std::string& one : option->get_snames()) flag.names.push_back("-" + one);
    for (const std::string& one : option->get_lnames()) flag.names.push_back("--" + one);
    if (option->get_positional()) result.takes_positionals = true;
    if (!flag.names.empty()) result.flags.push_back(std::move(flag));
  }
  return result;
}

// Says a command line in the flags of the command that it names (foreign_flags.h) and tells what
// was ignored or read otherwise. Errors: kInvalidArgument, wrong usage.
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

// All variables that are read, of commands below others, too.
void add_variables(const CLI::App& command, std::set<std::string>& variables) {
  for (const CLI::Option* option : command.get_options()) variables.insert(option->get_envname());
  for (const CLI::App* one : command.get_subcommands({})) add_variables(*one, variables);
  variables.erase("");
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

}  // namespace

CommandLine::CommandLine(const std::string& about, const std::string& version)
    : app_(std::make_unique<CLI::App>(about, "hotset")), program_(*app_, exit_status_) {
  app_->set_version_flag("--version", "hotset " + version);
  program_.needs_command();
}

CommandLine::~CommandLine() = default;

std::vector<CommandFlags> CommandLine::commands() const {
  std::vector<CommandFlags> all;
  for (const CLI::App* command : app_->get_subcommands({})) {
    all.push_back(flags_of(*command, command->get_name()));
  }
  return all;
}

int CommandLine::run(std::vector<std::string> arguments) {
  for (CLI::App* command : app_->get_subcommands({})) add_environment_variables(*command);
  auto translated = translate_command_line(*app_, std::move(arguments));
  if (!translated) {
    log_error("{}", translated.error().message);
    return 2;
  }
  arguments = *std::move(translated);
  std::set<std::string> variables;
  add_variables(*app_, variables);
  warn_of_misspelt_variables({variables.begin(), variables.end()});
  if (const Status configured = apply_config(commands(), arguments); !configured) {
    return report(configured);
  }
  std::ranges::reverse(arguments);  // CLI11 takes them from the back
  try {
    app_->parse(std::move(arguments));
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();  // reported already
  } catch (const CLI::ParseError& error) {
    return report_usage(*app_, error);
  }
  return exit_status_;
}

}  // namespace hotset::cli
