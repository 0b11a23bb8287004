// What a user may say of `hotset bench` beside what every command takes (model_options.h).
// Thread-safe: constant data.
#ifndef HOTSET_MEASURE_BENCH_SETTINGS_H_
#define HOTSET_MEASURE_BENCH_SETTINGS_H_

#include "hotset/base/setting.h"
#include "hotset/measure/bench_options.h"

namespace hotset::measure {

// The lists stand for settings of one value that other commands have, by the same names.
const Settings<BenchOptions>& bench_settings();

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_BENCH_SETTINGS_H_
