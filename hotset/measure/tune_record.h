// What `hotset tune` has measured, as a file (docs/formats/tune-record.md): so that an interrupted
// call goes on where it was, and a second one is quick. The trace of the routing lies beside it.
// Thread-compatible: pure functions.
#ifndef HOTSET_MEASURE_TUNE_RECORD_H_
#define HOTSET_MEASURE_TUNE_RECORD_H_

#include <string>

#include "hotset/base/error.h"
#include "hotset/measure/tune_options.h"

namespace hotset::measure {

std::string tune_record_json(const TuneRecord& record);

// Errors: kCorrupt, naming `name`, the field, what was found and what was expected.
Result<TuneRecord> parse_tune_record(const std::string& name, const std::string& json);

// Path without extension of the record of `key` in `folder`, which is created; empty: "hotset/tune"
// in XDG_CACHE_HOME or ~/.cache. Errors: kIo.
Result<std::string> tune_record_path(const std::string& folder, const std::string& key);

// The record at `path`.json if it is of `key` and its trace is there; else an empty one of `key`,
// and with a warning if the file is damaged.
TuneRecord load_tune_record(const std::string& path, const std::string& key);

// Replaces the file whole: a reader finds the old one or the new one. Errors: kIo.
Status save_tune_record(const std::string& path, const TuneRecord& record);

// The settings as a configuration file that --config reads. Requires: outcome.chosen.
std::string tune_config(const TuneOutcome& outcome, const TuneCommandOptions& options);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_TUNE_RECORD_H_
