// What a lookup was decided to be: where each of its experts is computed, what is copied for it and
// behind it, why, and what it should take. The engine copies what it says; the simulator counts
// what it says. Thread-compatible: plain values.
#ifndef HOTSET_LANES_PLANNED_LOOKUP_H_
#define HOTSET_LANES_PLANNED_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "hotset/cache/expert_cache.h"

namespace hotset::lanes {

// What became of the experts of a lookup.
enum class Split : uint8_t {
  kHits,      // all were resident
  kUploads,   // all missing ones were uploaded
  kBoth,      // some were uploaded, the CPU computed the others
  kCpu,       // the CPU computed all missing ones
  kAllOnCpu,  // the CPU computed everything, also resident ones
  kStreamed,  // missing ones were streamed, or computed by the CPU
};
inline constexpr size_t kSplits = 6;
// "hits", "uploads", "both", "cpu", "all on cpu", "streamed".
std::string_view split_name(Split split);
// As profiles have it: "plan: hits". A string literal.
const char* split_label(Split split);
// Where the account counts lookups of it.
uint64_t cache::CacheCounts::* split_count(Split split);

// What a split was decided by.
enum class SplitReason : uint8_t {
  kNothingMissing,  // every expert was resident
  kShare,           // a fixed share of the misses
  kCosts,           // it takes the least, by what the lanes are known to cost
  kManyTokens,      // streamed: more tokens than the limit for the cache
  kMostExperts,     // streamed: needs more than half of a layer's experts, and no slot is empty
  kUploadsStopped,  // never slower has stopped uploads
  kNoSlots,         // the layer's group is not cached
};
inline constexpr int kSplitReasons = 7;
// Where the account counts lookups of it.
uint64_t cache::CacheCounts::* reason_count(SplitReason reason);
// "nothing missing", "share", "costs", "many tokens", "most experts", "uploads stopped", "no
// slots".
std::string_view reason_name(SplitReason reason);

// Spans point into the planner and hold until its next plan(). Lists are in ascending order of
// experts where nothing else is said; no expert is in two of hits, uploads, streamed and cpu.
struct PlannedLookup {
  int32_t layer = 0;  // number in the model
  int32_t group = 0;
  int32_t n_tokens = 0;
  std::span<const cache::Hit> hits = {};        // in order of first appearance in the ids
  std::span<const cache::Upload> uploads = {};  // into slots, before they are computed
  std::span<const int32_t> streamed = {};       // cross the link without getting a slot
  std::span<const int32_t> cpu = {};            // misses for the CPU lane
  std::span<const cache::Eviction> evictions = {};
  std::span<const cache::Fill> fills = {};  // copies behind all others, best score first
  Split split = Split::kHits;
  SplitReason reason = SplitReason::kNothingMissing;
  bool is_streamed = false;  // a prefill: nothing was evicted, chunks overlap with computing
  bool all_on_cpu = false;   // the CPU computes the hits too
  double predicted_us = 0;   // from ids to result rows
  double cheapest_us = 0;    // what its cheapest split would have taken

  size_t n_selected() const { return hits.size() + n_missing(); }
  size_t n_missing() const { return n_crossing() + cpu.size(); }
  // Experts that are copied to the device for this lookup.
  size_t n_crossing() const { return uploads.size() + streamed.size(); }
};

// What the lookup adds to an account where it is carried out as planned: experts, bytes, and how
// and why it was split. Times, hit pairs and what becomes of fills are not planned.
cache::CacheCounts planned_counts(const PlannedLookup& plan, Bytes expert_bytes);

// Sees each planned lookup before it is carried out, and may change the plan: tests compare
// decisions by it, and seed faults.
class PlanInterceptor {
 public:
  virtual ~PlanInterceptor() = default;
  virtual void planned(const cache::Lookup& lookup, PlannedLookup& plan) = 0;
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_PLANNED_LOOKUP_H_
