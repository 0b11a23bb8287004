#include "hotset/base/interrupt.h"

#include <csignal>

namespace hotset {
namespace {

std::atomic<bool> g_interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not wait for a lock");

void on_interrupt(int) {
  g_interrupted.store(true, std::memory_order_relaxed);
  std::signal(SIGINT, SIG_DFL);
}

std::atomic<bool> g_report_requested = false;

void on_report_request(int) { g_report_requested.store(true, std::memory_order_relaxed); }

}  // namespace

InterruptScope::InterruptScope() {
  g_interrupted = false;
  std::signal(SIGINT, on_interrupt);
}

InterruptScope::~InterruptScope() { std::signal(SIGINT, SIG_DFL); }

const std::atomic<bool>& InterruptScope::flag() { return g_interrupted; }

ReportRequestScope::ReportRequestScope() {
  g_report_requested = false;
  std::signal(SIGUSR1, on_report_request);
}

ReportRequestScope::~ReportRequestScope() { std::signal(SIGUSR1, SIG_IGN); }

bool ReportRequestScope::take() {
  return g_report_requested.exchange(false, std::memory_order_relaxed);
}

}  // namespace hotset
