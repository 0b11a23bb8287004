#include "hotset/measure/thread_search.h"

#include <algorithm>
#include <set>
#include <string>

#include "hotset/base/error.h"
#include "hotset/base/log.h"
#include "hotset/base/usable_cpus.h"

namespace hotset::measure {

CoreCount core_count() {
  const UsableCpus cpus = usable_cpus();
  return {.n_cores = cpus.n_cores, .n_logical = cpus.n_cpus};
}

void warn_of_threads(std::string_view flag, int n_threads) {
  static std::set<int> said;
  const std::string warning = threads_warning(flag, n_threads, usable_cpus());
  if (!warning.empty() && said.insert(n_threads).second) log_warning("{}", warning);
}

int fewest_threads(std::span<const ThreadTrial> trials) {
  HOTSET_CHECK(!trials.empty());
  const double most_ms = std::ranges::min(trials, {}, &ThreadTrial::ms_per_token).ms_per_token *
                         (1 + kMeasuredTolerance);
  int fewest = 0;
  for (const ThreadTrial& trial : trials) {
    if (trial.ms_per_token > most_ms) continue;
    fewest = fewest == 0 ? trial.n_threads : std::min(fewest, trial.n_threads);
  }
  return fewest;
}

std::optional<int> next_thread_trial(std::span<const ThreadTrial> trials, const CoreCount& cores) {
  const auto is_open = [&](int n) {
    return std::ranges::find(trials, n, &ThreadTrial::n_threads) == trials.end();
  };
  for (const int n : {cores.n_cores, cores.n_cores - 1, cores.n_cores / 2}) {
    if (n >= 1 && is_open(n)) return n;
  }
  const int fewest = fewest_threads(trials);
  int slower = 0;  // the most of those that are fewer, and slower
  for (const ThreadTrial& trial : trials) {
    if (trial.n_threads < fewest) slower = std::max(slower, trial.n_threads);
  }
  if (slower == 0) {
    if (fewest > 1) return fewest / 2;
  } else if (fewest <= cores.n_cores && fewest - slower > std::max(1, cores.n_cores / 8)) {
    return (fewest + slower) / 2;
  }
  const bool needs_all = fewest == cores.n_cores;
  if (needs_all && cores.n_logical > cores.n_cores && is_open(cores.n_logical)) {
    return cores.n_logical;
  }
  return std::nullopt;
}

}  // namespace hotset::measure
