// Messages to the user's terminal. What a command was asked for goes to stdout and never through
// here; this is stderr: progress, warnings, the verdict line.
// Thread-safe.
#ifndef HOTSET_BASE_LOG_H_
#define HOTSET_BASE_LOG_H_

#include <fmt/core.h>

#include <functional>
#include <string_view>
#include <utility>

namespace hotset {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Messages below `level` are dropped. Default: kInfo.
void set_log_level(LogLevel level);
LogLevel log_level();

// Sends every message that is not dropped to `sink` instead of stderr; an empty function restores
// stderr. For tests and servers.
using LogSink = std::function<void(LogLevel, std::string_view message)>;
void set_log_sink(LogSink sink);

// One line, by printable(): messages quote names from files and requests, which must neither
// command the terminal nor look like a message of their own.
void log_message(LogLevel level, std::string_view message);

// Several lines at level kInfo, for tables. Requires: what comes from outside is in it only by
// printable().
void log_table(std::string_view text);

template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  if (log_level() <= LogLevel::kDebug) {
    log_message(LogLevel::kDebug, fmt::format(format, std::forward<Args>(args)...));
  }
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_message(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace hotset

#endif  // HOTSET_BASE_LOG_H_
