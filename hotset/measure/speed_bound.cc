#include "hotset/measure/speed_bound.h"

#include <algorithm>

#include "hotset/lanes/lane_costs.h"

namespace hotset::measure {
namespace {

constexpr double kBytesPerUsOfGb = 1e3;  // 1 GB/s is a thousand bytes a microsecond

}  // namespace

double bound_us_per_token(const ReadBytes& bytes, const MachineRates& rates) {
  const bool needs_device = bytes.hits > 0 || bytes.dense > 0;
  double both_lanes = lanes::kConcurrentShare * (rates.link + rates.cpu);
  if (rates.memory > 0) both_lanes = std::min(both_lanes, rates.memory);
  if ((needs_device && rates.device <= 0) || (bytes.misses > 0 && both_lanes <= 0)) return 0;
  const double hit_us = bytes.hits > 0 ? bytes.hits / rates.device : 0;
  const double miss_us = bytes.misses > 0 ? bytes.misses / both_lanes : 0;
  const double dense_us = bytes.dense > 0 ? bytes.dense / rates.device : 0;
  return (std::max(hit_us, miss_us) + dense_us) / kBytesPerUsOfGb;
}

}  // namespace hotset::measure
