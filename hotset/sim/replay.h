// Replays a trace through the cache that the engine uses, and counts.
#ifndef HOTSET_SIM_REPLAY_H_
#define HOTSET_SIM_REPLAY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/cache/cache_counts.h"
#include "hotset/lanes/cache_rules.h"
#include "hotset/lanes/planned_lookup.h"
#include "hotset/trace/reader.h"

namespace hotset::sim {

// Opens the trace at its start. Called once per pass: offline bounds need two.
using TraceOpener = std::function<Result<trace::TraceReader>()>;

// What of a replay counts.
struct CountRules {
  // First tokens of each layer, replayed but not counted; 0 or more. None: 100, or 0 with
  // compat_zero_slots.
  std::optional<int64_t> skip_tokens = {};
  int32_t max_counted_tokens = INT32_MAX;  // lookups of more tokens are replayed but not counted
  // Honour the limits of the reference implementation (reference_rules.h), for its exact counts: no
  // prefills, no fills. Not with share auto.
  bool compat_zero_slots = false;

  int64_t n_skipped() const { return skip_tokens.value_or(compat_zero_slots ? 0 : 100); }
};

struct ReplayOptions {
  lanes::CacheRules rules = {};
  std::vector<int64_t> slots = {};  // of each group of the trace, 0 for one that is not cached
  CountRules counted = {};
  // For the policy `static`: uses of each expert of each group, [n_groups][n_experts].
  std::span<const std::vector<uint64_t>> profile = {};
  lanes::PlanInterceptor* interceptor = nullptr;  // sees every decision
  const std::atomic<bool>* cancelled = nullptr;   // set by another thread or a signal to stop
  // Told how many bytes of the trace were read since the last call. Called now and then.
  std::function<void(uint64_t n_bytes)> progress = {};
};

// What the lookups after the skipped tokens were, as they were planned.
struct ReplayResult {
  std::vector<int64_t> slots;  // of each group; all experts for `unbounded`
  // Lookups that the cache had no part in, of groups without slots, count with all their experts
  // for the CPU; with compat_zero_slots those that the reference leaves out count as lookups only.
  cache::CacheCounts counts;
  int64_t tokens = 0;            // of the layer that had the most
  int64_t bypassed_lookups = 0;  // that the cache had no part in
  double modelled_us = 0;        // time of the experts, one lookup after the other

  // Misses that were copied: into a slot or, in prefills, through staging.
  int64_t uploads() const { return static_cast<int64_t>(counts.uploads + counts.streamed); }
  // Of these, and of fills.
  Bytes upload_bytes() const {
    return counts.uploaded_bytes + counts.streamed_bytes + counts.filled_bytes;
  }
  double hit_rate() const { return counts.hit_rate(); }
  double upload_gib_per_token() const;
  double fill_gib_per_token() const;
  double cpu_gib_per_token() const;
  double modelled_ms_per_token() const;
};

// Replays the whole trace. Memory: the cache's tables; for a policy that needs the future also 4
// bytes for each distinct expert of each lookup, up to twice that while it is built.
// Errors: those of the reader, the cache and the policy; kInvalidArgument: an option out of range,
// slots or profile of another number of groups, nothing left to count; kCancelled.
// Thread-safe: each call works for itself; `open` and `progress` must be safe to call.
Result<ReplayResult> replay(const TraceOpener& open, const ReplayOptions& options);

}  // namespace hotset::sim

#endif  // HOTSET_SIM_REPLAY_H_
