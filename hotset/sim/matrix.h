// Replays every trace with every policy, cache size and CPU share that was asked for, in parallel,
// beside the two offline bounds for the same slots.
#ifndef HOTSET_SIM_MATRIX_H_
#define HOTSET_SIM_MATRIX_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/lanes/cache_rules.h"
#include "hotset/sim/replay.h"

namespace hotset::sim {

// A budget for all devices together.
struct CacheSize {
  enum class Unit {
    kMib,      // value in (0, kMostMib]
    kPercent,  // of the bytes of all experts; value in (0, 200]
  };
  Unit unit = Unit::kPercent;
  double value = 0;
};

struct MatrixOptions {
  std::vector<std::string> traces = {};    // paths of files; read several times, so no pipes
  std::vector<std::string> policies = {};  // names of the policy registry
  std::vector<CacheSize> sizes = {};
  std::vector<lanes::CpuShare> shares = {};
  lanes::CacheRules rules = {};  // but for policy and share, which are those of the lists
  CountRules counted = {};
  // For the policy `static`: the trace whose uses it is made from; empty: each trace is judged by
  // its own uses, in hindsight.
  std::string profile_trace = {};
  size_t n_workers = 0;  // replays at a time; 0: one per CPU that may be used
  const std::atomic<bool>* cancelled = nullptr;
  // Told the part of the work that is done, from 0 to 1. Calls come from several threads, but one
  // at a time.
  std::function<void(double)> progress = {};
};

// One replay, and the bounds for its slots: hit rates of `belady` (may decline to insert) and
// `belady-demand` (always inserts), with share 0.
struct MatrixRow {
  std::string trace;
  std::string policy;
  // The size as it was asked for, and what that is in the other unit.
  double cache_mib = 0;
  double cache_percent = 0;
  lanes::CpuShare share = 0;
  ReplayResult result;
  double belady_hit_rate = 0;
  double belady_demand_hit_rate = 0;
};

// Rows by trace, then cache size, share and policy, each in the order of the options.
// Memory: that of replay() for each thread.
// Errors: those of replay(); kInvalidArgument: an empty list, a size or share out of range, a trace
// that is not a file, a profile of another shape; kOutOfMemory. Messages name the trace.
Result<std::vector<MatrixRow>> replay_matrix(const MatrixOptions& options);

}  // namespace hotset::sim

#endif  // HOTSET_SIM_MATRIX_H_
