// Every command and flag as plain data, and what is made of it for people to read: a man page, a
// page of Markdown. Completions for shells are made of the same data (completions.h).
// Thread-safe: pure functions.
#ifndef HOTSET_CLI_COMMAND_REFERENCE_H_
#define HOTSET_CLI_COMMAND_REFERENCE_H_

#include <string>
#include <string_view>
#include <vector>

namespace hotset::cli {

// What can stand for a value, as far as a shell can complete it.
enum class ValueKind {
  kNone,  // a flag that takes no value
  kText,
  kWord,  // one of FlagReference::words
  kFile,
  kFolder,
};

struct FlagReference {
  std::vector<std::string> names;  // with dashes; none: an argument without a flag
  std::string value;               // the name of its value: "FILE"; empty: takes none
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> words;
  std::string expected;       // which values it takes, as its error says: "0 to 512"; empty: any
  std::string default_value;  // empty: none
  std::string variable;       // of the environment; empty: none
  std::string help;
  std::vector<std::string> excludes;  // flags that it cannot stand beside
  bool required = false;
  bool repeats = false;  // may be given again
};

struct FlagGroup {
  std::string name;
  std::vector<FlagReference> flags = {};
};

struct CommandReference {
  std::string name;  // as users write it: "hotset model random"
  std::string about;
  std::string footer;
  std::vector<FlagReference> arguments = {};  // those without a flag
  std::vector<FlagGroup> groups = {};
  std::vector<CommandReference> commands = {};
};

// "hotset info [FLAGS] [FILE]"
std::string usage(const CommandReference& command);

// A page for man(1), section 1, in roff.
std::string man_page(const CommandReference& program, std::string_view version);

// The same as Markdown (GFM), a table per command.
std::string markdown_page(const CommandReference& program);

// Calls visit(command) for `command` and for all below it, each before its own.
template <typename Visitor>
void visit_commands(const CommandReference& command, const Visitor& visit) {
  visit(command);
  for (const CommandReference& one : command.commands) visit_commands(one, visit);
}

}  // namespace hotset::cli

#endif  // HOTSET_CLI_COMMAND_REFERENCE_H_
