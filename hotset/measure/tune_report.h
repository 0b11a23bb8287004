// What `hotset tune` found, for people and programs.
// Thread-compatible: pure functions.
#ifndef HOTSET_MEASURE_TUNE_REPORT_H_
#define HOTSET_MEASURE_TUNE_REPORT_H_

#include <string>

#include "hotset/base/units.h"
#include "hotset/measure/tune_options.h"

namespace hotset::measure {

// "4096", "3.015625": what --moe-cache-mib takes, exactly.
std::string cache_mib_text(Bytes cache);

// Where the experts should be: "mmap" or "pinned"; that of the runs where nothing was compared, and
// mmap without a device.
std::string recommended_load_mode(const TuneOutcome& outcome);

// The threads and the device of the recommendation.
int recommended_threads(const TuneOutcome& outcome);
std::string recommended_device(const TuneOutcome& outcome);

// The command line of the recommendation. Requires: outcome.chosen.
std::string tune_command_line(const TuneOutcome& outcome);

// Measured speeds, the fit and its error, the predicted table, whole layers, the recommendation,
// predicted against measured.
std::string tune_text(const TuneOutcome& outcome);
std::string tune_markdown(const TuneOutcome& outcome);
std::string tune_json(const TuneOutcome& outcome);
// A page without outside requests, with the curves.
std::string tune_html(const TuneOutcome& outcome);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_TUNE_REPORT_H_
