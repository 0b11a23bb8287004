// What the expert cache did: per layer and batch class, together, and beside the best that any
// policy could have done with the same slots.
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_REPORT_CACHE_REPORT_H_
#define HOTSET_REPORT_CACHE_REPORT_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/cache_counts.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/run/routing_recorder.h"
#include "hotset/report/cache_verdict.h"
#include "hotset/sim/replay.h"

namespace hotset::report {

struct CacheRow {
  int32_t layer = 0;
  cache::BatchClass batch = cache::BatchClass::kOne;
  cache::CacheCounts counts;
};

// A replay of the recorded lookups with the engine's slots.
struct ReplayedRouting {
  double hit_rate = 0;         // of the engine's policy
  double belady_hit_rate = 0;  // of a policy that knows the future and may decline to insert
  int64_t n_lookups = 0;       // that were recorded and replayed
  bool was_cut = false;        // there were earlier ones
};

// The lanes of a group as they are known now, and how they are chosen between.
struct GroupSplit {
  int32_t first_layer = 0;
  int32_t last_layer = 0;
  double upload_us = 0;  // of an expert alone
  double cpu_us = 0;     // of an expert alone, computed
  std::string reason = {};
};

struct CacheReport {
  std::vector<CacheRow> rows;  // with lookups, by layer, then class
  std::array<cache::CacheCounts, cache::kBatchClasses> classes;  // of all layers
  cache::CacheCounts total;
  std::vector<GroupSplit> splits;  // of groups that have slots for some experts
  std::optional<ReplayedRouting> replayed;
};

// How a replay decides as the engine's cache does, with its slots, from its first token on.
sim::ReplayOptions replay_options(const engine::CachedExperts& cache);

// Replays a trace as `options` say, unless what comes of it is known already, and with the policy
// that knows the future. Errors: as sim::replay.
Result<ReplayedRouting> beside_belady(const sim::TraceOpener& open, sim::ReplayOptions options,
                                      std::optional<double> known_hit_rate = {});

// Requires: `group` has slots.
GroupSplit group_split(const engine::CachedExperts& cache, int32_t group);

// The counts of the engine's cache so far. Requires: the engine has one.
CacheReport cache_report(const engine::Engine& engine);

// Replays what `recorder` has kept. Nothing where that is nothing.
// Errors: as sim::replay.
Result<std::optional<ReplayedRouting>> replay_kept(const engine::Engine& engine,
                                                   const engine::RoutingRecorder& recorder);

// A line for each row, class and in total, and one that sums up.
std::string report_text(const CacheReport& report);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_CACHE_REPORT_H_
