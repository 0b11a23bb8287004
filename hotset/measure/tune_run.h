// `hotset tune` from its flags to its outcome: what is measured, fitted, replayed, recommended and
// then measured again.
// Thread-compatible.
#ifndef HOTSET_MEASURE_TUNE_RUN_H_
#define HOTSET_MEASURE_TUNE_RUN_H_

#include <functional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/measure/tune_options.h"

namespace hotset::measure {

// Told what is being done.
using TuneProgress = std::function<void(const std::string& what)>;

// Errors: those of TuneMeasure, sim::tune and of the files; kUnsupported: a build that must not be
// measured, and a clock that is not virtual; kCancelled, Ctrl-C: what was measured
// is kept, and the same call goes on from there.
Result<TuneOutcome> run_tune(const TuneCommandOptions& options, const TuneProgress& progress = {});

// --- What tuning a model and tuning a server have in common

// The runs that the time model needs: shares 0, 0.5 and 0.95 with two sizes of cache, and share
// auto if `with_auto`. The larger size first.
std::vector<sim::TuneRun> planned_runs(Bytes least, Bytes most, bool with_auto);

// Fits and replays what the record has. Errors: those of sim::tune.
Result<sim::TuneResult> tune_from_record(const TuneRecord& record, Bytes least,
                                         const TuneProgress& progress);

// Measures a setting; cache 0: none. Errors: those of the measurement.
using MeasureChoice = std::function<Result<double>(Bytes cache, lanes::CpuShare share)>;

// Measures what the prediction recommends and the fastest it knows, and takes the lowest share of
// those within 2.5% of the fastest that was measured with as much cache; auto where it is the
// fastest, and no cache where nothing is faster. Fills `outcome` from its result and record.
// Errors: those of `measure`.
Status choose(TuneOutcome& outcome, const MeasureChoice& measure);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_TUNE_RUN_H_
