// From a trace to a cache: the groups and slots that its header describes, and what its routing
// says about each expert. Thread-compatible: pure functions.
#ifndef HOTSET_SIM_TRACE_CACHE_H_
#define HOTSET_SIM_TRACE_CACHE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/cache/group.h"
#include "hotset/policy/policy.h"
#include "hotset/trace/reader.h"
#include "hotset/trace/trace.h"

namespace hotset::sim {

// The cache's description of a group of a trace, its layers in ascending order.
// Requires: validate(header) is ok for the header that `group` is of.
cache::GroupSpec group_spec(const trace::TraceGroup& group);

// For each layer number in [0, n_layer) the ExpertIndex of its expert 0 in its group; -1 for a
// layer without a group.
std::vector<policy::ExpertIndex> first_expert_by_layer(const trace::TraceHeader& header);

// Slots of each group for `budget`, divided as the header says. `n_zero`: zero slots of the
// reference implementation, else 0.
// Errors: kInvalidArgument: budget below 0, or a group that a cache does not accept.
Result<std::vector<int64_t>> slots_for_trace(const trace::TraceHeader& header, Bytes budget,
                                             int32_t n_zero);

// How often each expert of each group was selected, once per lookup: [n_groups][n_experts].
// Reads to the end of the trace. Errors: those of the reader.
Result<std::vector<std::vector<uint64_t>>> count_uses(trace::TraceReader& reader);

}  // namespace hotset::sim

#endif  // HOTSET_SIM_TRACE_CACHE_H_
