#include "hotset/server/stop_scanner.h"

#include <algorithm>
#include <utility>

#include "hotset/base/error.h"

namespace hotset::server {
namespace {

std::vector<uint32_t> borders_of(std::string_view text) {
  std::vector<uint32_t> borders(text.size(), 0);
  uint32_t n = 0;
  for (size_t i = 1; i < text.size(); ++i) {
    while (n > 0 && text[i] != text[n]) n = borders[n - 1];
    if (text[i] == text[n]) ++n;
    borders[i] = n;
  }
  return borders;
}

}  // namespace

StopScanner::StopScanner(std::vector<std::string> stops) {
  stops_.reserve(stops.size());
  for (std::string& text : stops) {
    HOTSET_CHECK(!text.empty());
    std::vector<uint32_t> borders = borders_of(text);
    stops_.push_back({.text = std::move(text), .borders = std::move(borders)});
  }
}

bool StopScanner::Stop::push(char c) {
  while (n_matched > 0 && text[n_matched] != c) n_matched = borders[n_matched - 1];
  if (text[n_matched] == c) ++n_matched;
  return n_matched == text.size();
}

std::string StopScanner::push(std::string_view text) {
  if (found() || text.empty()) return {};
  if (stops_.empty()) {
    n_certain_ += text.size();
    return std::string(text);
  }
  size_t n_held = 0;  // of held_ and what was looked at of `text`
  for (const char c : text) {
    held_ += c;
    n_held = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      if (stops_[i].push(c) && (!found() || stops_[i].text.size() > stop().size())) found_ = i;
      n_held = std::max(n_held, stops_[i].n_matched);
    }
    if (!found()) continue;
    n_held = stop().size();
    break;
  }
  std::string certain = held_.substr(0, held_.size() - n_held);
  held_.erase(0, certain.size());
  if (found()) held_.clear();
  n_certain_ += certain.size();
  return certain;
}

std::string StopScanner::finish() {
  n_certain_ += held_.size();
  return std::exchange(held_, {});
}

const std::string& StopScanner::stop() const {
  static const std::string none;
  return found() ? stops_[*found_].text : none;
}

}  // namespace hotset::server
