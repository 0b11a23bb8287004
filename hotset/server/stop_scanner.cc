#include "hotset/server/stop_scanner.h"

#include <algorithm>
#include <utility>

namespace hotset::server {

StopScanner::StopScanner(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase(stops_, std::string());
}

std::string StopScanner::push(std::string_view text) {
  if (found()) return {};
  if (stops_.empty()) return std::string(text);
  pending_ += text;
  size_t first = std::string::npos;
  const std::string* which = nullptr;
  for (const std::string& stop : stops_) {
    const size_t at = pending_.find(stop);
    if (at < first) {
      first = at;
      which = &stop;
    }
  }
  if (which != nullptr) {
    // One that begins earlier may still be coming; the next text decides. Waiting for it would hold
    // the end of the reply back for good, so what is whole counts.
    found_ = *which;
    std::string certain = pending_.substr(0, first);
    pending_.clear();
    return certain;
  }
  size_t n_held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, pending_.size()); n > n_held; --n) {
      if (std::string_view(pending_).ends_with(std::string_view(stop).substr(0, n))) {
        n_held = n;
        break;
      }
    }
  }
  std::string certain = pending_.substr(0, pending_.size() - n_held);
  pending_.erase(0, pending_.size() - n_held);
  return certain;
}

std::string StopScanner::finish() { return std::exchange(pending_, {}); }

}  // namespace hotset::server
