#include "hotset/cli/completions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

namespace hotset::cli {
namespace {

// The last word of a command's name: "random" of "hotset model random".
std::string_view last_word(std::string_view name) { return name.substr(name.rfind(' ') + 1); }

std::vector<FlagReference> all_flags(const CommandReference& command) {
  std::vector<FlagReference> flags;
  for (const FlagGroup& group : command.groups) {
    flags.insert(flags.end(), group.flags.begin(), group.flags.end());
  }
  return flags;
}

// The names of all commands but the program's own, as patterns of `case` in any shell.
std::vector<std::string> command_patterns(const CommandReference& program) {
  std::vector<std::string> patterns;
  visit_commands(program, [&](const CommandReference& command) {
    if (&command != &program) patterns.push_back(fmt::format("'{}'", command.name));
  });
  return patterns;
}

// Text between single quotes, where bash and zsh know no escape.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '`') continue;
    out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return out + "'";
}

// The first clause of a help text: a menu has a line for each.
std::string brief(const std::string& help) {
  const size_t end = help.find("; ");
  const std::string clause = help.substr(0, end);
  // Not within brackets.
  return std::ranges::count(clause, '(') == std::ranges::count(clause, ')') ? clause : help;
}

// bash.

// What completes `flag`'s value, as lines of a case.
std::string bash_value(const FlagReference& flag) {
  switch (flag.kind) {
    case ValueKind::kNone:
    case ValueKind::kText:
      break;
    case ValueKind::kWord:
      return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", fmt::join(flag.words, " "));
    case ValueKind::kFile:
      return "_hotset_files";
    case ValueKind::kFolder:
      return "_hotset_folders";
  }
  return ":";
}

std::string bash_values(const CommandReference& command) {
  std::string text;
  for (const FlagReference& flag : all_flags(command)) {
    if (flag.kind == ValueKind::kNone) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : flag.names) {
      patterns.push_back(fmt::format("'{} {}'", command.name, name));
    }
    text += fmt::format("    {}) {}; return ;;\n", fmt::join(patterns, " | "), bash_value(flag));
  }
  return text;
}

// What stands where no flag and no flag's value does.
std::string bash_operands(const CommandReference& command) {
  if (!command.commands.empty()) {
    std::vector<std::string_view> words;
    for (const CommandReference& one : command.commands) words.push_back(last_word(one.name));
    return fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\"))", fmt::join(words, " "));
  }
  return command.arguments.empty() ? ":" : bash_value(command.arguments.front());
}

// zsh.

// `text` in a specification of _arguments or _describe, where brackets and colons have a meaning.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("[]:\\").contains(c)) out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_action(const FlagReference& flag) {
  const std::string value = zsh_text(flag.value);
  switch (flag.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kText:
      return fmt::format(":{}: ", value);
    case ValueKind::kWord:
      return fmt::format(":{}:({})", value, fmt::join(flag.words, " "));
    case ValueKind::kFile:
      return fmt::format(":{}:_files", value);
    case ValueKind::kFolder:
      return fmt::format(":{}:_files -/", value);
  }
  return "";
}

std::string zsh_flag(const FlagReference& flag) {
  std::string text;
  for (const std::string& name : flag.names) {
    const bool is_long = name.starts_with("--");
    const std::string takes = flag.kind == ValueKind::kNone ? "" : is_long ? "=" : "+";
    const std::string others = flag.repeats ? "*" : fmt::format("({})", fmt::join(flag.names, " "));
    text += fmt::format(" \\\n    {}",
                        shell_quoted(fmt::format("{}{}{}[{}]{}", others, name, takes,
                                                 zsh_text(brief(flag.help)), zsh_action(flag))));
  }
  return text;
}

std::string zsh_function_name(const CommandReference& command) {
  std::string name = "_" + command.name;
  for (char& c : name) c = c == ' ' || c == '-' ? '_' : c;
  return name;
}

std::string zsh_function(const CommandReference& command) {
  std::string text = zsh_function_name(command) + "() {\n";
  const bool has_commands = !command.commands.empty();
  if (has_commands) text += "  local curcontext=$curcontext state line\n  typeset -A opt_args\n";
  text += has_commands ? "  _arguments -C" : "  _arguments";
  for (const FlagReference& flag : all_flags(command)) text += zsh_flag(flag);
  for (const FlagReference& argument : command.arguments) {
    text += fmt::format(" \\\n    {}",
                        shell_quoted((argument.repeats ? "*" : "") + zsh_action(argument)));
  }
  if (!has_commands) return text + "\n}\n";
  text += " \\\n    '1:command:->command' '*::argument:->argument'\n  case $state in\n";
  text += "    command)\n      local -a commands=(";
  for (const CommandReference& one : command.commands) {
    text += "\n        " +
            shell_quoted(fmt::format("{}:{}", last_word(one.name), zsh_text(brief(one.about))));
  }
  text += ")\n      _describe command commands ;;\n    argument)\n      case $words[1] in\n";
  for (const CommandReference& one : command.commands) {
    text += fmt::format("        {}) {} ;;\n", last_word(one.name), zsh_function_name(one));
  }
  return text + "      esac ;;\n  esac\n}\n";
}

