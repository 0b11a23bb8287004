#include "hotset/cli/foreign_flags.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>

#include "hotset/base/nearest.h"

namespace hotset::cli {
namespace {

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// Calls `use` with each word; stops when it says true.
template <typename Use>
bool any_word(std::string_view words, char separator, const Use& use) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(separator), words.size());
    if (use(words.substr(0, end))) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

bool has_name(const ForeignFlag& row, std::string_view name) {
  return any_word(row.names, ' ', [&](std::string_view one) {
    if (one.ends_with('*')) return name.starts_with(one.substr(0, one.size() - 1));
    return one == name;
  });
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

bool names_value(std::string_view values, std::string_view value) {
  return any_word(values, '|', [&](std::string_view one) { return one == lower(value); });
}

bool is_about(const ForeignFlag& row, const std::optional<std::string>& value) {
  if (row.applies != nullptr) return value && row.applies(*value);
  if (row.values.empty()) return true;
  if (!value) return names_value(row.values, "()");
  if (row.values.starts_with('~')) return value->contains(row.values.substr(1));
  if (row.values.starts_with('<')) {
    int64_t bound = 0;
    int64_t number = 0;
    const std::string_view text = row.values.substr(1);
    std::from_chars(text.data(), text.data() + text.size(), bound);
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, number);
    return error == std::errc() && stop == end && number > 0 && number < bound;
  }
  return names_value(row.values, *value);
}

std::vector<const ForeignFlag*> rows_of(std::string_view name) {
  std::vector<const ForeignFlag*> rows;
  for (const ForeignFlagSection& section : foreign_flags()) {
    for (const ForeignFlag& row : section.rows) {
      if (has_name(row, name)) rows.push_back(&row);
    }
  }
  return rows;
}

const std::string& canonical(const OwnFlag& flag) {
  const auto is_long = [](const std::string& name) { return name.starts_with("--"); };
  const auto it = std::ranges::find_if(flag.names, is_long);
  return it != flag.names.end() ? *it : flag.names.front();
}

std::string set_value(const ForeignFlag& row, const std::optional<std::string>& given) {
  std::string value(row.value);
  if (const size_t at = value.find('$'); at != std::string::npos) {
    value.replace(at, 1, given.value_or(""));
  }
  return value;
}

// An argument that is a flag, taken apart.
struct Spelling {
  std::string name;
  std::optional<std::string> value;  // what sticks to it
  bool has_equals = false;
};

// None: the argument is no flag: a value, a number, "-" for standard input.
std::optional<Spelling> spelling_of(const std::string& argument) {
  const bool is_long = argument.starts_with("--");
  if (argument.size() < (is_long ? 3U : 2U) || argument[0] != '-') return std::nullopt;
  if (!is_letter(argument[is_long ? 2 : 1])) return std::nullopt;
  Spelling result;
  const bool is_one_letter = !is_long && (argument.size() == 2 || !is_letter(argument[2]));
  const size_t end = is_one_letter ? std::min<size_t>(2, argument.size())
                                   : std::min(argument.find('='), argument.size());
  result.name = argument.substr(0, end);
  if (is_long) std::ranges::replace(result.name, '_', '-');
  result.has_equals = end < argument.size() && argument[end] == '=';
  if (end < argument.size()) result.value = argument.substr(result.has_equals ? end + 1 : end);
  return result;
}

class Translator {
 public:
  Translator(const CommandFlags& own, std::span<const CommandFlags> all,
             std::span<const std::string> arguments)
      : own_(own), all_(all), arguments_(arguments) {}

  Result<Translation> translate();

 private:
  Status take(const std::string& argument, const Spelling& spelling);
  void take_own(const std::string& argument, const Spelling& spelling, const OwnFlag& flag,
                int n_more);
  Status take_foreign(const Spelling& spelling, const std::optional<std::string>& value,
                      const OwnFlag* flag, std::span<const ForeignFlag* const> rows);
  Status apply(const Spelling& spelling, const std::optional<std::string>& value,
               const ForeignFlag& row);
  bool is_value_of(std::span<const ForeignFlag* const> rows, const std::string& next) const;
  void add_sets();
  std::unexpected<Error> unknown(const Spelling& spelling) const;
  std::unexpected<Error> missing(const Spelling& spelling,
                                 std::span<const ForeignFlag* const> rows) const;
  std::string commands_with(std::string_view name) const;

  struct Set {
    std::string spelled;
    std::string value;
    std::string note;
  };

