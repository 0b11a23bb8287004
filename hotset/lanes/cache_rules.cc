#include "hotset/lanes/cache_rules.h"

namespace hotset::lanes {

Status check(const CacheRules& rules) {
  const auto traits = policy::policy_traits(rules.policy);
  if (!traits) return std::unexpected(traits.error());
  if (rules.cpu_share && !(*rules.cpu_share >= 0 && *rules.cpu_share <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "CPU share is {}, expected 0 to 1 or auto",
                      *rules.cpu_share);
  }
  if (rules.cache_batch && (*rules.cache_batch < 1 || *rules.cache_batch > kMaxCacheBatch)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tokens of a batch: found {}, expected auto or 1 to {}", *rules.cache_batch,
                      kMaxCacheBatch);
  }
  if (rules.rates) {
    const auto costs = costs_from_rates(*rules.rates, Bytes{1});
    if (!costs) return std::unexpected(costs.error());
  }
  return {};
}

}  // namespace hotset::lanes
