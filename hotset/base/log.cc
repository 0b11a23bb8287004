#include "hotset/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>
#include <mutex>

#include "hotset/base/printable.h"

namespace hotset {
namespace {

std::atomic<LogLevel> g_level = LogLevel::kInfo;
std::mutex g_sink_mutex;
LogSink g_sink;  // guarded by g_sink_mutex

// Whoever quotes a text says how much of it; this is for what nobody thought of.
constexpr size_t kMaxMessageBytes = 8192;

spdlog::logger& terminal() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>(
        "hotset", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(spdlog::level::trace);
    made->set_pattern("hotset: %^%l%$: %v");
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      break;
  }
  return spdlog::level::err;
}

void write(LogLevel level, std::string_view text) {
  const std::lock_guard lock(g_sink_mutex);
  if (g_sink) {
    g_sink(level, text);
  } else {
    terminal().log(spdlog_level(level), text);
  }
}

}  // namespace

void set_log_level(LogLevel level) { g_level = level; }
LogLevel log_level() { return g_level; }

void set_log_sink(LogSink sink) {
  const std::lock_guard lock(g_sink_mutex);
  g_sink = std::move(sink);
}

void log_message(LogLevel level, std::string_view message) {
  if (level < g_level) return;
  write(level, printable(message, kMaxMessageBytes));
}

void log_table(std::string_view text) {
  if (LogLevel::kInfo >= g_level) write(LogLevel::kInfo, text);
}

}  // namespace hotset
