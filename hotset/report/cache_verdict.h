// The expert cache in one line, as every start prints it: where it is, how much it holds and how it
// works, or why there is none.
// Thread-compatible: pure functions.
#ifndef HOTSET_REPORT_CACHE_VERDICT_H_
#define HOTSET_REPORT_CACHE_VERDICT_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/units.h"
#include "hotset/device/device.h"
#include "hotset/engine/run/engine.h"

namespace hotset::report {

// What a verdict is about.
struct CacheState {
  const device::DeviceInfo* device = nullptr;  // null: the CPU alone
  std::optional<Bytes> asked = {};             // none: auto
  int32_t n_expert = 0;                        // of a layer
  int32_t k = 0;                               // experts per token
  int64_t n_layer = 0;
  int64_t n_on_device = 0;  // layers
  bool head_on_device = false;
  std::span<const cache::CacheGroup> groups = {};  // as planned
  Bytes device_bytes = {};                         // of the cache
  bool source_is_pinned = false;
  engine::CacheOptions options = {};
  // Layers, ascending, whose experts the device's kernels do not multiply at all, and their types.
  std::vector<int32_t> refused_layers = {};
  std::string refused_types = {};
  std::string why_repacked = {};  // a cache was asked for, and gave way to repacked experts
  std::string why_bypassed = {};  // the CPU computes everything although there are slots

  bool has_slots() const;
};

CacheState cache_state(const engine::Engine& engine, std::optional<Bytes> asked);

// "expert cache on: ..." or "expert cache off: ...", without a full stop.
std::string cache_verdict(const CacheState& state);

// What the user should do otherwise: groups without slots beside others, a device that needs no
// cache; empty: nothing.
std::string cache_warning(const CacheState& state);

// The smallest budget, in whole MiB, that gives one of the groups slots for k experts; none where
// the device's kernels accept no such bank.
std::optional<int64_t> needed_mib(const CacheState& state);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_CACHE_VERDICT_H_
