// What the lanes did for the lookups of a layer and a batch class.
// Thread-compatible: plain values.
#ifndef HOTSET_ENGINE_LANE_TOTALS_H_
#define HOTSET_ENGINE_LANE_TOTALS_H_

#include <array>
#include <cstdint>

#include "hotset/base/units.h"
#include "hotset/lanes/planned_lookup.h"

namespace hotset::engine {

struct LaneTotals {
  Bytes uploaded;
  Bytes filled;
  Bytes streamed;
  Bytes unused;  // copied ahead of the routing, which then did not ask for it
  Bytes cpu_read;
  // From the first copy of a lookup to the last one, of the lookups whose copies were timed: on a
  // virtual clock all, else some.
  double timed_upload_us = 0;
  Bytes timed_upload;
  double cpu_us = 0;                                 // of the CPU lane
  double wait_us = 0;                                // of the host, for the routing
  std::array<uint64_t, lanes::kSplits> splits = {};  // lookups

  // Of all uploads, as the timed ones say; 0 if none was timed.
  double upload_us() const {
    if (timed_upload.count == 0) return 0;
    return timed_upload_us * static_cast<double>(uploaded.count) /
           static_cast<double>(timed_upload.count);
  }

  LaneTotals& operator+=(const LaneTotals& other) {
    uploaded += other.uploaded;
    filled += other.filled;
    streamed += other.streamed;
    unused += other.unused;
    cpu_read += other.cpu_read;
    timed_upload_us += other.timed_upload_us;
    timed_upload += other.timed_upload;
    cpu_us += other.cpu_us;
    wait_us += other.wait_us;
    for (size_t i = 0; i < lanes::kSplits; ++i) splits[i] += other.splits[i];
    return *this;
  }
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_LANE_TOTALS_H_
