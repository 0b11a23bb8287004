// Measures: one model, every combination of the lists of `hotset bench`.
// Thread-compatible.
#ifndef HOTSET_MEASURE_BENCH_RUN_H_
#define HOTSET_MEASURE_BENCH_RUN_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/run/engine.h"
#include "hotset/measure/bench_options.h"
#include "hotset/measure/bench_tokens.h"

namespace hotset::measure {

// The combinations, in the order of their rows: device, threads, ubatch, cache size, share, then
// what is measured. Without a device, sizes and shares make no difference and are left out.
// Errors: kInvalidArgument (an empty list, a number out of range, nothing to measure); of the
// devices.
Result<std::vector<BenchCase>> bench_cases(const BenchOptions& options);

// Names of devices that were taken apart at their commas: "emu:mib=64", "us=1" are one.
std::vector<std::string> join_device_specs(std::vector<std::string> parts);

// Told before a case is measured: its number and theirs, and what it is.
using BenchProgress = std::function<void(size_t index, size_t n, const BenchCase& what)>;

// Measures them. The model is loaded once for each device, number of threads, size of ubatches, and
// once more where there are sizes of 0 (without a cache the CPU may rearrange the experts); sizes
// and shares are changed in the loaded one. Times are those of the device's clock.
// Errors: those of bench_cases(), of loading and of decoding. A combination for which there is not
// enough memory is left out with a warning; an error if that leaves none.
Result<BenchResult> run_bench(const BenchOptions& options, const BenchProgress& progress = {});

// --- What the tuner shares

// The rates that were found at the start, or are assumed (--moe-cache-rates); 0 where unknown.
measure::MachineRates lane_rates(const engine::Engine& engine);

// Microseconds on the clock by which the engine's work is timed: its device's.
double now_us(const engine::Engine& engine);

// "tg128 @ d1024 x 4", "pp512".
std::string test_name(const BenchCase& what);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_BENCH_RUN_H_