  const CommandFlags& own_;
  std::span<const CommandFlags> all_;
  std::span<const std::string> arguments_;
  size_t next_ = 0;
  Translation result_;
  std::set<std::string> given_;      // own flags, canonical
  std::map<std::string, Set> sets_;  // by own flag, canonical
};

Result<Translation> Translator::translate() {
  while (next_ < arguments_.size() && arguments_[next_] != "--") {
    const std::string& argument = arguments_[next_++];
    if (const auto spelling = spelling_of(argument)) {
      HOTSET_RETURN_IF_ERROR(take(argument, *spelling));
    } else {
      result_.arguments.push_back(argument);
    }
  }
  add_sets();
  const auto rest = arguments_.subspan(next_);
  result_.arguments.insert(result_.arguments.end(), rest.begin(), rest.end());
  return std::move(result_);
}

Status Translator::take(const std::string& argument, const Spelling& spelling) {
  const OwnFlag* flag = own_.find(spelling.name);
  std::vector<const ForeignFlag*> rows;
  if (own_.knows_foreign_flags()) rows = rows_of(spelling.name);
  if (flag == nullptr && rows.empty()) return unknown(spelling);
  if (rows.empty()) {
    take_own(argument, spelling, *flag, spelling.value ? 0 : flag->n_values);
    return {};
  }
  std::optional<std::string> value = spelling.value;
  const bool has_next = next_ < arguments_.size();
  switch (rows.front()->takes) {
    case Takes::kNothing:
      break;
    case Takes::kValue:
      if (value) break;
      if (!has_next && flag == nullptr) {
        return make_error(ErrorCode::kInvalidArgument, "{}: found no value behind it",
                          spelling.name);
      }
      if (has_next) value = arguments_[next_++];
      break;
    case Takes::kMaybe:
      if (!value && has_next && is_value_of(rows, arguments_[next_])) value = arguments_[next_++];
      break;
  }
  return take_foreign(spelling, value, flag, rows);
}

bool Translator::is_value_of(std::span<const ForeignFlag* const> rows,
                             const std::string& next) const {
  for (const ForeignFlag* row : rows) {
    if (names_value(row->values, next)) return true;
  }
  return !next.starts_with('-') && !own_.takes_positionals;
}

void Translator::take_own(const std::string& argument, const Spelling& spelling,
                          const OwnFlag& flag, int n_more) {
  given_.insert(canonical(flag));
  const bool is_long = spelling.name.starts_with("--");
  if (spelling.has_equals && !is_long) {  // the parser would take "=8" for the value of -t=8
    result_.arguments.push_back(spelling.name);
    result_.arguments.push_back(*spelling.value);
  } else if (spelling.value && is_long) {
    result_.arguments.push_back(spelling.name + "=" + *spelling.value);
  } else {
    result_.arguments.push_back(is_long ? spelling.name : argument);
  }
  for (; n_more > 0 && next_ < arguments_.size(); --n_more) {
    result_.arguments.push_back(arguments_[next_++]);
  }
}

Status Translator::take_foreign(const Spelling& spelling, const std::optional<std::string>& value,
                                const OwnFlag* flag, std::span<const ForeignFlag* const> rows) {
  for (const ForeignFlag* row : rows) {
    if (!row->command.empty() && row->command != own_.command) continue;
    if (!row->missing.empty() && own_.find(row->missing) != nullptr) continue;
    // What hotset spells the same way is its own, but for values that only others know.
    if (flag != nullptr && row->values.empty()) continue;
    const bool has_target = row->flag.empty() || own_.find(row->flag) != nullptr;
    if (has_target && is_about(*row, value)) return apply(spelling, value, *row);
  }
  if (flag == nullptr) return missing(spelling, rows);
  given_.insert(canonical(*flag));
  result_.arguments.push_back(spelling.name);
  if (value) result_.arguments.push_back(*value);
  return {};
}

Status Translator::apply(const Spelling& spelling, const std::optional<std::string>& value,
                         const ForeignFlag& row) {
  // The value only where it matters: it may be a secret or a page long.
  std::string spelled = spelling.name;
  if (!row.values.empty() && value && value->size() < 60) spelled += " " + *value;
  switch (row.does) {
    case Does::kSame: {
      const std::string& name = canonical(*own_.find(row.flag));
      given_.insert(name);
      result_.arguments.push_back(name);
      result_.arguments.push_back(value.value_or(""));
      break;
    }
    case Does::kSet:
      sets_[canonical(*own_.find(row.flag))] = {
          .spelled = spelled, .value = set_value(row, value), .note = std::string(row.note)};
      break;
    case Does::kIgnored:
      result_.notes.push_back(fmt::format("{} is ignored: {}", spelled, row.note));
      break;
    case Does::kRefused:
      return make_error(ErrorCode::kInvalidArgument, "{}: {}", spelled, row.note);
  }
  return {};
}

void Translator::add_sets() {
  for (const auto& [name, set] : sets_) {
    if (given_.contains(name)) {
      result_.notes.push_back(fmt::format("{} is ignored: {} is given", set.spelled, name));
      continue;
    }
    result_.arguments.push_back(set.value.empty() ? name : name + "=" + set.value);
    if (set.note.empty()) continue;
    result_.notes.push_back(fmt::format("{} is read as {}{}{}: {}", set.spelled, name,
                                        set.value.empty() ? "" : " ", set.value, set.note));
  }
}

std::string Translator::commands_with(std::string_view name) const {
  std::string names;
  for (const CommandFlags& command : all_) {
    if (command.find(name) == nullptr) continue;
    names += (names.empty() ? "hotset " : ", ") + command.command;
  }
  return names;
}

std::unexpected<Error> Translator::unknown(const Spelling& spelling) const {
  std::vector<std::string> known;
  for (const OwnFlag& flag : own_.flags) {
    known.insert(known.end(), flag.names.begin(), flag.names.end());
  }
  std::string advice = did_you_mean(spelling.name, known);
  if (advice.empty() && own_.knows_foreign_flags()) {
    std::vector<std::string> foreign;
    for (const ForeignFlagSection& section : foreign_flags()) {
      for (const ForeignFlag& row : section.rows) {
        any_word(row.names, ' ', [&](std::string_view one) {
          if (!one.ends_with('*')) foreign.emplace_back(one);
          return false;
        });
      }
    }
    advice = did_you_mean(spelling.name, foreign);
  }
  const OwnFlag* one_letter =
      spelling.name.starts_with("--") ? nullptr : own_.find(spelling.name.substr(0, 2));
  if (const std::string others = commands_with(spelling.name); !others.empty()) {
    advice = fmt::format("; it is a flag of {}", others);
  } else if (advice.empty() && one_letter != nullptr && one_letter->n_values > 0) {
    advice = fmt::format("; a value stands apart: {} {}", spelling.name.substr(0, 2),
                         spelling.name.substr(2));
  }
  return make_error(ErrorCode::kInvalidArgument, "found '{}', which nothing takes{}", spelling.name,
                    advice);
}

std::unexpected<Error> Translator::missing(const Spelling& spelling,
                                           std::span<const ForeignFlag* const> rows) const {
  std::string_view target;
  for (const ForeignFlag* row : rows) {
    if (target.empty()) target = row->flag;
  }
  if (target.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: hotset {} has nothing like it",
                      spelling.name, own_.command);
  }
  const std::string others = commands_with(target);
  return make_error(ErrorCode::kInvalidArgument, "{}: hotset {} has no {}{}", spelling.name,
                    own_.command, target,
                    others.empty() ? "" : fmt::format(", which is a flag of {}", others));
}

}  // namespace

