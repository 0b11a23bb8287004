// A setting of the user's, said once: name, range, words, unit and help in one table beside the
// options that it describes. Flags, variables of the environment, configuration files and fields of
// requests are read through it, so that all of them take the same values and complain in the same
// words: "--top-p: found 2, expected 0 to 1".
//
// An option that is a std::optional is "auto" where it is none: there is no other way to say that
// hotset is to find a value itself. One that is a vector is a list with commas.
// Thread-compatible: plain values. A table that nobody changes may be used by several threads.
#ifndef HOTSET_BASE_SETTING_H_
#define HOTSET_BASE_SETTING_H_

#include <charconv>
#include <concepts>
#include <cstdint>
#include <expected>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset {

struct SettingRange {
  double min = 0;
  double max = 0;
  bool above_min = false;  // `min` itself is outside

  bool contains(double value) const {
    return (above_min ? value > min : value >= min) && value <= max;
  }
};

// All sizes in MiB that a user gives: 64 TiB is more than machines have, and far from overflow.
inline constexpr double kMostMib = 1 << 26;
// From `min` to what the type holds.
constexpr SettingRange from(double min) { return {min, std::numeric_limits<int32_t>::max()}; }

// Why a value is not taken, without the name of the setting and without the value, which are said
// in one way on command lines and in another over HTTP.
struct SettingError {
  std::string expected;     // "0 to 1"
  std::string found = {};   // the part of a list that is wrong; empty: the whole value
  std::string detail = {};  // instead, where there is more to say: "half-life \"0\", ..."

  // "found VALUE, expected 0 to 1"
  std::string what(std::string_view value) const;
  // "NAME: found VALUE, expected 0 to 1"
  std::string message(std::string_view name, std::string_view value) const;
};
template <typename T>
using SettingResult = std::expected<T, SettingError>;

enum class SettingKind {
  kSwitch,    // a bool without words: a flag that takes no value
  kUnsigned,  // a whole number from 0
  kWhole,
  kNumber,
  kWord,
  kText,
};

struct SettingInfo {
  std::string name;          // "top-p": --top-p, HOTSET_TOP_P and "top-p = 0.9" in a configuration
  std::string letters = {};  // of short flags: "t" for -t
  std::string help = {};
  std::string unit = {};                     // "MiB", "seconds"; shown as what stands for the value
  std::string value_name = {};               // the same where it is no unit: "FILE"
  std::optional<SettingRange> range = {};    // none: what the type holds
  std::vector<std::string> words = {};       // of a bool: true's first; in lower case
  std::vector<std::string> auto_words = {};  // of a std::optional: for none; the first one is shown
  std::vector<std::string> fields = {};      // of a request; the last of them that is given counts
  // Of a text: whether it is one that is taken.
  std::function<SettingResult<void>(std::string_view)> check = {};

  // The same with other words about it, where a command uses it for something of its own.
  SettingInfo with_help(std::string text) const {
    SettingInfo info = *this;
    info.help = std::move(text);
    return info;
  }
};

// What a value is read from: a text (flag, variable, configuration), or what JSON has.
using SettingInput = std::variant<std::string_view, double, bool>;

// --- Which values a type has. Each is read without changing anything, and objected to if it is
// out of range.

namespace settings {

template <typename T>
struct is_optional : std::false_type {};
template <typename T>
struct is_optional<std::optional<T>> : std::true_type {};
template <typename T>
struct is_list : std::false_type {};
template <typename T>
struct is_list<std::vector<T>> : std::true_type {};

// The number that a text is, in all its digits; none: it is no number.
template <typename T>
std::optional<T> number_of(std::string_view text) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return std::nullopt;
  }
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_word(std::string_view text, std::string_view word);  // whatever its case
// Which of `words` a text is; none: it is not among them.
std::optional<size_t> word_of(std::span<const std::string> words, std::string_view text);
std::optional<bool> switch_of(std::string_view text);

// What is expected: "auto, or a number from 0 to 1". `says_kind`: "a whole number from 1 to 9".
SettingError expected_number(const SettingInfo& info, SettingKind kind, bool says_kind = false);
SettingError expected_word(const SettingInfo& info);

std::string number_text(double value);

// What stands between commas; of an empty text nothing.
std::vector<std::string_view> parts_of(std::string_view list);

}  // namespace settings

