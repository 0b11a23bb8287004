// The thread on which the CPU computes while another one drives the device. Always the same thread,
// because the CPU backend keeps a team of kernel threads per calling thread.
// Thread-compatible: one thread starts jobs and waits for them.
#ifndef HOTSET_ENGINE_EXPERTS_CPU_LANE_H_
#define HOTSET_ENGINE_EXPERTS_CPU_LANE_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

#include "hotset/base/error.h"

namespace hotset::engine {

class CpuLane {
 public:
  CpuLane();
  ~CpuLane();
  CpuLane(const CpuLane&) = delete;
  CpuLane& operator=(const CpuLane&) = delete;

  // Starts `job()`, which returns a Status and must stay alive until finish(). Nothing is
  // allocated. Requires: no job is running.
  template <typename Job>
  void start(Job& job) {
    start_call([](void* context) -> Status { return (*static_cast<Job*>(context))(); }, &job);
  }
  // Waits for the job. Requires: one was started.
  Status finish();

  // What the job that finished last took, on its thread, in microseconds.
  double job_us() const { return job_us_; }

  // start() and finish().
  template <typename Job>
  Status run(Job&& job) {
    start(job);
    return finish();
  }

 private:
  using Call = Status (*)(void*);
  enum State : uint32_t { kIdle, kRequested, kDone, kStop };

  void start_call(Call call, void* context);
  void loop();

  Call call_ = nullptr;
  void* context_ = nullptr;
  Status status_;
  double job_us_ = 0;
  std::atomic<uint32_t> state_ = kIdle;
  std::thread thread_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_CPU_LANE_H_
