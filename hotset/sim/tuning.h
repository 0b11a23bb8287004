// From measured runs and the routing that they had to the setting that is best: the time model is
// fitted to the runs, the routing is replayed with other cache sizes and shares, and what the model
// makes of the replays' bytes is the prediction.
//
// A fixed share is predicted by sim::TimeModel. Share auto splits each lookup anew, which that
// model does not know: it has a line of its own, ms = base + slope * GiB of misses per token,
// through the runs with share auto.
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_SIM_TUNING_H_
#define HOTSET_SIM_TUNING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/lanes/cache_rules.h"
#include "hotset/sim/replay.h"
#include "hotset/sim/time_model.h"

namespace hotset::sim {

// A measured run with a cache. Means over its tokens, the first ones left out.
struct TuneRun {
  Bytes cache;  // budget, as --moe-cache-mib; above 0
  lanes::CpuShare share = 0;
  double ms_per_token = 0;
  double up_gib = 0;   // uploaded for lookups, without fills
  double cpu_gib = 0;  // computed by the CPU lane
  double hit_rate = 0;

  bool operator==(const TuneRun&) const = default;
};

struct TuneOptions {
  std::vector<TuneRun> runs = {};
  // What every run computed: no cache, all experts on the CPU. 0: not measured.
  double no_cache_ms_per_token = 0;
  // The routing of the runs. All have computed the same tokens.
  TraceOpener trace = {};
  lanes::CacheRules rules = {};  // of the runs; its share is that of each of them
  CountRules counted = {.skip_tokens = 0,
                        .max_counted_tokens = 1};  // of the trace, as the runs count
  // What is predicted: every combination. `auto` only where a run has it. With compat_zero_slots no
  // size with which the reference leaves out lookups that count.
  std::vector<Bytes> table_sizes = {};
  std::vector<lanes::CpuShare> table_shares = {};
  double max_error = 0.10;        // of the fit's worst run, above which nothing is recommended
  double share_tolerance = 0.05;  // the lowest share within this of the fastest is recommended
  const std::atomic<bool>* cancelled = nullptr;
  std::function<void(double part)> progress = {};
};

struct TunePrediction {
  Bytes cache;
  lanes::CpuShare share = 0;
  std::vector<int64_t> slots = {};  // of each group
  double hit_rate = 0;              // of the replay, as the following
  double up_gib = 0;
  double cpu_gib = 0;
  double ms_per_token = 0;  // predicted

  double tokens_per_s() const { return ms_per_token > 0 ? 1000 / ms_per_token : 0; }
};

// The same memory spent on all experts of as many layers as it holds; the CPU computes the others.
struct WholeLayers {
  Bytes cache;
  int64_t n_layers = 0;
  double hit_rate = 0;
  double ms_per_token = 0;

  double tokens_per_s() const { return ms_per_token > 0 ? 1000 / ms_per_token : 0; }
};

// ms = base_ms + ms_per_gib * GiB of misses; for share auto.
struct AutoLine {
  double base_ms = 0;
  double ms_per_gib = 0;
  double worst_error = 0;  // relative, of a run
};

// How a replay of a run's setting compares with the run.
struct ReplayCheck {
  double replayed_hit_rate = 0;
  double predicted_ms_per_token = 0;
};

struct TuneResult {
  std::vector<sim::TimedRun> timed;  // the runs with a fixed share, as they were fitted
  std::optional<sim::TimeModelFit> fit;
  std::optional<AutoLine> auto_line;
  std::vector<ReplayCheck> checks;    // by run; empty without a fit
  std::vector<TunePrediction> table;  // by size, then share; empty without a fit
  std::vector<WholeLayers> layers;    // by size
  std::optional<size_t> recommended;  // in `table`
  bool no_cache_is_faster = false;    // than everything in `table`: then nothing is recommended
  std::string why_not = {};           // nothing is recommended; empty if something is
};

// The replay of one setting, with the options' trace, rules. `slots`: where to leave the
// slots of each group; null: nowhere. Errors: as slots_for_trace() and replay().
Result<ReplayResult> replay_setting(const TuneOptions& options, const trace::TraceHeader& header,
                                    Bytes cache, lanes::CpuShare share,
                                    std::vector<int64_t>* slots);

// Errors: kInvalidArgument (a number out of its range, no size, no share), those of replay(),
// kCancelled. Runs that do not fit are no error: `why_not` says why, with the numbers.
Result<TuneResult> tune(const TuneOptions& options);

// The largest size not above `size` that a flag can say exactly: whole MiB from 16 MiB on, else a
// multiple of 16 KiB.
Bytes round_cache_size(Bytes size);

// Cache sizes for a table: about `n` from what gives every group `k` slots to `most`, among them
// `also`. Rounded, except `most`.
std::vector<Bytes> tune_sizes(Bytes least, Bytes most, size_t n, const std::vector<Bytes>& also);

}  // namespace hotset::sim

#endif  // HOTSET_SIM_TUNING_H_
