#include "hotset/base/setting.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "hotset/base/printable.h"

namespace hotset {

std::string SettingError::what(std::string_view value) const {
  if (!detail.empty()) return detail;
  const std::string_view wrong = found.empty() ? value : found;
  const std::string shown = wrong.empty() ? std::string("nothing") : printable(wrong);
  return fmt::format("found {}, expected {}", shown, expected);
}

std::string SettingError::message(std::string_view name, std::string_view value) const {
  return fmt::format("{}: {}", name, what(value));
}

namespace settings {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string range_text(const SettingRange& range) {
  return range.above_min ? fmt::format("more than {}, at most {}", number_text(range.min),
                                       number_text(range.max))
                         : fmt::format("{} to {}", number_text(range.min), number_text(range.max));
}

}  // namespace

bool is_word(std::string_view text, std::string_view word) {
  return std::ranges::equal(text, word, {}, lower, lower);
}

std::optional<size_t> word_of(std::span<const std::string> words, std::string_view text) {
  for (size_t i = 0; i < words.size(); ++i) {
    if (is_word(text, words[i])) return i;
  }
  return std::nullopt;
}

std::optional<bool> switch_of(std::string_view text) {
  for (const std::string_view word : {"true", "on", "yes", "1"}) {
    if (is_word(text, word)) return true;
  }
  for (const std::string_view word : {"false", "off", "no", "0"}) {
    if (is_word(text, word)) return false;
  }
  return std::nullopt;
}

std::string number_text(double value) {
  // Not 1e+06, which nobody would write.
  return value == std::floor(value) && std::abs(value) < 1e15 ? fmt::format("{:.0f}", value)
                                                              : fmt::format("{}", value);
}

std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    parts.push_back(list.substr(0, comma));
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 1);
    if (list.empty()) parts.push_back(list);
  }
  return parts;
}

SettingError expected_number(const SettingInfo& info, SettingKind kind, bool says_kind) {
  const std::string_view noun = kind == SettingKind::kNumber ? "a number" : "a whole number";
  const bool has_word = !info.auto_words.empty();
  std::string text = has_word ? info.auto_words.front() + ", or " : "";
  if (!info.range) {
    text += noun;
    if (kind == SettingKind::kUnsigned) text += " from 0";
  } else if (info.range->above_min) {
    if (says_kind || has_word) text += fmt::format("{}, ", noun);
    text += range_text(*info.range);
  } else {
    if (says_kind) {
      text += fmt::format("{} from ", noun);
    } else if (has_word) {
      text += "a number from ";
    }
    text += range_text(*info.range);
  }
  return {.expected = std::move(text)};
}

SettingError expected_word(const SettingInfo& info) {
  std::vector<std::string> words = info.words;
  if (words.empty()) return {.expected = "true or false"};
  words.insert(words.end(), info.auto_words.begin(), info.auto_words.end());
  return {.expected = fmt::format("one of: {}", fmt::join(words, ", "))};
}

}  // namespace settings
}  // namespace hotset
