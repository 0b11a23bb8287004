// New traces from old ones: a part of one, or several put together.
// Memory: one lookup of each trace that is open.
// Thread-compatible.
#ifndef HOTSET_TRACE_EDIT_H_
#define HOTSET_TRACE_EDIT_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/trace/trace.h"

namespace hotset::trace {

// What was written.
struct EditCounts {
  int64_t n_lookups = 0;
  int64_t n_ids = 0;
};

struct CutOptions {
  int64_t first_token = 0;           // of each layer; 0 or more
  int64_t n_tokens = 0;              // of each layer; 0: to the end
  std::vector<int32_t> layers = {};  // that stay; empty: all. Each one of a group of the trace
  const std::atomic<bool>* cancelled = nullptr;  // set by another thread or a signal to stop
};

// Writes to `out_path` the lookups of `in_path` whose first token is in the range. Lookups are
// never split. With `layers`, the groups and their host bytes shrink in proportion. Reading stops
// at the end of the range, so the start of a damaged trace can be saved.
// Errors: those of TraceReader and TraceWriter; kInvalidArgument, an option is out of range or
// nothing would be left; kCancelled. On error there is no new file.
Result<EditCounts> cut_trace(const std::string& in_path, const std::string& out_path,
                             const CutOptions& options);

enum class MergeMode {
  kConcatenate,  // one trace after the other: texts that follow each other
  kInterleave,   // some token steps of each in turn: users that share a machine by turns
  kBatch,        // one lookup of each becomes one of all their tokens: users served in one batch
};

struct MergeOptions {
  MergeMode mode = MergeMode::kConcatenate;
  int64_t interleave_steps = 1;  // steps of each trace per turn, for kInterleave; at least 1
  const std::atomic<bool>* cancelled = nullptr;
};

// Writes to `out_path` the lookups of all `in_paths`, whose headers must be equal. A step ends
// where the layer number does not rise. Traces may differ in length; the longer ones go on alone.
// Errors: those of TraceReader and TraceWriter; kInvalidArgument: no traces, another header (says
// which field), or, for kBatch, lookups of another layer or k at the same place; kCancelled. On
// error there is no new file.
Result<EditCounts> merge_traces(const std::vector<std::string>& in_paths,
                                const std::string& out_path, const MergeOptions& options);

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_EDIT_H_
