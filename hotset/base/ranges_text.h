// Numbers as people write many of them.
// Thread-safe: a pure function.
#ifndef HOTSET_BASE_RANGES_TEXT_H_
#define HOTSET_BASE_RANGES_TEXT_H_

#include <fmt/core.h>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>

namespace hotset {

// "0-3, 7" of ascending numbers.
template <std::integral T>
std::string ranges_text(std::span<const T> numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (end - i > 1) text += fmt::format("-{}", numbers[end - 1]);
    i = end;
  }
  return text;
}

}  // namespace hotset

#endif  // HOTSET_BASE_RANGES_TEXT_H_
