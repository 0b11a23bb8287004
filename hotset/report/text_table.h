// Tables of words and numbers, for terminals and Markdown.
// Thread-compatible: pure functions.
#ifndef HOTSET_REPORT_TEXT_TABLE_H_
#define HOTSET_REPORT_TEXT_TABLE_H_

#include <string>
#include <vector>

namespace hotset::report {

struct TextTable {
  std::vector<std::string> heads;
  std::vector<bool> is_word;                   // by column: to the left; numbers go to the right
  std::vector<std::vector<std::string>> rows;  // each as long as the heads

  // Columns aligned by two spaces, one line per row.
  std::string text() const;
  std::string markdown() const;
};

// A field of a CSV line (RFC 4180).
std::string csv_field(const std::string& text);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_TEXT_TABLE_H_
