// A device that a ggml backend offers: Vulkan, CUDA, HIP, SYCL, Metal, RPC.
//
// With asynchronous work and events, two instances of the backend are the two queues. Copies are
// asynchronous from and to the device's own pinned memory only; any other copy waits for its queue
// and is synchronous. Without events, or without asynchronous work, every graph and every copy is
// synchronous. What is synchronous is counted as a wait.
//
// Profiles hold what the host can observe: an entry lasts from when it was queued, or when the one
// before it on its queue was known to be done, until the host learned from an event that it is
// done.
//
// What ggml throws (Vulkan does so when a device is lost) becomes the device's failure.
#ifndef HOTSET_DEVICE_GGML_DEVICE_H_
#define HOTSET_DEVICE_GGML_DEVICE_H_

#include <ggml-backend.h>

#include <memory>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/device/device.h"

namespace hotset::device {

// The GPUs that ggml found, integrated ones included, in its order. Errors: as init_ggml().
Result<std::vector<ggml_backend_dev_t>> find_ggml_devices();

// Requires: one of find_ggml_devices(), or cpu_device() for tests. Errors: kDevice, when the
// backend does not start.
Result<std::unique_ptr<Device>> open_ggml_device(ggml_backend_dev_t device,
                                                 const DeviceOptions& options);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_GGML_DEVICE_H_