// fish.

std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '`') continue;
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string fish_value(const FlagReference& flag) {
  switch (flag.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kText:
      return " -x";
    case ValueKind::kWord:
      return fmt::format(" -x -a '{}'", fmt::join(flag.words, " "));
    case ValueKind::kFile:
      return " -r -F";
    case ValueKind::kFolder:
      return " -x -a '(__fish_complete_directories)'";
  }
  return "";
}

std::string fish_command(const CommandReference& command) {
  const std::string begin = fmt::format("complete -c hotset -n '__hotset_at {}'", command.name);
  std::string text;
  for (const CommandReference& one : command.commands) {
    text +=
        fmt::format("{} -a {} -d {}\n", begin, last_word(one.name), fish_quoted(brief(one.about)));
  }
  for (const FlagReference& argument : command.arguments) {
    if (argument.kind == ValueKind::kWord) {
      text += fmt::format("{} -a '{}'\n", begin, fmt::join(argument.words, " "));
    } else if (argument.kind != ValueKind::kText) {
      text += begin + " -F\n";
    }
  }
  for (const FlagReference& flag : all_flags(command)) {
    text += begin;
    for (const std::string& name : flag.names) {
      const bool is_long = name.starts_with("--");
      text += fmt::format(" {} {}", is_long ? "-l" : "-s", name.substr(is_long ? 2 : 1));
    }
    text += fmt::format("{} -d {}\n", fish_value(flag), fish_quoted(brief(flag.help)));
  }
  return text;
}

}  // namespace

std::string bash_completion(const CommandReference& program) {
  std::string values;
  std::string operands;
  std::string flags;
  visit_commands(program, [&](const CommandReference& command) {
    values += bash_values(command);
    std::vector<std::string> names;
    for (const FlagReference& flag : all_flags(command)) {
      names.insert(names.end(), flag.names.begin(), flag.names.end());
    }
    flags += fmt::format("      '{}') flags='{}' ;;\n", command.name, fmt::join(names, " "));
    operands += fmt::format("    '{}') {} ;;\n", command.name, bash_operands(command));
  });
  // Readline completes names of files better than words of COMPREPLY can: it quotes them. compopt
  // works only while something is completed.
  return fmt::format(R"(# Completion of hotset for bash. Made by: hotset completion bash
_hotset_files() {{ compopt -o default 2>/dev/null; }}
_hotset_folders() {{ compopt -o dirnames 2>/dev/null; }}

_hotset() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}} command=hotset flags= i
  COMPREPLY=()
  # --flag=value comes as three words.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$command ${{COMP_WORDS[i]}}" in
      {}) command+=" ${{COMP_WORDS[i]}}" ;;
      *) break ;;
    esac
  done
  case "$command $prev" in
{}  esac
  if [[ $cur == -* ]]; then
    case "$command" in
{}    esac
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
    return
  fi
  case "$command" in
{}  esac
}}
complete -F _hotset hotset
)",
                     fmt::join(command_patterns(program), " | "), values, flags, operands);
}

std::string zsh_completion(const CommandReference& program) {
  std::string text =
      "#compdef hotset\n# Completion of hotset for zsh. Made by: hotset completion zsh\n";
  visit_commands(program, [&](const CommandReference& command) { text += zsh_function(command); });
  // Autoloaded, the file is the function's body the first time; sourced, it only defines.
  return text +
         "if [[ $funcstack[1] == _hotset ]]; then\n  _hotset \"$@\"\nelse\n"
         "  compdef _hotset hotset\nfi\n";
}

std::string fish_completion(const CommandReference& program) {
  std::string text = fmt::format(R"(# Completion of hotset for fish. Made by: hotset completion fish
function __hotset_at
    set -l command hotset
    for word in (commandline -opc)[2..]
        switch "$command $word"
            case {}
                set command "$command $word"
            case '*'
                break
        end
    end
    test "$command" = "$argv"
end
complete -c hotset -f
)",
                                 fmt::join(command_patterns(program), " "));
  visit_commands(program, [&](const CommandReference& command) { text += fish_command(command); });
  return text;
}

}  // namespace hotset::cli
