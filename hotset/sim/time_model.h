// What a token takes, from what it moves, fitted to measured runs:
//   ms/token = base + up_ms * up_gib + cpu_ms * cpu_gib + split_ms * (share > 0)
//              + overlap * min(up_gib, cpu_gib)
// Overlap below 0 is time saved by running both lanes at once, above 0 time lost by it.
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_SIM_TIME_MODEL_H_
#define HOTSET_SIM_TIME_MODEL_H_

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::sim {

// One measured run; all numbers are means over its tokens.
struct TimedRun {
  double up_gib = 0;        // uploaded, GiB per token, 0 or more
  double cpu_gib = 0;       // computed by the CPU lane, GiB per token, 0 or more
  double share = 0;         // of the misses that the CPU lane takes, 0 to 1
  double ms_per_token = 0;  // above 0
};

struct TimeModel {
  double base_ms = 0;
  double up_ms = 0;       // per GiB
  double cpu_ms = 0;      // per GiB
  double split_ms = 0;    // once a token where share > 0
  double overlap_ms = 0;  // per GiB of the smaller of the two

  double ms_per_token(double up_gib, double cpu_gib, double share) const;
};

struct TimeModelFit {
  TimeModel model = {};
  bool has_overlap = false;         // the overlap term was fitted; otherwise it is 0
  std::string why_no_overlap = {};  // empty if has_overlap
  bool is_physical = false;
  // Every condition that fails, with its numbers; empty if physical.
  std::string why_unphysical = {};
  std::vector<double> relative_error = {};  // per run: (predicted - measured) / measured
  size_t worst_run = 0;
  double worst_error = 0;  // |relative_error| of worst_run

  // Lines for a user: the model, each run measured and predicted, the worst error.
  std::vector<std::string> report(std::span<const TimedRun> runs) const;
};

// Physical: both rates above 0, base at least a fifth of the fastest run, the overlap (either way)
// at most the cheaper path. Empty, or what is wrong.
std::string why_unphysical(const TimeModel& model, double fastest_ms_per_token);

// Least squares of the relative errors: runs of 20 and of 200 ms count alike. First with the
// overlap term (where that says a little more than that the cheaper path is hidden completely: with
// exactly that); without it where there are too few runs for five numbers (fewer than 5), where the
// runs cannot tell it from the other terms, or where that fit is not physical.
// An unphysical fit without overlap is returned as such: the caller decides what to say.
// Errors: kInvalidArgument: a number outside its range (names run and field), fewer than 4 runs, or
// collinear runs (names the terms that the runs cannot tell apart).
Result<TimeModelFit> fit_time_model(std::span<const TimedRun> runs);

}  // namespace hotset::sim

#endif  // HOTSET_SIM_TIME_MODEL_H_
