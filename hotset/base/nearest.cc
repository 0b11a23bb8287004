#include "hotset/base/nearest.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <limits>
#include <vector>

namespace hotset {
namespace {

// No name of a flag is longer; what is must not cost its square.
constexpr size_t kLongestWord = 64;

std::string plain(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  std::string text;
  for (const char c : word) {
    text += c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replaced, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  const std::string asked = plain(word);
  if (asked.empty() || asked.size() > kLongestWord) return {};
  // A third of the letters may be wrong; of one letter only its case.
  const size_t most = asked.size() == 1 ? 0 : std::max<size_t>(1, asked.size() / 3);
  size_t least = std::numeric_limits<size_t>::max();
  std::string best;
  for (const std::string& candidate : candidates) {
    const std::string name = plain(candidate);
    if (name.size() == 1 && asked.size() > 1) continue;
    size_t distance = edit_distance(asked, name);
    const bool goes_on = asked.size() >= 3 && name.starts_with(asked);
    if (goes_on) distance = std::min(distance, most);
    if (distance > most || distance >= least) continue;
    least = distance;
    best = candidate;
  }
  return best;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

}  // namespace hotset
