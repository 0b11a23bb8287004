// A device that computes graphs and has memory of its own: a GPU that a ggml backend offers, or the
// emulated one. The engine sees only this, and takes the part that it needs: the memory, the
// queues or the clock.
// Thread-compatible: one thread drives a device, event waits included.
#ifndef HOTSET_DEVICE_DEVICE_H_
#define HOTSET_DEVICE_DEVICE_H_

#include <memory>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/device/device_memory.h"
#include "hotset/device/device_queues.h"
#include "hotset/device/lane_clock.h"
#include "hotset/device/profile.h"

namespace hotset::device {

class Device : public DeviceMemory, public DeviceQueues, public LaneClock {
 public:
  ~Device() override = default;

  Device* device() final { return this; }
};

// All devices of this machine that could be opened, without the emulated one. Errors: kDevice.
Result<std::vector<DeviceInfo>> list_devices();

struct DeviceOptions {
  int n_threads = 1;           // kernel threads of an emulated device
  bool test_overlap = true;    // find out whether copies overlap with compute; takes well under 1 s
  Profile* profile = nullptr;  // records the queues' entries there; must outlive the device
};

// Opens "NAME" as list_devices() gives it, or "emu[:key=value,...]" (emulated_device.h).
// Errors: kNotFound (the message lists the names), kInvalidArgument (a key or value of emu),
// kDevice.
Result<std::unique_ptr<Device>> open_device(std::string_view spec, const DeviceOptions& options);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_DEVICE_H_
