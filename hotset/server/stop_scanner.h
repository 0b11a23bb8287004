// Cuts a text where one of several strings appears in it, while the text is written.
//
// As if the text came character by character: the string whose end comes first counts, and of
// several that end there the longest. The text ends where that string begins. How the text is cut
// into pieces changes neither, only when its parts come out: what could still become one of the
// strings is held back. Thread-compatible.
#ifndef HOTSET_SERVER_STOP_SCANNER_H_
#define HOTSET_SERVER_STOP_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hotset::server {

class StopScanner {
 public:
  // Requires: no empty string.
  explicit StopScanner(std::vector<std::string> stops);

  // The text that is certain to come before a stop string; nothing once one was found.
  std::string push(std::string_view text);
  // What was held back, at the end of the text.
  std::string finish();

  bool has_stops() const { return !stops_.empty(); }
  bool found() const { return found_.has_value(); }
  // The string that was found; empty: none yet.
  const std::string& stop() const;
  // Bytes that push() and finish() have given; once a string was found, where it begins.
  size_t n_certain() const { return n_certain_; }

 private:
  // Finds one string byte by byte without ever going back (Knuth, Morris, Pratt 1977).
  struct Stop {
    std::string text;
    // [text.size()]: of the first i + 1 bytes the most, but not all, that they begin and end with.
    std::vector<uint32_t> borders;
    size_t n_matched = 0;  // last bytes of the text that are the first ones of `text`

    bool push(char c);  // whether `text` ends here
  };

  std::vector<Stop> stops_;
  std::string held_;
  size_t n_certain_ = 0;
  std::optional<size_t> found_;  // of stops_
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_STOP_SCANNER_H_
