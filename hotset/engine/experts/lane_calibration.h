// Measures the lanes at start, each alone and two of them together, in well under a second: what
// the chooser goes by before the first lookup.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_EXPERTS_LANE_CALIBRATION_H_
#define HOTSET_ENGINE_EXPERTS_LANE_CALIBRATION_H_

#include <cstdint>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/device/backend.h"
#include "hotset/device/device.h"
#include "hotset/engine/experts/cached_experts.h"
#include "hotset/engine/experts/cpu_lane.h"
#include "hotset/engine/run/device_graphs.h"

namespace hotset::engine {

// What is measured with, and a layer of each group to measure.
struct CalibrationSetup {
  struct Layer {
    int64_t layer = 0;
    size_t parity = 0;  // of its segment
  };
  device::Device& device;
  device::Backend& cpu;
  CpuLane& lane;
  DeviceGraphs& graphs;
  CachedExperts& cache;
  int64_t experts_per_token = 0;
  std::vector<Layer> layers;  // one of each group
};

// Feeds the lane models of `cache`. Overwrites slots: call before the first lookup.
// Returns what the host waits for an event of an idle device, in microseconds.
// Errors: kDevice.
Result<double> calibrate_lanes(const CalibrationSetup& setup);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_LANE_CALIBRATION_H_
