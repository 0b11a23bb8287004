// A cache without contents, to find out what a candidate of crf-auto would have hit. It inserts
// every miss that finds a slot. The scores it ranks by are those of a bank that the caller keeps:
// ghosts of several candidates share it.
// Allocates nothing after construction.
// Thread-compatible.
#ifndef HOTSET_POLICY_GHOST_CACHE_H_
#define HOTSET_POLICY_GHOST_CACHE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "hotset/policy/class_lists.h"
#include "hotset/policy/crf_bank.h"
#include "hotset/policy/policy.h"
#include "hotset/policy/rank_heaps.h"

namespace hotset::policy {

// The policies that crf-auto chooses from.
enum class Candidate : uint8_t { kClassLru, kCrf2, kCrf8, kCrf32, kCrf128, kBlend };
inline constexpr size_t kCandidates = 6;

// Its name in the registry.
std::string_view candidate_name(Candidate candidate);
// What a candidate ranks by. Requires: not kClassLru, which ranks by its lists.
CrfEstimate estimate_of(Candidate candidate);

class GhostCache {
 public:
  // A ghost knows experts by indices of its own, layer_index * shape.n_expert + i; experts
  // [shape.n_experts()] has their names in `bank`. Both outlive this. Requires: a valid shape.
  GhostCache(Candidate candidate, const PolicyShape& shape, const CrfBank& bank,
             std::span<const ExpertIndex> experts);

  // A lookup uses these distinct experts, ascending, all of planned.layer_index. The bank has seen
  // the use, and not yet the advance of the clock. Returns how many are resident.
  int32_t lookup(const RankedLookup& planned, std::span<const int32_t> uses);
  // The same, but nothing is inserted.
  int32_t promote(std::span<const int32_t> uses);
  // The clock of the layer has advanced in the bank.
  void on_advance(int32_t layer_index) {
    if (heaps_) heaps_->touch(layer_index);
  }

 private:
  void insert(int32_t ghost_expert, int32_t slot);
  int32_t choose(const RankedLookup& planned, std::span<Victim> victims) const;
  float class_crf(int32_t ghost_expert) const;

  Candidate candidate_;
  const CrfBank& bank_;
  std::span<const ExpertIndex> experts_;
  int32_t n_slots_;
  // One of them, by the candidate.
  std::optional<ClassLists> lists_;
  std::optional<RankHeaps> heaps_;
  std::vector<int32_t> slot_of_;  // [n_experts]
  std::vector<uint64_t> stamps_;  // [n_slots] lookup that needs the slot
  uint64_t stamp_ = 0;
  int32_t n_filled_ = 0;  // slots [0, n_filled) are in use
  std::vector<int32_t> misses_;
  std::vector<Victim> victims_;
};

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_GHOST_CACHE_H_
