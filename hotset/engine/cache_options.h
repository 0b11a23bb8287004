// How the expert cache of a device works, as the user asks for it.
// Thread-compatible: a plain value.
#ifndef HOTSET_ENGINE_CACHE_OPTIONS_H_
#define HOTSET_ENGINE_CACHE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/plan/lane_costs.h"
#include "hotset/policy/registry.h"

namespace hotset::engine {

// When the device computes the pairs of resident experts.
enum class HitOrder {
  kAuto,    // whichever is faster on this device, as tried at start
  kQueued,  // behind the router, before the host knows them; missing experts read the pad slot
  kListed,  // once the host knows them, and only them
};

struct CacheOptions {
  std::string policy = std::string(kDefaultPolicy);
  // Part of the misses that the CPU lane takes, 0 to 1; none: the chooser decides for each lookup.
  std::optional<double> cpu_share = {};
  bool fills = true;               // experts that the CPU computed may be copied in the background
  int32_t max_decode_tokens = 32;  // lookups of more tokens are prefills, 1 or more
  HitOrder hit_order = HitOrder::kAuto;
  // The machine, where it should not be measured: what the chooser and fills go by.
  std::optional<plan::LaneRates> rates = {};
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_CACHE_OPTIONS_H_
