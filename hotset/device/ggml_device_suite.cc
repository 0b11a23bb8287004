// The device suite on what ggml offers: Vulkan (Mesa's llvmpipe where there is no GPU), and the CPU
// backend in the place of a device that has neither events nor asynchronous work.
#include "hotset/device/device_testing.h"

namespace hotset::device {
namespace {

INSTANTIATE_TEST_SUITE_P(Ggml, DeviceSuite, testing::Values("Vulkan0", "CPU"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace hotset::device
