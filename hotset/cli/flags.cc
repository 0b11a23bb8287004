#include "hotset/cli/flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <limits>

#include "hotset/base/error.h"

namespace hotset::cli {
namespace {

// "-t,--threads"
std::string names_of(const SettingInfo& info) {
  std::string names;
  for (const char letter : info.letters) names += fmt::format("-{},", letter);
  return names + "--" + info.name;
}

std::string value_name(const SettingInfo& info, SettingKind kind) {
  if (!info.value_name.empty()) return info.value_name;
  if (!info.unit.empty()) return info.unit;
  switch (kind) {
    case SettingKind::kUnsigned:
      return "UINT";
    case SettingKind::kWhole:
      return "INT";
    case SettingKind::kNumber:
      return "FLOAT";
    case SettingKind::kSwitch:
    case SettingKind::kWord:
    case SettingKind::kText:
      break;
  }
  return "TEXT";
}

// What the help says of the values; where all are taken that a type has, nothing.
std::string range_text(const SettingInfo& info, SettingKind kind) {
  const bool is_number = kind != SettingKind::kText && kind != SettingKind::kWord;
  if (!is_number || !info.range || !info.auto_words.empty()) return {};
  if (info.range->max >= std::numeric_limits<int32_t>::max()) return {};
  return settings::expected_number(info, kind).expected;
}

void check_values(CLI::Option& option, const SettingRef& setting) {
  const SettingInfo& info = setting.info;
  if (setting.kind() == SettingKind::kText && !info.check && !setting.is_list()) return;
  option.check(CLI::Validator(
      [setting](const std::string& text) {
        const auto checked = setting.check(text);
        return checked ? std::string() : checked.error().what(text);
      },
      range_text(info, setting.kind())));
}

void describe(CLI::Option& option, const SettingRef& setting) {
  option.type_name(value_name(setting.info, setting.kind()));
  if (const std::string text = setting.text(); !text.empty()) option.default_str(text);
  check_values(option, setting);
}

// For callbacks: every value has passed check_values().
void set_checked(const SettingRef& setting, std::string_view text) {
  if (const auto set = setting.set(text); !set) {
    throw CLI::ValidationError("--" + setting.info.name, set.error().what(text));
  }
}

CLI::Option* add_option(CLI::App& app, const std::string& names, const SettingRef& setting) {
  CLI::Option* option = nullptr;
  if (setting.is_list()) {
    option = app.add_option_function<std::vector<std::string>>(
        names,
        [setting](const std::vector<std::string>& given) {
          set_checked(setting, CLI::detail::join(given, ","));
        },
        setting.info.help);
    // One argument, so that what follows is not taken for one more.
    option->allow_extra_args(false);
  } else {
    option = app.add_option_function<std::string>(
        names, [setting](const std::string& text) { set_checked(setting, text); },
        setting.info.help);
  }
  describe(*option, setting);
  return option;
}

}  // namespace

Flag& Flag::required(bool is_required) {
  option_->required(is_required);
  return *this;
}

Flag& Flag::excludes(const Flag& other) {
  option_->excludes(other.option_);
  return *this;
}

Flag& Flag::help(const std::string& text) {
  option_->description(text);
  return *this;
}

Flag& Flag::takes(int n_values) {
  option_->expected(n_values);
  return *this;
}

Command Command::add_command(const std::string& name, const std::string& about) {
  return {*app_->add_subcommand(name, about), *exit_status_};
}

void Command::needs_command() { app_->require_subcommand(1); }

Flag Command::add(const SettingRef& setting) {
  const std::string names = names_of(setting.info);
  if (setting.kind() == SettingKind::kSwitch) {
    return Flag(app_->add_flag_function(
        names, [setting](int64_t n) { HOTSET_CHECK(setting.set(SettingInput(n > 0)).has_value()); },
        setting.info.help));
  }
  return Flag(add_option(*app_, names, setting));
}

Flag Command::add_repeated(const SettingInfo& info, std::vector<std::string>& values) {
  CLI::Option* option =
      app_->add_option(names_of(info), values, info.help)->allow_extra_args(false);
  option->type_name(value_name(info, SettingKind::kText));
  return Flag(option);
}

Flag Command::add_switch(const std::string& name, const std::string& help,
                         std::function<void()> turn) {
  return Flag(app_->add_flag_callback("--" + name, std::move(turn), help));
}

void Command::add_action(const std::string& name, const std::string& help,
                         std::function<int()> run) {
  const auto act = [run = std::move(run)] {
    if (const int status = run(); status != 0) throw CLI::RuntimeError(status);
    throw CLI::Success();
  };
  app_->add_flag_callback("--" + name, act, help)->trigger_on_parse();
}

void Command::add_for_help(const SettingInfo& info) {
  // Of its overloads the one without a variable takes a constant text.
  app_->add_option(names_of(info), std::as_const(info.help))
      ->type_name(value_name(info, SettingKind::kText));
}

Flag Command::add_argument(const std::string& name, const std::string& help, std::string& value) {
  return Flag(app_->add_option(name, value, help));
}

Flag Command::add_argument(const std::string& name, const std::string& help,
                           std::vector<std::string>& values) {
  return Flag(app_->add_option(name, values, help));
}

Flag Command::add_argument(const std::string& name, const SettingRef& setting) {
  return Flag(add_option(*app_, name + "," + names_of(setting.info), setting));
}

Flag Command::flag(const std::string& name) {
  CLI::Option* option = app_->get_option_no_throw("--" + name);
  HOTSET_CHECK(option != nullptr);
  return Flag(option);
}

void Command::footer(const std::string& text) { app_->footer(text); }

void Command::require(std::function<std::string()> missing) {
  required_->push_back(std::move(missing));
}

void Command::on_run(std::function<int()> run) {
  app_->callback([required = required_, status = exit_status_, run = std::move(run)] {
    for (const auto& missing : *required) {
      if (const std::string what = missing(); !what.empty()) throw CLI::RequiredError(what);
    }
    *status = run();
  });
}

}  // namespace hotset::cli
