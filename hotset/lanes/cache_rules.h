// How an expert cache decides, as the user asks for it: said once, for the engine, for replays of
// its routing and for whoever shows it.
// Thread-compatible: a plain value.
#ifndef HOTSET_LANES_CACHE_RULES_H_
#define HOTSET_LANES_CACHE_RULES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/error.h"
#include "hotset/lanes/lane_costs.h"
#include "hotset/policy/registry.h"

namespace hotset::lanes {

// Part of the misses that the CPU lane takes, 0 to 1; none ("auto"): the costs decide for each
// lookup.
using CpuShare = std::optional<double>;

// Lookups of more tokens are taken for prompts where no other number is asked for: they are
// streamed where a fixed share, and not the costs, says what crosses the link.
inline constexpr int32_t kDefaultCacheBatch = 32;
inline constexpr int32_t kMaxCacheBatch = 1 << 16;

struct CacheRules {
  std::string policy = std::string(policy::kDefaultPolicy);  // a name of the policy registry
  CpuShare cpu_share = {};
  // Lookups of more tokens, 1 to kMaxCacheBatch, are streamed (prefill): they evict nothing. None:
  // where the share is that of the costs they decide for each lookup, else kDefaultCacheBatch.
  std::optional<int32_t> cache_batch = {};
  bool fills = true;  // experts that the CPU computed may be copied in the background
  // The machine, by which costs, fills and modelled times go. None: the engine measures it, a
  // replay takes kTypicalRates.
  std::optional<LaneRates> rates = {};

  int32_t most_in_batch() const { return cache_batch.value_or(kDefaultCacheBatch); }
};

// Errors: those of policy::policy_traits; kInvalidArgument, naming what is out of its range.
Status check(const CacheRules& rules);

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_CACHE_RULES_H_
