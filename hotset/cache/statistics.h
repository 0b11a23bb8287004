// What the cache counted, per layer and per batch class.
// Thread-compatible: plain values.
#ifndef HOTSET_CACHE_STATISTICS_H_
#define HOTSET_CACHE_STATISTICS_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace hotset {

// Lookups by their number of tokens.
enum class BatchClass : uint8_t { kOne, k2To8, k9To32, kMore };
inline constexpr int kBatchClasses = 4;

BatchClass batch_class(int32_t n_tokens);
// "1", "2-8", "9-32", "more".
std::string_view batch_class_name(BatchClass batch);

// Experts are distinct experts per lookup: one that many tokens select counts once.
// hits + uploads + cpu + streamed = selected.
struct LookupCounts {
  uint64_t lookups = 0;
  uint64_t tokens = 0;
  uint64_t pairs = 0;      // (token, expert) pairs
  uint64_t hit_pairs = 0;  // of them, pairs of resident experts
  uint64_t selected = 0;
  uint64_t hits = 0;
  uint64_t uploads = 0;        // copied into a slot for the lookup, prefill's inserts included
  uint64_t cpu = 0;            // left to the CPU lane
  uint64_t streamed = 0;       // prefill: computed without a slot (staging or CPU)
  uint64_t evictions = 0;      // by uploads and by fills
  uint64_t fills = 0;          // queued
  uint64_t fills_entered = 0;  // completed and resident
  uint64_t fills_dropped = 0;  // cancelled, or the expert was uploaded meanwhile

  LookupCounts& operator+=(const LookupCounts& other);
  LookupCounts& operator-=(const LookupCounts& other);
  bool operator==(const LookupCounts&) const = default;
  // hits / selected, 0 if nothing was selected.
  double hit_rate() const;

  static const std::array<uint64_t LookupCounts::*, 13> kFields;
};

// All counters above.
inline constexpr std::array<uint64_t LookupCounts::*, 13> LookupCounts::kFields = {
    &LookupCounts::lookups,      &LookupCounts::tokens,   &LookupCounts::pairs,
    &LookupCounts::hit_pairs,    &LookupCounts::selected, &LookupCounts::hits,
    &LookupCounts::uploads,      &LookupCounts::cpu,      &LookupCounts::streamed,
    &LookupCounts::evictions,    &LookupCounts::fills,    &LookupCounts::fills_entered,
    &LookupCounts::fills_dropped};
static_assert(sizeof(LookupCounts) == sizeof(uint64_t) * LookupCounts::kFields.size());

struct LayerStatistics {
  std::array<LookupCounts, kBatchClasses> by_batch;

  LookupCounts& operator[](BatchClass batch) { return by_batch[static_cast<size_t>(batch)]; }
  const LookupCounts& operator[](BatchClass batch) const {
    return by_batch[static_cast<size_t>(batch)];
  }
  LookupCounts total() const;
};

}  // namespace hotset

#endif  // HOTSET_CACHE_STATISTICS_H_
