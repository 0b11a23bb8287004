// Ctrl-C as a flag, so that a command can end cleanly.
#ifndef HOTSET_CLI_INTERRUPT_H_
#define HOTSET_CLI_INTERRUPT_H_

#include <atomic>

namespace hotset::cli {

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

// What a shell expects of a program that Ctrl-C ended.
inline constexpr int kInterruptedExitStatus = 130;

}  // namespace hotset::cli

#endif  // HOTSET_CLI_INTERRUPT_H_
