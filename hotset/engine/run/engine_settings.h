// What a user may say of an engine and its expert cache (engine_options.h).
// Thread-safe: constant data.
#ifndef HOTSET_ENGINE_RUN_ENGINE_SETTINGS_H_
#define HOTSET_ENGINE_RUN_ENGINE_SETTINGS_H_

#include "hotset/base/setting.h"
#include "hotset/engine/run/engine_options.h"

namespace hotset::engine {

// Those of the cache among them. Which device is to be found first (measure/model_options.h).
const Settings<EngineOptions>& engine_settings();

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_ENGINE_SETTINGS_H_
