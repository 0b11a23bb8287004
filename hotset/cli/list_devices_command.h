// `hotset --list-devices`: the devices of this machine and what they can do, as tested.
#ifndef HOTSET_CLI_LIST_DEVICES_COMMAND_H_
#define HOTSET_CLI_LIST_DEVICES_COMMAND_H_

#include <span>
#include <string>

#include "hotset/base/error.h"
#include "hotset/device/device.h"

namespace hotset::cli {

// Prints a table to stdout. Opens every device, and times a few copies on it. Errors: kDevice.
Status list_devices_command();

// The table, a line per device, then what an emulated device is.
std::string device_table(std::span<const device::DeviceInfo> devices);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_LIST_DEVICES_COMMAND_H_
