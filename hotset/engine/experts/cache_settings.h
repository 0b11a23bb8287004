// What a user may say of the expert cache (cache_options.h).
// Thread-safe: constant data.
#ifndef HOTSET_ENGINE_EXPERTS_CACHE_SETTINGS_H_
#define HOTSET_ENGINE_EXPERTS_CACHE_SETTINGS_H_

#include "hotset/base/setting.h"
#include "hotset/engine/experts/cache_options.h"

namespace hotset::engine {

// All but the size, which is the engine's (engine_settings.h).
const Settings<CacheOptions>& cache_settings();

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_CACHE_SETTINGS_H_
