// The scanner for stop strings against a naive one, over texts of few letters in any pieces: the
// same stop, the same text in front of it, and nothing held back that could not become a stop.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/server/stop_scanner.h"
#include "hotset/server/stop_testing.h"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "stop_scanner_fuzz: %s\n", what);
  std::abort();
}

char letter(uint8_t byte) { return "abc\xc3"[byte & 3]; }

// Bytes at the end of a text without a stop that could become one.
size_t naive_held(std::string_view text, const std::vector<std::string>& stops) {
  size_t n_held = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) n_held = std::max(n_held, n);
    }
  }
  return n_held;
}

void check(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  hotset::server::StopScanner scanner(stops);
  std::string text;
  std::string given;
  for (const std::string& piece : pieces) {
    text += piece;
    given += scanner.push(piece);
    const hotset::server::FoundStop found = hotset::server::naive_find(text, stops);
    require(scanner.stop() == found.stop, "another stop");
    require(scanner.n_certain() == given.size(), "another number of bytes");
    if (scanner.found()) {
      require(given == std::string_view(text).substr(0, found.begin), "cut elsewhere");
      break;
    }
    require(given == std::string_view(text).substr(0, text.size() - naive_held(text, stops)),
            "held back too much or too little");
  }
  given += scanner.finish();
  require(scanner.found() || given == text, "text is lost");
}

}  // namespace

// A byte for the number of stops; each a byte for its length and its letters; then the text, a
// letter a byte, whose highest bit begins another piece.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  constexpr size_t kMostBytes = 300;
  size_t at = 0;
  n_bytes = std::min(n_bytes, kMostBytes);
  const auto next = [&] { return at < n_bytes ? data[at++] : uint8_t{0}; };
  std::vector<std::string> stops(next() % 6);
  for (std::string& stop : stops) {
    const size_t n_letters = 1 + next() % 9;
    for (size_t i = 0; i < n_letters; ++i) stop += letter(next());
  }
  std::vector<std::string> pieces(1);
  while (at < n_bytes) {
    const uint8_t byte = next();
    if ((byte & 0x80) != 0) pieces.emplace_back();
    pieces.back() += letter(byte);
  }
  check(stops, pieces);
  return 0;
}
