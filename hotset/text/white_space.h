// What is trimmed from texts around messages, replies and calls of tools.
// Thread-safe: a constant.
#ifndef HOTSET_TEXT_WHITE_SPACE_H_
#define HOTSET_TEXT_WHITE_SPACE_H_

#include <string_view>

namespace hotset::text {

inline constexpr std::string_view kWhiteSpace = " \t\r\n";

}  // namespace hotset::text

#endif  // HOTSET_TEXT_WHITE_SPACE_H_
