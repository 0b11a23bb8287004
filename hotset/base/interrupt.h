// Signals as flags: Ctrl-C, so that a command can end cleanly, and SIGUSR1, which asks for a
// report.
#ifndef HOTSET_BASE_INTERRUPT_H_
#define HOTSET_BASE_INTERRUPT_H_

#include <atomic>

namespace hotset {

// While one of these lives, the first Ctrl-C sets a flag instead of ending the process; the second
// one ends it. One at a time.
// Thread-safe: the flag may be read from any thread.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  static bool interrupted() { return flag().load(std::memory_order_relaxed); }
  // Lives as long as the process.
  static const std::atomic<bool>& flag();
};

// While one of these lives, SIGUSR1 sets a flag instead of ending the process; afterwards it is
// ignored, because it may come late. One at a time.
// Thread-safe: take() may be called from any thread.
class ReportRequestScope {
 public:
  ReportRequestScope();
  ~ReportRequestScope();
  ReportRequestScope(const ReportRequestScope&) = delete;
  ReportRequestScope& operator=(const ReportRequestScope&) = delete;

  // Whether the signal has arrived since the last call.
  static bool take();
};

// What a shell expects of a program that Ctrl-C ended.
inline constexpr int kInterruptedExitStatus = 130;

}  // namespace hotset

#endif  // HOTSET_BASE_INTERRUPT_H_
