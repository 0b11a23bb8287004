#include "hotset/cli/command_reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace hotset::cli {
namespace {

std::string sentence(std::string_view text) {
  return std::string(text) + (text.ends_with('.') ? "" : ".");
}

// Said once for all commands.
bool is_help(const FlagReference& flag) { return std::ranges::contains(flag.names, "--help"); }

// What is to be known of a flag beside its values.
std::string conditions(const FlagReference& flag) {
  std::string text = flag.required ? " Required." : "";
  if (!flag.excludes.empty()) text += fmt::format(" Not with {}.", fmt::join(flag.excludes, ", "));
  return text;
}

// Roff.

// `text` as roff prints it: what it gives a meaning is escaped, so that dashes are those that are
// typed and quotes stay what they are. Text between backticks is bold.
std::string roff(std::string_view text) {
  std::string out;
  bool bold = false;
  bool line_begins = true;
  for (const char c : text) {
    // A line that begins with one of these is a request.
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    line_begins = c == '\n';
    switch (c) {
      case '\\':
        out += "\\e";
        break;
      case '-':
        out += "\\-";
        break;
      case '~':
        out += "\\(ti";
        break;
      case '^':
        out += "\\(ha";
        break;
      case '\'':
        out += "\\(aq";
        break;
      case '"':
        out += "\\(dq";
        break;
      case '`':
        out += bold ? "\\fR" : "\\fB";
        bold = !bold;
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string bold(std::string_view text) { return fmt::format("\\fB{}\\fR", roff(text)); }
std::string italic(std::string_view text) { return fmt::format("\\fI{}\\fR", roff(text)); }

std::string man_flag(const FlagReference& flag) {
  std::string text = ".TP\n";
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back(bold(name));
  text += fmt::format("{}", fmt::join(names, ", "));
  if (!flag.value.empty()) text += (names.empty() ? "" : " ") + italic(flag.value);
  text += "\n" + roff(sentence(flag.help) + conditions(flag)) + "\n";
  std::string more;
  if (!flag.expected.empty()) more += "Values: " + roff(flag.expected) + ". ";
  if (!flag.default_value.empty()) more += "Default: " + bold(flag.default_value) + ". ";
  if (!flag.variable.empty()) more += "Variable: " + roff(flag.variable) + ". ";
  if (!more.empty()) {
    more.pop_back();
    text += ".br\n" + more + "\n";
  }
  return text;
}

std::string man_flags(const CommandReference& command, bool with_help) {
  std::string text;
  for (const FlagReference& argument : command.arguments) text += man_flag(argument);
  for (const FlagGroup& group : command.groups) {
    if (command.groups.size() > 1) text += ".PP\n" + italic(group.name) + "\n";
    for (const FlagReference& flag : group.flags) {
      if (with_help || !is_help(flag)) text += man_flag(flag);
    }
  }
  return text;
}

std::string man_command(const CommandReference& command) {
  std::string text = fmt::format(".SS {}\n{}\n.PP\n{}\n", roff(command.name),
                                 roff(sentence(command.about)), bold(usage(command)));
  text += man_flags(command, false);
  if (!command.footer.empty()) text += ".PP\n" + roff(command.footer) + "\n";
  return text;
}

// Markdown.

std::string markdown(std::string_view text) {
  std::string out;
  bool code = false;
  for (const char c : text) {
    if (c == '`') code = !code;
    // A bar ends a cell in code, too.
    const bool special = code ? c == '|' : std::string_view("\\|<>*[]").contains(c);
    if (special) out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string code(std::string_view text) {
  return text.empty() ? "" : markdown(fmt::format("`{}`", text));
}

std::string markdown_rows(const std::vector<FlagReference>& flags) {
  std::string text;
  for (const FlagReference& flag : flags) {
    std::string left = fmt::format("{}", fmt::join(flag.names, ", "));
    if (!flag.value.empty()) left += (left.empty() ? "" : " ") + flag.value;
    text += fmt::format("| {} | {} | {} | {} | {} |\n", code(left), markdown(flag.expected),
                        code(flag.default_value), code(flag.variable),
                        markdown(sentence(flag.help) + conditions(flag)));
  }
  return text;
}

std::string markdown_table(std::vector<FlagReference> flags, bool with_help) {
  if (!with_help) std::erase_if(flags, is_help);
  if (flags.empty()) return {};
  return "\n| flag | values | default | variable | |\n| --- | --- | --- | --- | --- |\n" +
         markdown_rows(flags);
}

std::string markdown_command(const CommandReference& command, bool with_help) {
  std::string text = fmt::format("\n## {}\n\n{}\n\n```\n{}\n```\n", command.name,
                                 markdown(sentence(command.about)), usage(command));
  text += markdown_table(command.arguments, true);
  for (const FlagGroup& group : command.groups) {
    if (command.groups.size() > 1) text += fmt::format("\n### {}\n", markdown(group.name));
    text += markdown_table(group.flags, with_help);
  }
  if (!command.footer.empty()) text += "\n" + markdown(command.footer) + "\n";
  return text;
}

}  // namespace

std::string usage(const CommandReference& command) {
  std::string text = command.name;
  if (!command.groups.empty()) text += " [FLAGS]";
  if (!command.commands.empty()) text += " COMMAND";
  for (const FlagReference& argument : command.arguments) {
    const std::string name = argument.value + (argument.repeats ? "..." : "");
    text += argument.required ? " " + name : " [" + name + "]";
  }
  return text;
}

std::string man_page(const CommandReference& program, std::string_view version) {
  const std::string_view about = program.about;
  const std::string_view first_line = about.substr(0, about.find(".\n"));
  std::string description = roff(about);
  for (size_t i = 0; (i = description.find('\n', i)) != std::string::npos; i += 5) {
    description.replace(i, 1, "\n.PP\n");
  }
  std::string text = fmt::format(
      ".\\\" Made by `hotset reference man`.\n"
      ".TH HOTSET 1 \"\" \"hotset {}\" \"User Commands\"\n"
      ".SH NAME\nhotset \\- {}\n"
      ".SH SYNOPSIS\n{}\n"
      ".SH DESCRIPTION\n{}\n"
      ".SH COMMANDS\n",
      version, roff(first_line.starts_with("hotset ") ? first_line.substr(7) : first_line),
      bold(usage(program)), description);
  visit_commands(program, [&](const CommandReference& command) {
    if (&command == &program) return;
    text += fmt::format(".TP\n{}\n{}\n", bold(command.name), roff(sentence(command.about)));
  });
  text += ".SH FLAGS\n" + man_flags(program, true);
  visit_commands(program, [&](const CommandReference& command) {
    if (&command != &program && command.commands.empty()) text += man_command(command);
  });
  text += fmt::format(
      ".SH ENVIRONMENT\n{}\n.TP\n{}\n{}\n"
      ".SH EXIT STATUS\n{}\n"
      ".SH SEE ALSO\n{}\n",
      roff("Most long flags have a variable, which their entry names: --ctx-size is also "
           "HOTSET_CTX_SIZE. A flag on the command line wins over the file of --config, and that "
           "over the environment."),
      bold("HOTSET_CPU_VARIANT"),
      roff("Which of ggml's builds computes on the CPU; `hotset --list-devices` names those that "
           "this machine executes."),
      roff("0: success; 1: an error that was reported on standard error; 2: wrong usage."),
      roff("Documents in share/doc/hotset/docs: server.md about serving, moe-cache.md about the "
           "expert cache, tuning.md about finding what is best, coming-from-llama-cpp.md about "
           "flags of other programs that are understood."));
  return text;
}

std::string markdown_page(const CommandReference& program) {
  std::string text =
      "<!-- Made by scripts/flags_docs from the program itself; a test compares. -->\n"
      "# Commands and flags\n\n"
      "What `hotset reference markdown` prints; `hotset reference man` makes a man page of the "
      "same.\n"
      "A flag on the command line wins over the file of `--config`, and that over the variable.\n"
      "Every command has `--help`.\n";
  visit_commands(program, [&](const CommandReference& command) {
    // What only groups others has no flags of its own but --help.
    if (&command == &program || command.commands.empty())
      text += markdown_command(command, &command == &program);
  });
  return text;
}

}  // namespace hotset::cli
