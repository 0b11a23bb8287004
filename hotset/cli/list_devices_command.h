// `hotset --list-devices`: the devices of this machine and what they can do, as tested.
#ifndef HOTSET_CLI_LIST_DEVICES_COMMAND_H_
#define HOTSET_CLI_LIST_DEVICES_COMMAND_H_

#include <span>
#include <string>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/base/usable_cpus.h"
#include "hotset/device/device.h"
#include "hotset/device/ggml_runtime.h"

namespace hotset::cli {

// Prints a table to stdout. Opens every device, and times a few copies on it. Errors: kDevice.
Status list_devices_command();

// The table, a line per device, then what an emulated device is.
std::string device_table(std::span<const device::DeviceInfo> devices);

// What computes on the CPU: the build of ggml's backend in use, by name, the builds that the
// machine can execute, best first, and how many CPUs there are to use.
std::string cpu_text(std::string_view variant, std::span<const device::CpuVariant> variants,
                     const UsableCpus& cpus);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_LIST_DEVICES_COMMAND_H_
