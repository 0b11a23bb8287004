#include "hotset/measure/model_options.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "hotset/engine/run/engine_settings.h"
#include "hotset/measure/thread_search.h"

namespace hotset::measure {
namespace {

Settings<ModelOptions> make_settings() {
  using Options = ModelOptions;
  Settings<Options> table = {setting<Options>(
      {.name = "device",
       .help = "Device for attention and routing: a name from --list-devices, "
               "emu[:key=value,...] (an emulated device), auto (the first GPU) or none"},
      [](auto& o) -> auto& { return o.device; })};
  std::ranges::move(settings_of_part<Options>(engine::engine_settings(),
                                              [](auto& o) -> auto& { return o.engine; }),
                    std::back_inserter(table));
  table.push_back(setting<Options>(
      {.name = "stats",
       .help = "Print what the cache did, at the end and whenever SIGUSR1 arrives"},
      [](auto& o) -> auto& { return o.stats; }));
  table.push_back(
      setting<Options>({.name = "moe-cache-trace",
                        .help = "Write the routed experts as a trace (MCT1) for `hotset replay`",
                        .value_name = "FILE"},
                       [](auto& o) -> auto& { return o.trace_out; }));
  table.push_back(setting<Options>(
      {.name = "profile",
       .help = "Write what ran when on which lane, as a Chrome trace (ui.perfetto.dev opens it)",
       .value_name = "FILE"},
      [](auto& o) -> auto& { return o.profile_out; }));
  return table;
}

}  // namespace

const Settings<ModelOptions>& model_settings() {
  static const Settings<ModelOptions> table = make_settings();
  return table;
}

Result<std::string> choose_device(const std::string& value) {
  if (value == "none" || value == "cpu" || value == "CPU") return std::string();
  if (value != "auto") return value;
  HOTSET_TRY(const std::vector<device::DeviceInfo> devices, device::list_devices());
  return devices.empty() ? std::string() : devices.front().name;
}

Result<engine::EngineOptions> engine_options(const ModelOptions& options) {
  HOTSET_RETURN_IF_ERROR(check_settings(model_settings(), options));
  warn_of_threads("--threads", options.engine.n_threads);
  return options.engine;
}

}  // namespace hotset::measure
