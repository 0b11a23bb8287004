#include "hotset/cli/interrupt.h"

#include <csignal>

namespace hotset::cli {
namespace {

std::atomic<bool> g_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not wait for a lock");

void on_interrupt(int) {
  g_interrupted.store(true, std::memory_order_relaxed);
  std::signal(SIGINT, SIG_DFL);
}

}  // namespace

InterruptScope::InterruptScope() {
  g_interrupted = false;
  std::signal(SIGINT, on_interrupt);
}

InterruptScope::~InterruptScope() { std::signal(SIGINT, SIG_DFL); }

const std::atomic<bool>& InterruptScope::flag() { return g_interrupted; }

}  // namespace hotset::cli
