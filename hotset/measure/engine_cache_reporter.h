// The expert cache of an engine as the server shows it, with a replay of the last lookups beside
// it. The replay runs on a thread of its own, on a copy of the recorded routing.
// Thread-compatible: the thread that drives the engine, but for what is stated.
#ifndef HOTSET_MEASURE_ENGINE_CACHE_REPORTER_H_
#define HOTSET_MEASURE_ENGINE_CACHE_REPORTER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "hotset/measure/engine_session.h"
#include "hotset/measure/model_options.h"
#include "hotset/report/cache_view.h"
#include "hotset/sim/replay.h"

namespace hotset::measure {

// Counts how often experts were routed to lately: each count halves every `half_life_tokens` of its
// layer. Called on the engine's thread.
class ExpertUses {
 public:
  void observe(int64_t layer, std::span<const int32_t> ids, int64_t n_tokens);
  // [n_expert] of a layer; empty if it was never seen.
  std::vector<float> of(int64_t layer) const;

 private:
  struct Layer {
    std::vector<float> uses;
    int64_t n_tokens = 0;  // since they were halved
  };
  std::vector<Layer> layers_;
};

class EngineCacheReporter final : public report::CacheReporter {
 public:
  // Requires: both outlive this. `uses` may be null.
  EngineCacheReporter(const EngineSession& session, const ExpertUses* uses);
  // Stops a replay that runs.
  ~EngineCacheReporter() override;
  EngineCacheReporter(const EngineCacheReporter&) = delete;
  EngineCacheReporter& operator=(const EngineCacheReporter&) = delete;

  report::CacheView view() override;
  cache::CacheCounts totals() override;

 private:
  void compare_now_and_then();
  void compare(std::vector<std::byte> trace, sim::ReplayOptions options);

  const EngineSession& session_;
  const ExpertUses* uses_;
  std::thread comparing_;
  std::atomic<bool> is_comparing_ = false;
  std::atomic<bool> stops_ = false;
  int64_t n_compared_ = 0;    // lookups recorded when the last comparison began
  mutable std::mutex mutex_;  // of the next two
  std::optional<report::CacheComparison> comparison_;
  double compared_at_us_ = 0;
};

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_ENGINE_CACHE_REPORTER_H_