template <typename T>
constexpr SettingKind setting_kind(const SettingInfo& info) {
  if constexpr (settings::is_optional<T>::value || settings::is_list<T>::value) {
    return setting_kind<typename T::value_type>(info);
  } else if constexpr (std::same_as<T, bool>) {
    return info.words.empty() ? SettingKind::kSwitch : SettingKind::kWord;
  } else if constexpr (std::unsigned_integral<T>) {
    return SettingKind::kUnsigned;
  } else if constexpr (std::integral<T>) {
    return SettingKind::kWhole;
  } else if constexpr (std::floating_point<T> || std::same_as<T, Bytes>) {
    return SettingKind::kNumber;
  } else {
    static_assert(std::same_as<T, std::string>);
    return SettingKind::kText;
  }
}

// The value as it is read again.
template <typename T>
std::string setting_text(const SettingInfo& info, const T& value) {
  if constexpr (settings::is_optional<T>::value) {
    if (value) return setting_text(info, *value);
    return info.auto_words.empty() ? std::string() : info.auto_words.front();
  } else if constexpr (settings::is_list<T>::value) {
    std::string text;
    for (const auto& one : value) text += (text.empty() ? "" : ",") + setting_text(info, one);
    return text;
  } else if constexpr (std::same_as<T, bool>) {
    if (info.words.empty()) return value ? "true" : "false";
    return info.words.at(value ? 0 : 1);
  } else if constexpr (std::same_as<T, Bytes>) {
    return settings::number_text(value.mib());
  } else if constexpr (std::same_as<T, std::string>) {
    return value;
  } else {
    return fmt::format("{}", value);
  }
}

// Whether a value is one that is taken.
template <typename T>
SettingResult<void> check_setting_value(const SettingInfo& info, const T& value) {
  if constexpr (settings::is_optional<T>::value) {
    return value ? check_setting_value(info, *value) : SettingResult<void>();
  } else if constexpr (settings::is_list<T>::value) {
    for (const auto& one : value) {
      if (auto checked = check_setting_value(info, one); !checked) {
        checked.error().found = setting_text(info, one);
        return checked;
      }
    }
    return {};
  } else if constexpr (std::same_as<T, std::string>) {
    return info.check ? info.check(value) : SettingResult<void>();
  } else if constexpr (std::same_as<T, Bytes>) {
    if (!info.range || info.range->contains(value.mib())) return {};
    return std::unexpected(settings::expected_number(info, SettingKind::kNumber));
  } else if constexpr (!std::same_as<T, bool>) {
    if (!info.range || info.range->contains(static_cast<double>(value))) return {};
    return std::unexpected(settings::expected_number(info, setting_kind<T>(info)));
  } else {
    return {};
  }
}

// Errors: what was expected.
template <typename T>
SettingResult<T> read_setting(const SettingInfo& info, const SettingInput& input) {
  const auto* text = std::get_if<std::string_view>(&input);
  if constexpr (settings::is_optional<T>::value) {
    if (text != nullptr && settings::word_of(info.auto_words, *text)) return T();
    return read_setting<typename T::value_type>(info, input).transform([](auto&& value) {
      return T(std::forward<decltype(value)>(value));
    });
  } else if constexpr (settings::is_list<T>::value) {
    T list;
    const auto parts = settings::parts_of(text == nullptr ? std::string_view() : *text);
    if (parts.empty()) return std::unexpected(SettingError{.expected = "values with commas"});
    for (const std::string_view part : parts) {
      auto one = read_setting<typename T::value_type>(info, part);
      if (!one) {
        if (parts.size() > 1) one.error().found = part;
        return std::unexpected(std::move(one).error());
      }
      list.push_back(*std::move(one));
    }
    return list;
  } else if constexpr (std::same_as<T, std::string>) {
    if (text == nullptr) return std::unexpected(SettingError{.expected = "a text"});
    std::string value(*text);
    return check_setting_value(info, value).transform([&] { return std::move(value); });
  } else if constexpr (std::same_as<T, bool>) {
    if (const bool* flag = std::get_if<bool>(&input)) return *flag;
    if (!info.words.empty() && text != nullptr) {
      if (const auto i = settings::word_of(info.words, *text)) return *i == 0;
    } else if (text != nullptr) {
      if (const auto is_on = settings::switch_of(*text)) return *is_on;
    }
    return std::unexpected(settings::expected_word(info));
  } else if constexpr (std::same_as<T, Bytes>) {
    return read_setting<double>(info, input).transform([](double mib) {
      return Bytes{static_cast<int64_t>(mib * (1 << 20))};
    });
  } else {
    constexpr SettingKind kKind = std::floating_point<T>      ? SettingKind::kNumber
                                  : std::unsigned_integral<T> ? SettingKind::kUnsigned
                                                              : SettingKind::kWhole;
    // As a JSON number is read; a text of a whole number keeps all its digits.
    using Read = std::conditional_t<std::floating_point<T>, double, T>;
    std::optional<Read> read;
    if (text != nullptr) {
      read = settings::number_of<Read>(*text);
    } else if (const double* number = std::get_if<double>(&input)) {
      if constexpr (std::floating_point<T>) {
        read = *number;
      } else {
        // NaN is neither; what is too large says its range, and what has a fraction its kind.
        constexpr double kLimit = 9007199254740992.0;  // 2^53: below it a double is exact
        if (*number >= -kLimit && *number <= kLimit) {
          const auto whole = static_cast<int64_t>(*number);
          if (static_cast<double>(whole) == *number && std::in_range<T>(whole)) {
            read = static_cast<T>(whole);
          } else if (static_cast<double>(whole) != *number) {
            return std::unexpected(settings::expected_number(info, kKind, true));
          }
        }
        if (!read) return std::unexpected(settings::expected_number(info, kKind));
      }
    }
    if (!read) {
      return std::unexpected(settings::expected_number(info, kKind, text == nullptr));
    }
    // Both: a number may be inside and what a float makes of it outside.
    HOTSET_RETURN_IF_ERROR(check_setting_value(info, *read));
    const auto value = static_cast<T>(*read);
    HOTSET_RETURN_IF_ERROR(check_setting_value(info, value));
    return value;
  }
}

