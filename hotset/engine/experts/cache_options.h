// How the expert cache of a device works, as the user asks for it.
// Thread-compatible: a plain value.
#ifndef HOTSET_ENGINE_EXPERTS_CACHE_OPTIONS_H_
#define HOTSET_ENGINE_EXPERTS_CACHE_OPTIONS_H_

#include "hotset/lanes/cache_rules.h"
#include "hotset/lanes/planned_lookup.h"

namespace hotset::engine {

// When the device computes the pairs of resident experts.
enum class HitOrder {
  kAuto,    // whichever is faster on this device, as tried at start
  kQueued,  // behind the router, before the host knows them; missing experts read the pad slot
  kListed,  // once the host knows them, and only them
};

struct CacheOptions {
  // Hits of a lookup of at most rules.most_in_batch() tokens may be queued before it is known;
  // memory is planned for them.
  lanes::CacheRules rules = {};
  HitOrder hit_order = HitOrder::kAuto;
  lanes::PlanInterceptor* interceptor = nullptr;  // must outlive the engine
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_CACHE_OPTIONS_H_
