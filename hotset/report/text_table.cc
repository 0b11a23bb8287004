#include "hotset/report/text_table.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace hotset::report {
namespace {

// Characters of UTF-8 text, which is what aligns.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

}  // namespace

std::string TextTable::text() const {
  std::vector<size_t> widths;
  for (const std::string& head : heads) widths.push_back(width_of(head));
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string text;
  const auto add = [&](const std::vector<std::string>& row) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - width_of(row[c]), ' ');
      const bool is_last = c + 1 == row.size();
      text += is_word[c] ? row[c] + (is_last ? "" : padding) : padding + row[c];
      text += is_last ? "\n" : "  ";
    }
  };
  add(heads);
  for (const auto& row : rows) add(row);
  return text;
}

std::string TextTable::markdown() const {
  std::string text = fmt::format("| {} |\n|", fmt::join(heads, " | "));
  for (const bool word : is_word) text += word ? " --- |" : " ---: |";
  text += "\n";
  for (const auto& row : rows) text += fmt::format("| {} |\n", fmt::join(row, " | "));
  return text;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of("\",\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

}  // namespace hotset::report
