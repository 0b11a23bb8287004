// The rows of a replay as text: for people, spreadsheets, documents and programs.
// Thread-compatible: pure functions.
#ifndef HOTSET_REPORT_REPLAY_REPORT_H_
#define HOTSET_REPORT_REPLAY_REPORT_H_

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "hotset/sim/matrix.h"

namespace hotset::report {

// "0", "0.5", "auto".
std::string share_text(lanes::CpuShare share);
// 0, 0.5, "auto".
nlohmann::ordered_json share_json(lanes::CpuShare share);

// The name of a trace's file without folder and extension.
std::string trace_name(const std::string& path);

// Columns aligned for a terminal, one line per row.
std::string replay_table(std::span<const sim::MatrixRow> rows);

// What the columns of the table mean, and by which rates the times were modelled.
std::string replay_legend(const sim::MatrixOptions& options);

// A Markdown table of the same columns.
std::string replay_markdown(std::span<const sim::MatrixRow> rows);

// Every number of every row, with a line of names first (RFC 4180).
std::string replay_csv(std::span<const sim::MatrixRow> rows);

// An array with one object per row: trace, policy, cache_mib, share, slots (array), lookups, hits,
// uploads, cpu, evictions, bypassed_lookups, hit_rate, upload_gib_per_token,
// cpu_gib_per_token, belady_hit_rate.
std::string replay_json(std::span<const sim::MatrixRow> rows);

}  // namespace hotset::report

#endif  // HOTSET_REPORT_REPLAY_REPORT_H_
