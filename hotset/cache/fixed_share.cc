#include "hotset/cache/fixed_share.h"

#include <cmath>

#include "hotset/cache/expert_cache.h"

namespace hotset::cache {

FixedShare::FixedShare(uint32_t share_65536, int32_t n_layers)
    : share_65536_(share_65536), carry_(n_layers) {}

Result<FixedShare> FixedShare::create(float share, int32_t n_layers) {
  if (!(share >= 0 && share <= 1) || n_layers < 0 || n_layers > kMaxLayers) {
    return make_error(ErrorCode::kInvalidArgument,
                      "CPU share {} for {} layers, expected a share of 0 to 1 and 0 to {} layers",
                      share, n_layers, kMaxLayers);
  }
  return FixedShare(static_cast<uint32_t>(std::lround(share * 65536.0F)), n_layers);
}

int32_t FixedShare::take(const Lookup& lookup) {
  if (!lookup.group_full) return 0;
  HOTSET_CHECK(static_cast<size_t>(lookup.layer) < carry_.size());
  uint32_t& carry = carry_[lookup.layer];
  const uint64_t parts = lookup.misses.size() * uint64_t{share_65536_} + carry;
  carry = static_cast<uint32_t>(parts % 65536);
  return static_cast<int32_t>(parts / 65536);
}

}  // namespace hotset::cache
