// The limits of the implementation whose counts are the reference for class_lru
// (../shared/golden/README.md, "policy/"). Its device keeps zero-filled slots for the pairs left to
// the CPU, and it plans only lookups that surely fit. hotset has neither limit; replays honour them
// when they are compared with the reference.
#ifndef HOTSET_SIM_REFERENCE_RULES_H_
#define HOTSET_SIM_REFERENCE_RULES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hotset/lanes/lookup_planner.h"
#include "hotset/trace/trace.h"

namespace hotset::sim {

// Zero slots of the reference for a CPU share: min(k, 64) above 0, else none.
int32_t reference_zero_slots(double share, int32_t k);

// Whether the reference leaves the lookup to the CPU whole, without touching the cache: the group
// is not cached, more than 32 tokens, or possibly more experts than slots.
bool reference_bypasses(const trace::TraceLookup& lookup, int64_t n_expert, int64_t n_slots);

// Keeps of the experts that were chosen for the CPU lane those that the zero slots allow: each
// takes the lowest zero slot that no token selecting it uses yet; one for which there is none below
// n_zero changes places with the last expert not yet tried, and is uploaded.
// Thread-compatible. Allocates only when a lookup is larger than all before.
class ZeroSlotLimit final : public lanes::CpuLimit {
 public:
  explicit ZeroSlotLimit(int32_t n_zero) : n_zero_(n_zero) {}

  size_t apply(std::span<const int32_t> ids, int32_t k, std::span<int32_t> experts) override;

 private:
  // The lowest zero slot that no token selecting `expert` uses; up to the tokens' k.
  int32_t lowest_free_slot(std::span<const int32_t> ids, int32_t k, int32_t expert);

  int32_t n_zero_;
  std::vector<uint64_t> used_;   // [n_tokens, words] bit z: the token uses zero slot z
  std::vector<int32_t> tokens_;  // that select the expert
  size_t words_ = 0;             // of the bits of one token
};

}  // namespace hotset::sim

#endif  // HOTSET_SIM_REFERENCE_RULES_H_
