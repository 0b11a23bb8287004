// What a cache should take before it has served anything: at load there are costs, but no hits yet.
// Thread-compatible: pure functions.
#ifndef HOTSET_LANES_CACHE_PREDICTION_H_
#define HOTSET_LANES_CACHE_PREDICTION_H_

#include <cstdint>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/lanes/lane_costs.h"

namespace hotset::lanes {

// The part of a token's experts that is resident once a cache with slots for `slot_share` (0 to 1)
// of all experts has seen some text: 1 - (1 - share)^5, which lies amid the traces of
// docs/replay.md (at 10% of the experts 41%, of which they have 29 to 62%).
double typical_hit_rate(double slot_share);

// What the experts of a layer and token take, in microseconds: with typical_hit_rate() of the
// `n_used` experts (1 or more, `expert_bytes` each) resident, and the cheapest split of the others.
// Errors: as LaneChooser::choose; kInvalidArgument, naming the argument.
Result<double> predicted_layer_us(const LaneCosts& costs, Bytes expert_bytes, int32_t n_used,
                                  double slot_share);

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_CACHE_PREDICTION_H_
