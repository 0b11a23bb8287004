// The one account of what an expert cache did: per layer and batch class, and summed. Whoever
// plans, copies and computes adds to the same record; reports, JSON and metrics go over its table
// of fields. Thread-compatible: plain values.
#ifndef HOTSET_CACHE_CACHE_COUNTS_H_
#define HOTSET_CACHE_CACHE_COUNTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "hotset/base/units.h"

namespace hotset::cache {

// Lookups by their number of tokens.
enum class BatchClass : uint8_t { kOne, k2To8, k9To32, kMore };
inline constexpr int kBatchClasses = 4;

BatchClass batch_class(int32_t n_tokens);
// "1", "2-8", "9-32", "more".
std::string_view batch_class_name(BatchClass batch);

// Experts are distinct experts per lookup: one that many tokens select counts once.
// hits + uploads + cpu + streamed = selected.
struct CacheCounts {
  uint64_t lookups = 0;
  uint64_t tokens = 0;
  uint64_t pairs = 0;      // (token, expert) pairs
  uint64_t hit_pairs = 0;  // of them, pairs of resident experts
  uint64_t selected = 0;
  uint64_t hits = 0;
  uint64_t uploads = 0;        // copied into a slot for the lookup, prefill's inserts included
  uint64_t cpu = 0;            // left to the CPU lane
  uint64_t streamed = 0;       // prefill: crossed the link without getting a slot
  uint64_t evictions = 0;      // by uploads and by fills
  uint64_t fills = 0;          // queued
  uint64_t fills_entered = 0;  // completed and resident
  uint64_t fills_dropped = 0;  // cancelled, or the expert was uploaded meanwhile

  // Lookups, by what became of their experts (lanes::Split).
  uint64_t split_hits = 0;
  uint64_t split_uploads = 0;
  uint64_t split_both = 0;
  uint64_t split_cpu = 0;
  uint64_t split_all_on_cpu = 0;
  uint64_t split_streamed = 0;
  // The same lookups, by what decided it (lanes::SplitReason).
  uint64_t why_nothing_missing = 0;
  uint64_t why_share = 0;
  uint64_t why_costs = 0;
  uint64_t why_many_tokens = 0;
  uint64_t why_most_experts = 0;
  uint64_t why_uploads_stopped = 0;
  uint64_t why_no_slots = 0;

  // Of experts. A prefill's inserts are streamed ones here.
  Bytes hit_bytes = {};
  Bytes uploaded_bytes = {};
  Bytes filled_bytes = {};
  Bytes cpu_bytes = {};  // read by the CPU lane
  Bytes streamed_bytes = {};
  Bytes unused_bytes = {};  // copied ahead of the routing, which then did not ask for it

  // From the first copy of a lookup to the last one, of the lookups whose copies were timed: on a
  // virtual clock all, else some.
  Bytes timed_upload_bytes = {};
  double timed_upload_us = 0;
  double cpu_us = 0;   // of the CPU lane
  double wait_us = 0;  // of the host, for the routing

  // hits / selected, 0 if nothing was selected.
  double hit_rate() const;
  // Of all uploads, as the timed ones say; 0 if none was timed.
  double upload_us() const;

  CacheCounts& operator+=(const CacheCounts& other);
  CacheCounts& operator-=(const CacheCounts& other);
  bool operator==(const CacheCounts&) const = default;
};

// A field of the account. All add up by their sums.
struct CountField {
  using Member = std::variant<uint64_t CacheCounts::*, Bytes CacheCounts::*, double CacheCounts::*>;

  std::string_view name;  // in JSON; what is before a '/' is an object
  std::string_view unit;  // "lookups", "tokens", "pairs", "experts", "bytes", "us"
  Member member;
  std::string_view metric = {};  // in Prometheus' form, without prefix; empty: not there
  std::string_view label = {};   // of the metric: lane="..."
};
// All fields, in the order of reports.
std::span<const CountField> count_fields();
// The field's number.
double number(const CacheCounts& counts, const CountField& field);

// The counts of a layer.
struct LayerCounts {
  std::array<CacheCounts, kBatchClasses> by_batch;

  CacheCounts& operator[](BatchClass batch) { return by_batch[std::to_underlying(batch)]; }
  const CacheCounts& operator[](BatchClass batch) const {
    return by_batch[std::to_underlying(batch)];
  }
  CacheCounts total() const;
};

}  // namespace hotset::cache

#endif  // HOTSET_CACHE_CACHE_COUNTS_H_
