// Tunes another program: an HTTP server that
//   - takes --moe-cache-mib N and --moe-cache-cpu-share F (and --host and --port),
//   - answers GET /health with 200 once it is ready, GET /props, and POST /completion with
//   `timings`,
//   - writes the routing to the file named by LLAMA_MOE_CACHE_TRACE (MCT1), complete when it ends,
//   - says at its end how many hits and misses its cache had ("hits = N, misses = M").
// It is started once for each run, because it cannot change its cache; the trace of each run is
// replayed by the reference's rules, which gives the bytes that its time is fitted to. What it says
// at its end is compared with the replay. Thread-compatible.
#ifndef HOTSET_MEASURE_TUNE_SERVER_H_
#define HOTSET_MEASURE_TUNE_SERVER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/measure/tune_run.h"

namespace hotset::measure {

// Requires: options.server has the program and its arguments.
// Errors: kInvalidArgument (no --max-mib; an argument that tune sets itself), kNotFound (the
// program), kIo (it does not start, answer or write its trace in time; the end of its log is in the
// message), kCorrupt (an answer, the trace), kCancelled; as sim::tune.
Result<TuneOutcome> run_tune_server(const TuneCommandOptions& options,
                                    const TuneProgress& progress);

// Hits and misses that a log names, all its lines "hits = N, misses = M" together.
std::optional<std::pair<int64_t, int64_t>> logged_hits(const std::string& log);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_TUNE_SERVER_H_
