// Which pairs of a planned lookup each lane computes, and where their experts are in the banks. A
// pair is a token's i-th expert, number token * k + i; lists are ascending.
// Allocates nothing once the largest lookup was seen. Thread-compatible.
#ifndef HOTSET_ENGINE_EXPERTS_LOOKUP_PAIRS_H_
#define HOTSET_ENGINE_EXPERTS_LOOKUP_PAIRS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/engine/experts/expert_transfers.h"
#include "hotset/lanes/planned_lookup.h"

namespace hotset::engine {

class LookupPairs {
 public:
  // Room for lookups of `n_pairs` pairs that are not streamed.
  LookupPairs(size_t n_expert, size_t n_pairs);

  // `slot_map` is that of the plan's layer, as it is after planning.
  void list(const lanes::PlannedLookup& plan, std::span<const StreamChunk> chunks,
            std::span<const int32_t> slot_map, std::span<const int32_t> ids);

  std::span<const int32_t> hits() const { return hits_; }        // of experts that were resident
  std::span<const int32_t> uploads() const { return uploads_; }  // uploaded for this lookup
  std::span<const int32_t> device() const { return device_; }    // both
  std::span<const int32_t> cpu() const { return cpu_; }
  std::span<const int32_t> chunk(size_t index) const { return chunks_[index]; }
  // Where an expert of the lookup is in the banks; kNoSlot if the CPU has it.
  int32_t slot(int32_t expert) const { return slot_of_[expert]; }

 private:
  enum class Lane : uint8_t { kHit, kUpload, kCpu, kChunk };

  std::vector<Lane> lane_of_;      // [n_expert]
  std::vector<int32_t> slot_of_;   // [n_expert]
  std::vector<int32_t> chunk_of_;  // [n_expert] of a streamed one
  std::vector<int32_t> hits_;
  std::vector<int32_t> uploads_;
  std::vector<int32_t> device_;
  std::vector<int32_t> cpu_;
  std::vector<std::vector<int32_t>> chunks_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_LOOKUP_PAIRS_H_
