#include "hotset/base/progress_bar.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace hotset {
namespace {

constexpr int kColumns = 40;

}  // namespace

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)), is_terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (shown_percent_ >= 0) fmt::print(stderr, "\r\033[K");
}

void ProgressBar::update(double part) {
  const int percent = static_cast<int>(std::clamp(part, 0.0, 1.0) * 100);
  if (!is_terminal_ || percent == shown_percent_) return;
  shown_percent_ = percent;
  const int n_filled = kColumns * percent / 100;
  fmt::print(stderr, "\r{} [{}{}] {:3}%", what_, std::string(static_cast<size_t>(n_filled), '#'),
             std::string(static_cast<size_t>(kColumns - n_filled), '.'), percent);
  std::fflush(stderr);
}

}  // namespace hotset
