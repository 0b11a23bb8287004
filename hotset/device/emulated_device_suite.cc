// The device suite on the emulated device, with late copies and without.
#include "hotset/device/device_testing.h"

namespace hotset::device {
namespace {

const std::array<std::string, 5> kSpecs = {
    "emu:mib=64,clock=virtual",
    "emu:mib=64,clock=virtual,late_us=200,late_seed=3",
    "emu:mib=64,us=0,gbps=100,clock=real",
    "emu:mib=64,us=2,gbps=100,clock=real,late_us=50,late_seed=4",
    "emu:mib=64,clock=virtual,refuse_pinned=1",
};
constexpr std::array kNames = {"virtual", "virtual_late", "real", "real_late", "pageable"};

INSTANTIATE_TEST_SUITE_P(Emulated, DeviceSuite, testing::ValuesIn(kSpecs),
                         [](const auto& tested) { return kNames[tested.index]; });

}  // namespace
}  // namespace hotset::device
