// How the expert cache of a device works, as the user asks for it.
// Thread-compatible: a plain value.
#ifndef HOTSET_ENGINE_EXPERTS_CACHE_OPTIONS_H_
#define HOTSET_ENGINE_EXPERTS_CACHE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/lanes/lane_costs.h"
#include "hotset/lanes/planned_lookup.h"
#include "hotset/lanes/split_costs.h"
#include "hotset/policy/registry.h"

namespace hotset::engine {

// When the device computes the pairs of resident experts.
enum class HitOrder {
  kAuto,    // whichever is faster on this device, as tried at start
  kQueued,  // behind the router, before the host knows them; missing experts read the pad slot
  kListed,  // once the host knows them, and only them
};

struct CacheOptions {
  std::string policy = std::string(policy::kDefaultPolicy);
  // Part of the misses that the CPU lane takes, 0 to 1; none: the chooser decides for each lookup.
  std::optional<double> cpu_share = {};
  bool fills = true;  // experts that the CPU computed may be copied in the background
  // Lookups of more tokens, 1 or more, are streamed (prefill); none: where the share is the
  // chooser's the costs decide for each lookup, else lanes::kMaxDecodeTokens.
  std::optional<int32_t> max_decode_tokens = {};
  HitOrder hit_order = HitOrder::kAuto;
  // The machine, where it should not be measured: what the chooser and fills go by.
  std::optional<lanes::LaneRates> rates = {};
  lanes::PlanInterceptor* interceptor = nullptr;  // must outlive the engine
};

// Most tokens of a lookup whose hits are queued before it is known; memory is planned for them.
inline int32_t most_queued_tokens(const CacheOptions& options) {
  return options.max_decode_tokens.value_or(lanes::kMaxDecodeTokens);
}

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_CACHE_OPTIONS_H_
