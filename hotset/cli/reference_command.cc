#include "hotset/cli/reference_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "hotset/base/printable.h"
#include "hotset/cli/command.h"
#include "hotset/cli/completions.h"

namespace hotset::cli {
namespace {

// A value that no flag takes, so that validators say what they expect instead.
constexpr const char* kNoValue = "?";

// Which values an option takes: what its validators say, described or complaining.
std::string expected_values(CLI::Option& option) {
  for (int i = 0;; ++i) {
    const CLI::Validator* validator = nullptr;
    try {
      validator = option.get_validator(i);
    } catch (const CLI::OptionNotFound&) {
      return {};
    }
    // CLI11's own: "INT in [0 - 65535]".
    const std::string about = validator->get_description();
    const size_t range = about.find(" in [");
    const size_t dash = about.find(" - ", range);
    if (range != std::string::npos && dash != std::string::npos && about.ends_with("]")) {
      return about.substr(range + 5, dash - range - 5) + " to " +
             about.substr(dash + 3, about.size() - dash - 4);
    }
    const std::string why = (*validator)(std::string(kNoValue));
    constexpr std::string_view kExpected = ", expected ";
    const size_t expected = why.find(kExpected);
    if (expected != std::string::npos) return why.substr(expected + kExpected.size());
  }
}

// "on, off" of "one of: on, off"; none where the values are not a few words.
std::vector<std::string> words_of(std::string_view expected) {
  constexpr std::string_view kOneOf = "one of: ";
  std::vector<std::string> words;
  if (!expected.starts_with(kOneOf)) return words;
  expected.remove_prefix(kOneOf.size());
  while (!expected.empty()) {
    const size_t end = std::min(expected.find(", "), expected.size());
    words.emplace_back(expected.substr(0, end));
    expected.remove_prefix(std::min(end + 2, expected.size()));
  }
  return words;
}

ValueKind kind_of(const FlagReference& flag) {
  if (flag.value.empty()) return ValueKind::kNone;
  if (!flag.words.empty()) return ValueKind::kWord;
  if (flag.value.contains("FOLDER")) return ValueKind::kFolder;
  // As the types of values are named that are files, whatever is in them.
  for (const char* file : {"FILE", "TRACE", ".json", "SERVER"}) {
    if (flag.value.contains(file)) return ValueKind::kFile;
  }
  return ValueKind::kText;
}

FlagReference flag_of(CLI::Option& option) {
  FlagReference flag;
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  if (option.get_items_expected_max() > 0) {
    // The type without what validators add to it.
    flag.value = option.get_type_name();
    flag.value.resize(std::min(flag.value.find(':'), flag.value.size()));
  }
  if (option.get_positional()) flag.value = option.get_name(true);
  flag.expected = expected_values(option);
  flag.words = words_of(flag.expected);
  if (!flag.words.empty()) flag.expected = CLI::detail::join(flag.words, ", ");
  flag.kind = kind_of(flag);
  flag.default_value = option.get_default_str();
  // A list's is in brackets.
  if (flag.default_value.starts_with('[') && flag.default_value.ends_with(']')) {
    flag.default_value = flag.default_value.substr(1, flag.default_value.size() - 2);
  }
  flag.variable = option.get_envname();
  flag.help = option.get_description();
  for (const CLI::Option* other : option.get_excludes()) {
    flag.excludes.push_back(other->get_name());
  }
  std::ranges::sort(flag.excludes);  // they come in the order of their addresses
  flag.required = option.get_required();
  flag.repeats = option.get_items_expected_max() > std::max(option.get_type_size_max(), 1) &&
                 option.get_items_expected_max() > option.get_items_expected_min();
  return flag;
}

void add_flag_to(std::vector<FlagGroup>& groups, const std::string& name, FlagReference flag) {
  auto group = std::ranges::find(groups, name, &FlagGroup::name);
  if (group == groups.end()) group = groups.insert(groups.end(), FlagGroup{.name = name});
  group->flags.push_back(std::move(flag));
}

CommandReference reference_below(CLI::App& app, const std::string& above) {
  CommandReference command{
      .name = above + app.get_name(), .about = app.get_description(), .footer = app.get_footer()};
  for (CLI::Option* option : app.get_options([](const CLI::Option*) { return true; })) {
    if (option->get_group().empty()) continue;  // hidden
    FlagReference flag = flag_of(*option);
    if (option->get_positional()) {
      FlagReference argument = flag;
      argument.names.clear();
      // Only the flag has the rest.
      if (!flag.names.empty()) argument.variable.clear();
      command.arguments.push_back(std::move(argument));
    }
    if (!flag.names.empty()) add_flag_to(command.groups, option->get_group(), std::move(flag));
  }
  for (CLI::App* one : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!one->get_group().empty()) {
      command.commands.push_back(reference_below(*one, command.name + " "));
    }
  }
  return command;
}

int print(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    return report(stdout_error());
  }
  return report({});
}

// A command that prints what `formats` makes of the reference, by the word it is given.
using Format = std::pair<const char*, std::function<std::string(const CommandReference&)>>;

void add_printer(Command program, const char* name, const char* about, const char* argument,
                 const char* help, std::vector<Format> formats) {
  std::vector<std::string> words;
  for (const Format& format : formats) words.emplace_back(format.first);
  auto word = std::make_shared<std::string>();
  Command command = program.add_command(name, about);
  command.app()
      .add_option(argument, *word, help)
      ->required()
      ->check(CLI::Validator(
          [words](const std::string& text) {
            if (std::ranges::contains(words, text)) return std::string();
            return "found '" + printable(text) +
                   "', expected one of: " + CLI::detail::join(words, ", ");
          },
          ""));
  command.on_run([program, word, formats = std::move(formats)] {
    const auto format = std::ranges::find(formats, *word, &Format::first);
    return print(format->second(reference_of(program.app())));
  });
}

}  // namespace

CommandReference reference_of(CLI::App& app) { return reference_below(app, ""); }

void add_reference_commands(Command program, const std::string& version) {
  add_printer(program, "completion", "Print completions for a shell, to be sourced by it", "SHELL",
              "The shell",
              {{"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}});
  add_printer(program, "reference", "Print every command and flag, as a man page or as Markdown",
              "FORMAT", "What to make of them",
              {{"man", [version](const CommandReference& all) { return man_page(all, version); }},
               {"markdown", markdown_page}});
}

}  // namespace hotset::cli
