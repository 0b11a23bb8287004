// What tests and fuzzers of stop strings compare with.
#ifndef HOTSET_SERVER_STOP_TESTING_H_
#define HOTSET_SERVER_STOP_TESTING_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hotset::server {

struct FoundStop {
  std::string stop;  // empty: none
  size_t begin = std::string::npos;
};

// As docs/api.md defines it: the first place where one ends, and there the longest.
inline FoundStop naive_find(std::string_view text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    FoundStop found;
    for (const std::string& stop : stops) {
      if (text.substr(0, end).ends_with(stop) && stop.size() > found.stop.size()) {
        found = {.stop = stop, .begin = end - stop.size()};
      }
    }
    if (!found.stop.empty()) return found;
  }
  return {};
}

}  // namespace hotset::server

#endif  // HOTSET_SERVER_STOP_TESTING_H_
