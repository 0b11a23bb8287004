// What a user may say of `hotset tune` beside what every command takes (model_options.h).
// Thread-safe: constant data.
#ifndef HOTSET_MEASURE_TUNE_SETTINGS_H_
#define HOTSET_MEASURE_TUNE_SETTINGS_H_

#include "hotset/base/setting.h"
#include "hotset/measure/tune_options.h"

namespace hotset::measure {

const Settings<TuneCommandOptions>& tune_settings();

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_TUNE_SETTINGS_H_
