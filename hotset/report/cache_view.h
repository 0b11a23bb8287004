// What the server shows of the expert cache and of a replay beside it, without knowing what either
// is made of: the command line fills this interface with the engine's cache and the simulator.
// Thread-compatible: plain values; the interface as stated.
#ifndef HOTSET_REPORT_CACHE_VIEW_H_
#define HOTSET_REPORT_CACHE_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/units.h"
#include "hotset/cache/cache_counts.h"

namespace hotset::report {

struct CacheLayerView {
  int32_t layer = 0;
  int32_t group = 0;
  cache::CacheCounts totals = {};
  std::vector<bool> is_resident = {};  // [n_expert]
  std::vector<float> uses = {};        // [n_expert], recent ones, decayed; empty: not counted
};

struct CacheGroupView {
  std::vector<int32_t> layers = {};
  int32_t n_experts = 0;  // of all its layers
  int32_t n_slots = 0;
  Bytes expert_bytes = {};
  // How misses are split and why: "half of them: --moe-cache-cpu-share 0.5".
  std::string split = {};
  double upload_us = 0;  // of one expert alone, as the lanes are known now; 0: not known
  double cpu_us = 0;
};

// Beside the best that any policy could have done with the same slots, for the last lookups.
struct CacheComparison {
  int64_t n_lookups = 0;
  double hit_rate = 0;
  double best_hit_rate = 0;
  double age_s = 0;  // since it was computed
};

struct CacheView {
  bool is_on = false;
  std::string verdict = {};
  std::string device = {};  // empty: the CPU alone
  std::string policy = {};
  std::vector<std::pair<std::string, Bytes>> memory = {};  // the device's plan, in order
  Bytes device_memory = {};
  std::vector<CacheGroupView> groups = {};
  std::vector<CacheLayerView> layers = {};
  cache::CacheCounts totals = {};
  std::optional<CacheComparison> comparison = {};
};

class CacheReporter {
 public:
  virtual ~CacheReporter() = default;
  // Called between two steps, on the thread that drives the engine.
  virtual CacheView view() = 0;
  // The same without layers, groups and memory: cheap.
  virtual cache::CacheCounts totals() = 0;
};

}  // namespace hotset::report

#endif  // HOTSET_REPORT_CACHE_VIEW_H_
