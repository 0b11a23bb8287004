// What every command that computes with a model is told.
// Thread-compatible: plain values.
#ifndef HOTSET_MEASURE_MODEL_OPTIONS_H_
#define HOTSET_MEASURE_MODEL_OPTIONS_H_

#include <string>

#include "hotset/base/error.h"
#include "hotset/base/setting.h"
#include "hotset/engine/run/engine.h"

namespace hotset::measure {

struct ModelOptions {
  std::string model = {};
  std::string device = "auto";  // a device's name, emu[:...], auto (the first GPU) or none
  // Its device is empty until choose_device() was asked.
  engine::EngineOptions engine = {.cache_bytes = std::nullopt};
  std::string profile_out = {};  // Chrome trace file to write; empty: none
  bool stats = false;            // the cache's statistics at the end and on SIGUSR1
  std::string trace_out = {};    // routing trace to write (MCT1); empty: none
};

// All but the model's file.
const Settings<ModelOptions>& model_settings();

// Checked. Errors: kInvalidArgument, naming the flag, the value and what was expected.
Result<engine::EngineOptions> engine_options(const ModelOptions& options);

// The device that a --device value means; empty: the CPU alone. Errors: kDevice.
Result<std::string> choose_device(const std::string& value);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_MODEL_OPTIONS_H_
