// How many CPU threads are enough: which numbers are worth a measurement, and which of those that
// were measured to take. Reading experts is bound by memory, so that fewer threads than cores are
// often as fast, and one thread per core may be slower: one of them also drives the device.
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_MEASURE_THREAD_SEARCH_H_
#define HOTSET_MEASURE_THREAD_SEARCH_H_

#include <optional>
#include <span>
#include <string_view>

namespace hotset::measure {

// What a process may use: both at least 1.
struct CoreCount {
  int n_cores = 1;    // physical ones
  int n_logical = 1;  // threads of the hardware
};

// As the system allows this process.
CoreCount core_count();

// Logs a warning if `flag` asks for more threads than this process may use CPUs, once for each
// number: a model may be loaded many times. From one thread.
void warn_of_threads(std::string_view flag, int n_threads);

struct ThreadTrial {
  int n_threads = 0;
  double ms_per_token = 0;

  bool operator==(const ThreadTrial&) const = default;
};

// Two measurements of one thing are this far apart anyway: what differs by no more is taken for
// equally fast.
inline constexpr double kMeasuredTolerance = 0.025;

// The next number of threads to measure: all cores, one less, and half; half of the fewest while
// that is as fast as the fastest; numbers between the fewest that are as fast and those that are
// not; more than there are cores where fewer are slower. None: it is known.
std::optional<int> next_thread_trial(std::span<const ThreadTrial> trials, const CoreCount& cores);

// The fewest threads as fast as the fastest. Requires: a trial.
int fewest_threads(std::span<const ThreadTrial> trials);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_THREAD_SEARCH_H_
