// The resident experts of a group in order of worth, for policies whose order within a heap never
// changes but by a use: one binary heap per layer (or one for the group), least worth at the root.
// Adding or removing an expert costs O(log residents of its heap); choosing n victims costs
// O(heaps + (n + needed slots passed over) * log), whatever the number of slots.
// Allocates nothing after construction.
// Thread-compatible, const functions included: `choose` uses scratch memory.
#ifndef HOTSET_POLICY_RANK_HEAPS_H_
#define HOTSET_POLICY_RANK_HEAPS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hotset/policy/policy.h"

namespace hotset {

class RankHeaps {
 public:
  // Heap i holds experts [i * experts_per_heap, (i + 1) * experts_per_heap). Requires: all > 0.
  RankHeaps(int32_t n_heaps, int32_t experts_per_heap, int32_t n_slots);

  bool contains(ExpertIndex expert) const { return position_[static_cast<size_t>(expert)] >= 0; }
  // Requires: not contained.
  void insert(ExpertIndex expert, int32_t slot, int64_t key);
  // Require: contained.
  void update(ExpertIndex expert, int64_t key);
  void erase(ExpertIndex expert);
  void clear();

  // The experts of the smallest key - offsets[heap], ties by expert, whose slots are not needed.
  // offsets [n_heaps]. Sets slot, expert and rank = key - offset; returns how many.
  int32_t choose(const NeededSlots& needed, std::span<const int64_t> offsets,
                 std::span<Victim> victims) const;

 private:
  struct Node {
    int64_t key = 0;
    ExpertIndex expert = -1;
    int32_t slot = kNoSlot;
  };
  // A node that may be next, its key relative to the heap's offset.
  struct Candidate {
    int64_t rank = 0;
    ExpertIndex expert = -1;
    int32_t heap = 0;
    int32_t position = 0;
  };

  static bool before(const Node& a, const Node& b) {
    return a.key != b.key ? a.key < b.key : a.expert < b.expert;
  }
  Node* nodes_of(int32_t heap) {
    return nodes_.data() + static_cast<size_t>(heap) * static_cast<size_t>(heap_capacity_);
  }
  const Node* nodes_of(int32_t heap) const {
    return nodes_.data() + static_cast<size_t>(heap) * static_cast<size_t>(heap_capacity_);
  }
  void place(Node* nodes, int32_t position, const Node& node);
  void sift_up(Node* nodes, int32_t position, const Node& node);
  void sift_down(Node* nodes, int32_t n, int32_t position, const Node& node);
  Candidate candidate(int32_t heap, int32_t position, int64_t offset) const;

  int32_t experts_per_heap_;
  int32_t heap_capacity_;
  std::vector<Node> nodes_;                  // [n_heaps][heap_capacity]
  std::vector<int32_t> n_nodes_;             // [n_heaps]
  std::vector<int32_t> position_;            // [n_experts] in its heap, -1 if not contained
  mutable std::vector<Candidate> frontier_;  // scratch of choose
};

}  // namespace hotset

#endif  // HOTSET_POLICY_RANK_HEAPS_H_
