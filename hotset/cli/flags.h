// How commands declare their flags: by tables of settings (base/setting.h), or one by one. What
// parses them is known to flags.cc and command_line.cc alone, because its headers take longer to
// compile than most commands.
//
// A Command is a handle: copies are the same command. What is declared is kept by reference, so the
// options must live until the command line was run; those of a command live in its on_run().
// Thread-compatible.
#ifndef HOTSET_CLI_FLAGS_H_
#define HOTSET_CLI_FLAGS_H_

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/base/setting.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hotset::cli {

// One flag or argument of a command.
class Flag {
 public:
  Flag& required(bool is_required = true);
  // Both together are wrong usage. Neither has a variable of the environment then.
  Flag& excludes(const Flag& other);
  Flag& help(const std::string& text);
  Flag& takes(int n_values);

 private:
  friend class Command;
  explicit Flag(CLI::Option* option) : option_(option) {}

  CLI::Option* option_;
};

class Command {
 public:
  // `exit_status` is what the command that runs leaves. Requires: both outlive this.
  Command(CLI::App& app, int& exit_status) : app_(&app), exit_status_(&exit_status) {}

  Command add_command(const std::string& name, const std::string& about);
  // Nothing can be run but commands below this one.
  void needs_command();

  // --- Flags with a value, and switches

  Flag add(const SettingRef& setting);
  template <typename T>
  Flag add(SettingInfo info, T& value) {
    return add(setting_ref(std::move(info), value));
  }
  // All of a table but those of the names in `without`.
  template <typename Options>
  void add(const Settings<Options>& table, Options& options,
           std::initializer_list<std::string_view> without = {}) {
    for (const Setting<Options>& one : table) {
      if (!std::ranges::contains(without, one.info.name)) add(one.of(options));
    }
  }
  // A flag that may be given again. Its variable has one value.
  Flag add_repeated(const SettingInfo& info, std::vector<std::string>& values);
  // Switches that exclude each other: the one that is given is the value.
  template <typename T>
  struct Choice {
    std::string name;
    T value;
    std::string help;
  };
  template <typename T>
  void add_choices(T& value, std::initializer_list<Choice<T>> choices) {
    std::vector<Flag> flags;
    for (const Choice<T>& choice : choices) {
      Flag flag =
          add_switch(choice.name, choice.help, [&value, chosen = choice.value] { value = chosen; });
      for (Flag& other : flags) flag.excludes(other);
      flags.push_back(flag);
    }
  }
  // Calls `turn` if the switch is given.
  Flag add_switch(const std::string& name, const std::string& help, std::function<void()> turn);
  // Runs as soon as it is seen, whatever else is on the command line, and ends the program with the
  // status that it gives.
  void add_action(const std::string& name, const std::string& help, std::function<int()> run);
  // A flag that is taken out of the arguments before they are parsed; here for the help.
  void add_for_help(const SettingInfo& info);

  // --- Arguments without a flag. `name` stands for them: "TRACE".

  Flag add_argument(const std::string& name, const std::string& help, std::string& value);
  Flag add_argument(const std::string& name, const std::string& help,
                    std::vector<std::string>& values);
  // One that may also be given by its flag.
  Flag add_argument(const std::string& name, const SettingRef& setting);

  // ---

  // The flag of this long name, without dashes. Requires: it was added.
  Flag flag(const std::string& name);
  // Text below the help.
  void footer(const std::string& text);
  // What is missing on a command line that is otherwise right, as "one of -p TEXT and -f FILE";
  // empty: nothing. Asked before the command runs.
  void require(std::function<std::string()> missing);
  // Runs the command; gives its exit status.
  void on_run(std::function<int()> run);

  // For what describes commands.
  CLI::App& app() const { return *app_; }

 private:
  CLI::App* app_;
  int* exit_status_;
  std::shared_ptr<std::vector<std::function<std::string()>>> required_ =
      std::make_shared<std::vector<std::function<std::string()>>>();
};

}  // namespace hotset::cli

#endif  // HOTSET_CLI_FLAGS_H_
