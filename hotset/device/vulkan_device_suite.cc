// The device suite on Vulkan: Mesa's llvmpipe where there is no GPU.
#include "hotset/device/device_testing.h"

namespace hotset::device {
namespace {

INSTANTIATE_TEST_SUITE_P(Vulkan, DeviceSuite, testing::Values("Vulkan0"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace hotset::device
