// Finds out whether a device's copies run while it computes: a graph and an upload are timed alone
// and together.
#ifndef HOTSET_DEVICE_OVERLAP_PROBE_H_
#define HOTSET_DEVICE_OVERLAP_PROBE_H_

#include "hotset/base/error.h"
#include "hotset/device/device.h"

namespace hotset::device {

// Takes about 50 ms on a GPU, at most half a second beside what the driver takes to compile one
// small shader; a device too slow for that stays untested. Requires: an idle device with a real
// clock. Errors: those of the device.
Result<Overlap> probe_overlap(Device& device);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_OVERLAP_PROBE_H_
