// Cuts a text where one of several strings appears in it, while the text is written. What could
// still become one of them is held back.
// Thread-compatible.
#ifndef HOTSET_SERVER_STOP_SCANNER_H_
#define HOTSET_SERVER_STOP_SCANNER_H_

#include <string>
#include <string_view>
#include <vector>

namespace hotset::server {

class StopScanner {
 public:
  // Empty strings have no effect.
  explicit StopScanner(std::vector<std::string> stops);

  // The text that is certain to come before a stop string; nothing once one was found. Of several
  // the one that begins first counts.
  std::string push(std::string_view text);
  // What was held back, at the end of the text.
  std::string finish();

  bool found() const { return !found_.empty(); }
  // The string that was found; empty: none yet.
  const std::string& stop() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;
  std::string found_;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_STOP_SCANNER_H_
