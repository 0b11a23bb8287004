// What the lanes of a lookup cost: plain values that the estimators fill and the chooser reads.
// Times are microseconds, rates are GB/s (10^9 bytes a second, 1000 bytes a microsecond).
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_LANES_LANE_COSTS_H_
#define HOTSET_LANES_LANE_COSTS_H_

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::lanes {

// The largest cost, in its own unit, that anything here accepts: far beyond any real one, and small
// enough that no sum of them overflows.
inline constexpr double kMaxCost = 1e18;

// 0 to kMaxCost; not a NaN.
constexpr bool is_cost(double x) { return x >= 0 && x <= kMaxCost; }

// A cost that grows in a straight line: `fixed + per_unit * x`.
struct LinearCost {
  double fixed = 0;
  double per_unit = 0;

  constexpr double at(double x) const { return fixed + per_unit * x; }
  constexpr bool operator==(const LinearCost&) const = default;
};

// The cost of computing some experts in one go: `turn_us + sum of expert_us.at(n_tokens)` over
// them, and nothing for no expert. Within one expert, reading the weights is `expert_us.fixed` and
// a token's arithmetic is `expert_us.per_unit`.
struct ExpertCost {
  double turn_us = 0;
  LinearCost expert_us = {};  // of the tokens that selected the expert

  constexpr bool operator==(const ExpertCost&) const = default;
};

// Every cost of design.md section 5. "Solo": the other lane has nothing to do in this lookup;
// "concurrent": both read host memory at the same time.
struct LaneCosts {
  LinearCost upload_solo_us = {};        // of bytes: t_launch + bytes / l(n)
  LinearCost upload_concurrent_us = {};  // of bytes: t_launch + bytes / l(u), 0 < u < n
  ExpertCost cpu_solo = {};              // t_turn and c(tokens), nothing uploaded
  ExpertCost cpu_concurrent = {};        // t_turn and c(tokens), 0 < u < n
  double rows_us = 0;  // t_rows: result rows of the CPU lane back to the device, some of a lookup
  double all_rows_us = 0;  // the same of all pairs of a lookup, which are one copy
  ExpertCost pairs = {};   // t_pairs: uploaded pairs on the device

  constexpr bool operator==(const LaneCosts&) const = default;
};

// Every cost `is_cost`.
bool is_valid(const LaneCosts& costs);
// Errors: kInvalidArgument, naming the field that is not.
Status validate(const LaneCosts& costs);

// The cost of a lane that takes `line` (microseconds of work), where an expert's first token is 1
// and each further one is `further_token` (0 to 1) of work.
ExpertCost expert_cost(const LinearCost& line, double further_token);

// A machine in six numbers, for the simulator and for tests.
struct LaneRates {
  double link_gb_per_s = 0;     // host to device, alone; above 0
  double cpu_gb_per_s = 0;      // expert bytes the CPU lane computes a second, alone; above 0
  double device_gb_per_s = 0;   // expert bytes the device computes a second; above 0
  double memory_gb_per_s = 0;   // host memory, all readers together; 0: not known, no limit
  double launch_us = 0;         // t_launch
  double turn_us = 0;           // t_turn
  double rows_us = 0;           // t_rows
  double device_launch_us = 0;  // of the uploaded pairs' graph
  // A further token of an expert costs this share of its first, on either side; 0 to 1. About 0
  // where reading the weights is what takes the time.
  double further_token = 0;

  bool operator==(const LaneRates&) const = default;
};

// A desktop: PCIe 4 x8, two channels of DDR5, a GPU with 200 GB/s. The same numbers as those of the
// emulated device.
inline constexpr LaneRates kTypicalRates = {
    .link_gb_per_s = 12, .cpu_gb_per_s = 20, .device_gb_per_s = 200, .launch_us = 15};

// Both lanes together reach about this share of the sum of their rates (design.md section 5).
inline constexpr double kConcurrentShare = 0.88;

// The rates of link and CPU while both run: in proportion to what each reaches alone, together
// `min(0.88 * (link + cpu), memory)`, neither above its own.
// Requires: rates above 0; memory_gb_per_s 0 (no limit) or more.
struct ConcurrentRates {
  double link_gb_per_s = 0;
  double cpu_gb_per_s = 0;
};
ConcurrentRates concurrent_rates(double link_gb_per_s, double cpu_gb_per_s, double memory_gb_per_s);

// The costs of a machine with these rates for experts of `expert_bytes` (above 0).
// Errors: kInvalidArgument, naming the field.
Result<LaneCosts> costs_from_rates(const LaneRates& rates, Bytes expert_bytes);

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_LANE_COSTS_H_
