// Text of strangers as people may read it: names in files, fields of requests, values of flags and
// of the environment. Whatever quotes one in a message, a log line or a table does so through here.
// Thread-safe: a pure function.
#ifndef HOTSET_BASE_PRINTABLE_H_
#define HOTSET_BASE_PRINTABLE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace hotset {

// Enough for a name or a value that somebody is to recognise.
inline constexpr size_t kMaxPrintedBytes = 200;

// `text` as one line of valid UTF-8 that does nothing but show characters. Control characters (C0,
// DEL) and bytes that are no UTF-8 become \xNN; C1 controls, line and paragraph separators and what
// changes the direction of writing \uNNNN. Of more than `max_bytes` bytes the beginning remains,
// and "... (N bytes)" says how many there were. What is printable and short already stays as it is.
std::string printable(std::string_view text, size_t max_bytes = kMaxPrintedBytes);

}  // namespace hotset

#endif  // HOTSET_BASE_PRINTABLE_H_