// --- A setting of options, and the same of one object

// How values of a type are read, checked and printed, for code that does not know the type: tables
// of many settings then take no longer to compile than short ones.
// Thread-safe: constant.
class SettingType {
 public:
  virtual ~SettingType() = default;
  virtual SettingKind kind(const SettingInfo& info) const = 0;
  virtual bool is_list() const { return false; }
  // `value` is of the type. Null: only says what reading into one would.
  virtual SettingResult<void> read(const SettingInfo& info, const SettingInput& input,
                                   void* value) const = 0;
  virtual SettingResult<void> check(const SettingInfo& info, const void* value) const = 0;
  virtual std::string text(const SettingInfo& info, const void* value) const = 0;
};

template <typename T>
class ValueType final : public SettingType {
 public:
  static std::shared_ptr<const SettingType> get() {
    static const auto type = std::make_shared<const ValueType>();
    return type;
  }
  SettingKind kind(const SettingInfo& info) const override { return setting_kind<T>(info); }
  bool is_list() const override { return settings::is_list<T>::value; }
  SettingResult<void> read(const SettingInfo& info, const SettingInput& input,
                           void* value) const override {
    auto read = read_setting<T>(info, input);
    if (!read) return std::unexpected(std::move(read).error());
    if (value != nullptr) *static_cast<T*>(value) = *std::move(read);
    return {};
  }
  SettingResult<void> check(const SettingInfo& info, const void* value) const override {
    return check_setting_value(info, *static_cast<const T*>(value));
  }
  std::string text(const SettingInfo& info, const void* value) const override {
    return setting_text(info, *static_cast<const T*>(value));
  }
};

// Words that stand for values, by their place in SettingInfo::words.
template <typename T>
class WordType final : public SettingType {
 public:
  explicit WordType(std::vector<T> meanings) : meanings_(std::move(meanings)) {}
  SettingKind kind(const SettingInfo&) const override { return SettingKind::kWord; }
  SettingResult<void> read(const SettingInfo& info, const SettingInput& input,
                           void* value) const override {
    const auto* text = std::get_if<std::string_view>(&input);
    const auto i = text == nullptr ? std::nullopt : settings::word_of(info.words, *text);
    if (!i) return std::unexpected(settings::expected_word(info));
    if (value != nullptr) *static_cast<T*>(value) = meanings_.at(*i);
    return {};
  }
  SettingResult<void> check(const SettingInfo& info, const void* value) const override {
    if (!text(info, value).empty()) return {};
    return std::unexpected(settings::expected_word(info));
  }
  std::string text(const SettingInfo& info, const void* value) const override {
    for (size_t i = 0; i < meanings_.size(); ++i) {
      if (meanings_[i] == *static_cast<const T*>(value)) return info.words.at(i);
    }
    return {};
  }

 private:
  std::vector<T> meanings_;
};

