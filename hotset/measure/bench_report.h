// The rows of `hotset bench` as tables and files, and two files beside each other.
// Thread-compatible: pure functions.
#ifndef HOTSET_MEASURE_BENCH_REPORT_H_
#define HOTSET_MEASURE_BENCH_REPORT_H_

#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/measure/bench_options.h"

namespace hotset::measure {

// Build, machine, model and flags, a line each; the columns aligned; what they mean.
std::string bench_table(const BenchResult& result);
// The same, as a Markdown table with the lines as a list in front.
std::string bench_markdown(const BenchResult& result);
// Every number of every row, with a line of names first (RFC 4180).
std::string bench_csv(const BenchResult& result);
// An array with one object per row, each with everything (docs/benchmarking.md lists the fields).
std::string bench_json(const BenchResult& result);

// Two files of bench_json(): rows that measured the same thing beside each other, with the ratio
// and whether it is more than the noise. `name_a` and `name_b` are for messages and heads.
// Errors: kCorrupt: not such a file, naming row and field; kInvalidArgument: no row in common.
Result<std::string> compare_bench(const std::string& name_a, const std::string& json_a,
                                  const std::string& name_b, const std::string& json_b,
                                  BenchFormat format);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_BENCH_REPORT_H_