const OwnFlag* CommandFlags::find(std::string_view name) const {
  const auto it = std::ranges::find_if(
      flags, [&](const OwnFlag& flag) { return std::ranges::contains(flag.names, name); });
  return it == flags.end() ? nullptr : &*it;
}

Result<Translation> translate_arguments(const CommandFlags& own, std::span<const CommandFlags> all,
                                        std::span<const std::string> arguments) {
  auto translated = Translator(own, all, arguments).translate();
  // Who asks for help gets it, whatever else is wrong.
  const auto asks = [](const std::string& a) { return a == "--help" || a == "-h"; };
  if (!translated && std::ranges::any_of(arguments, asks)) {
    return Translation{.arguments = {"--help"}, .notes = {}};
  }
  return translated;
}

std::string about_foreign_flag(std::string_view name) {
  std::string with_dashes(name);
  std::ranges::replace(with_dashes, '_', '-');
  if (!with_dashes.starts_with('-')) with_dashes = "--" + with_dashes;
  for (const ForeignFlag* row : rows_of(with_dashes)) {
    if (!row->values.empty()) continue;
    if (row->does == Does::kIgnored || row->does == Does::kRefused) return std::string(row->note);
    return fmt::format("hotset has {}{}{}", row->flag, row->value.empty() ? "" : " ", row->value);
  }
  return {};
}

}  // namespace hotset::cli