// A setting and where its value is, whatever its type. Requires: the value outlives it.
struct SettingRef {
  SettingInfo info;
  std::shared_ptr<const SettingType> type;
  void* value = nullptr;

  SettingKind kind() const { return type->kind(info); }  // of a list: of its parts
  bool is_list() const { return type->is_list(); }
  SettingResult<void> set(const SettingInput& input) const {
    return type->read(info, input, value);
  }
  // Only says what set() would.
  SettingResult<void> check(const SettingInput& input) const {
    return type->read(info, input, nullptr);
  }
  // As set() reads it again.
  std::string text() const { return type->text(info, value); }
};

// The setting that `value` is itself. Requires: `value` outlives it.
template <typename T>
SettingRef setting_ref(SettingInfo info, T& value) {
  return {.info = std::move(info), .type = ValueType<T>::get(), .value = &value};
}

template <typename Options>
struct Setting {
  SettingInfo info;
  std::shared_ptr<const SettingType> type;
  std::function<void*(Options&)> member;  // where the value is

  SettingRef of(Options& options) const {
    return {.info = info, .type = type, .value = member(options)};
  }
  bool is_list() const { return type->is_list(); }
  SettingKind kind() const { return type->kind(info); }
  SettingResult<void> set(Options& options, const SettingInput& input) const {
    return type->read(info, input, member(options));
  }
  SettingResult<void> check(const SettingInput& input) const {
    return type->read(info, input, nullptr);
  }
  SettingResult<void> check_value(const Options& options) const {
    return type->check(info, value(options));
  }
  std::string text(const Options& options) const { return type->text(info, value(options)); }

 private:
  // Finding a member changes nothing.
  const void* value(const Options& options) const { return member(const_cast<Options&>(options)); }
};

template <typename Options>
using Settings = std::vector<Setting<Options>>;

// `member(options)` is a reference to the value: [](auto& o) -> auto& { return o.top_p; }.
template <typename Options, typename Member>
Setting<Options> setting(SettingInfo info, Member member) {
  using T = std::remove_cvref_t<std::invoke_result_t<Member, Options&>>;
  return {std::move(info), ValueType<T>::get(),
          [member](Options& options) -> void* { return &member(options); }};
}

// A setting whose words stand for values: of an enum, or of anything else that compares.
template <typename Options, typename T, typename Member>
Setting<Options> word_setting(SettingInfo info, std::vector<std::pair<std::string, T>> choices,
                              Member member) {
  std::vector<T> meanings;
  for (auto& [word, meaning] : choices) {
    info.words.push_back(std::move(word));
    meanings.push_back(std::move(meaning));
  }
  return {std::move(info), std::make_shared<const WordType<T>>(std::move(meanings)),
          [member](Options& options) -> void* { return &member(options); }};
}

// Settings of a part of other options: `part(outer)` is a reference to it.
template <typename Outer, typename Options, typename Part>
Settings<Outer> settings_of_part(const Settings<Options>& inner, Part part) {
  Settings<Outer> result;
  for (const Setting<Options>& one : inner) {
    result.push_back({one.info, one.type,
                      [member = one.member, part](Outer& outer) { return member(part(outer)); }});
  }
  return result;
}

// Requires: there is one of this name.
template <typename Options>
const Setting<Options>& find_setting(const Settings<Options>& table, std::string_view name) {
  for (const Setting<Options>& one : table) {
    if (one.info.name == name) return one;
  }
  check_failed(__FILE__, __LINE__, "the table has a setting of this name");
}

// Sets one by its text. Errors: kInvalidArgument, naming the flag, what was found and expected.
template <typename Options>
Status set_setting(const Settings<Options>& table, std::string_view name, std::string_view text,
                   Options& options) {
  const auto set = find_setting(table, name).set(options, text);
  if (set) return {};
  return std::unexpected(
      Error{ErrorCode::kInvalidArgument, set.error().message(fmt::format("--{}", name), text)});
}

// That every value is one that its setting takes. Errors: kInvalidArgument, naming the first that
// is not, behind `prefix`.
template <typename Options>
Status check_settings(const Settings<Options>& table, const Options& options,
                      std::string_view prefix = "--") {
  for (const Setting<Options>& one : table) {
    const auto checked = one.check_value(options);
    if (checked) continue;
    return std::unexpected(Error{
        ErrorCode::kInvalidArgument,
        checked.error().message(fmt::format("{}{}", prefix, one.info.name), one.text(options))});
  }
  return {};
}

}  // namespace hotset

#endif  // HOTSET_BASE_SETTING_H_
