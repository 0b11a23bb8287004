#include "hotset/engine/experts/cpu_lane.h"

#include "hotset/base/allocation.h"
#include "hotset/base/clock.h"

namespace hotset::engine {

CpuLane::CpuLane() : thread_([this] { loop(); }) {}

CpuLane::~CpuLane() {
  if (state_.load() == kRequested) (void)finish();
  state_.store(kStop);
  state_.notify_all();
  thread_.join();
}

void CpuLane::start_call(Call call, void* context) {
  HOTSET_CHECK(state_.load() == kIdle);
  call_ = call;
  context_ = context;
  state_.store(kRequested);
  state_.notify_all();
}

Status CpuLane::finish() {
  uint32_t state = state_.load();
  HOTSET_CHECK(state == kRequested || state == kDone);
  while (state != kDone) {
    state_.wait(state);
    state = state_.load();
  }
  state_.store(kIdle);
  return std::move(status_);
}

void CpuLane::loop() {
  for (;;) {
    const uint32_t state = state_.load();
    if (state == kStop) return;
    if (state != kRequested) {
      state_.wait(state);
      continue;
    }
    const double start_us = steady_clock().now_us();
    // Nothing that is thrown may leave a thread.
    status_ = catching_refusal("the CPU lane", [&] { return call_(context_); });
    job_us_ = steady_clock().now_us() - start_us;
    state_.store(kDone);
    state_.notify_all();
  }
}

}  // namespace hotset::engine
