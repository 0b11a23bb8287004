#include "hotset/device/device.h"

#include "hotset/base/log.h"
#include "hotset/device/emulated_device.h"
#include "hotset/device/ggml_device.h"

namespace hotset::device {

Result<std::vector<DeviceInfo>> list_devices() {
  HOTSET_TRY(const std::vector<ggml_backend_dev_t> devices, find_ggml_devices());
  std::vector<DeviceInfo> infos;
  for (ggml_backend_dev_t device : devices) {
    if (auto opened = open_ggml_device(device, {}); opened) {
      infos.push_back((*opened)->info());
    } else {
      log_warning("{}", opened.error().message);
    }
  }
  return infos;
}

Result<std::unique_ptr<Device>> open_device(std::string_view spec, const DeviceOptions& options) {
  if (spec == "emu" || spec.starts_with("emu:")) {
    HOTSET_TRY(const EmulatedOptions emulated, parse_emulated_spec(spec));
    return open_emulated_device(emulated, options);
  }
  HOTSET_TRY(const std::vector<ggml_backend_dev_t> devices, find_ggml_devices());
  std::string names;
  for (ggml_backend_dev_t device : devices) {
    const std::string_view name = ggml_backend_dev_name(device);
    if (name == spec) return open_ggml_device(device, options);
    names += fmt::format("{}, ", name);
  }
  return make_error(ErrorCode::kNotFound, "device '{}' does not exist, expected one of: {}emu",
                    spec, names);
}

}  // namespace hotset::device
