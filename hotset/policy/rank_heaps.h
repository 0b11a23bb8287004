// The resident experts of a group in order of worth: one heap of four children a node per layer (or
// one for the group), least worth at the root. A use costs nothing here: the key of a node is a
// lower bound of its worth, brought up to date when the node comes to the root while victims are
// chosen. So choosing n victims costs O(heaps + (n + needed + nodes brought up to date) * (heaps /
// kBlock + log)), and a use leads to at most one such node; the number of slots does not matter.
// What choose() took from the heaps stays beside them until it is asked again: victims mostly leave
// next, and then need neither a way back nor one out.
// Allocates nothing after construction.
// Thread-compatible, const functions included: `choose` rearranges the heaps.
#ifndef HOTSET_POLICY_RANK_HEAPS_H_
#define HOTSET_POLICY_RANK_HEAPS_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hotset/policy/policy.h"

namespace hotset::policy {

class RankHeaps {
 public:
  // Heap i holds experts [i * experts_per_heap, (i + 1) * experts_per_heap). Requires: all > 0.
  RankHeaps(int32_t n_heaps, int32_t experts_per_heap, int32_t n_slots);

  // Requires: `expert` is not contained.
  void insert(ExpertIndex expert, int32_t slot, int64_t key);
  // For a key that may fall. Requires: `expert` is contained.
  void update(ExpertIndex expert, int64_t key);
  // Requires: `expert` is contained.
  void erase(ExpertIndex expert);
  void clear();
  // The values of the heap's keys have changed: its clock has advanced.
  void touch(int32_t heap) { mark_changed(heap); }

  // The experts of the smallest rank, ties by expert, whose slots are not needed. Sets slot, expert
  // and rank; returns how many. Order says what the ranks are:
  //   int64_t key(ExpertIndex expert, int64_t stored_key)   now; not below stored_key
  //   double value(int32_t heap, int64_t key)   increases strictly with key; changes on touch only
  //   double rank(int32_t heap, double value)   increases strictly with value
  template <typename Order>
  int32_t choose(const NeededSlots& needed, const Order& order, std::span<Victim> victims) const;

 private:
  struct Node {
    int64_t key = 0;
    ExpertIndex expert = -1;
    int32_t slot = kNoSlot;
  };

  static constexpr int32_t kChildren = 4;
  static constexpr double kEmpty = std::numeric_limits<double>::infinity();

  static bool before(const Node& a, const Node& b) {
    // Without branches, which would be mispredicted half of the time.
    return (a.key < b.key) | ((a.key == b.key) & (a.expert < b.expert));
  }
  Node* nodes_of(int32_t heap) const {
    return nodes_.data() + static_cast<size_t>(heap) * static_cast<size_t>(heap_capacity_);
  }
  void mark_changed(int32_t heap) const {
    changed_[static_cast<size_t>(heap) / 64] |= uint64_t{1} << (heap % 64);
  }
  void place(Node* nodes, int32_t position, const Node& node) const;
  void sift_up(Node* nodes, int32_t position, const Node& node) const;
  void sift_down(Node* nodes, int32_t n, int32_t position, const Node& node) const;
  void push(int32_t heap, const Node& node) const;
  void pop_root(int32_t heap) const;
  void put_aside(const Node& node) const;
  // Back into the heaps with what is beside them.
  void return_aside() const;
  template <typename Order>
  void update_root(int32_t heap, const Order& order) const {
    root_values_[heap] = n_nodes_[heap] > 0 ? order.value(heap, nodes_of(heap)->key) : kEmpty;
  }
  template <typename Order>
  void update_roots(const Order& order) const;
  // Ranks of all roots, for one choose().
  template <typename Order>
  void rank_roots(const Order& order) const;
  // The smallest rank of a block.
  void find_block_min(size_t block) const;
  // The heap whose root has the smallest rank, of equal ones the first; -1 if all are empty.
  int32_t smallest_root() const;

  int32_t experts_per_heap_;
  int32_t heap_capacity_;
  mutable std::vector<int32_t> n_nodes_;  // [n_heaps]
  mutable std::vector<Node> nodes_;       // [n_heaps][heap_capacity]
  // [n_experts] in its heap; beside them: -1 - its place in aside_.
  mutable std::vector<int32_t> position_;
  // Values of the roots, kEmpty for an empty heap; out of date where a bit of changed_ is set.
  mutable std::vector<double> root_values_;  // [n_heaps]
  mutable std::vector<uint64_t> changed_;    // one bit per heap
  // Scratch of choose: ranks of the roots, kEmpty behind the last heap, and the smallest of each
  // kBlock of them.
  static constexpr size_t kBlock = 8;
  mutable std::vector<double> ranks_;       // [n_heaps, in whole blocks]
  mutable std::vector<double> block_mins_;  // [blocks]
  mutable std::vector<Node> aside_;
};

template <typename Order>
void RankHeaps::update_roots(const Order& order) const {
  for (size_t word = 0; word < changed_.size(); word++) {
    while (changed_[word] != 0) {
      update_root(static_cast<int32_t>(word * 64) + std::countr_zero(changed_[word]), order);
      changed_[word] &= changed_[word] - 1;
    }
  }
}

template <typename Order>
void RankHeaps::rank_roots(const Order& order) const {
  const auto n_heaps = static_cast<int32_t>(n_nodes_.size());
  for (int32_t heap = 0; heap < n_heaps; heap++) {
    ranks_[heap] = order.rank(heap, root_values_[heap]);
  }
  for (size_t block = 0; block < block_mins_.size(); block++) find_block_min(block);
}

// Minima first and then who has them, without branches on what is smaller: of the roots of many
// heaps nobody can guess that.
inline void RankHeaps::find_block_min(size_t block) const {
  const double* r = ranks_.data() + block * kBlock;
  static_assert(kBlock == 8);
  block_mins_[block] = std::min(std::min(std::min(r[0], r[1]), std::min(r[2], r[3])),
                                std::min(std::min(r[4], r[5]), std::min(r[6], r[7])));
}

inline int32_t RankHeaps::smallest_root() const {
  double smallest = kEmpty;
  for (const double of_block : block_mins_) smallest = std::min(smallest, of_block);
  if (smallest == kEmpty) return -1;
  size_t heap = 0;
  while (block_mins_[heap / kBlock] != smallest) heap += kBlock;
  while (ranks_[heap] != smallest) heap++;
  return static_cast<int32_t>(heap);
}

template <typename Order>
int32_t RankHeaps::choose(const NeededSlots& needed, const Order& order,
                          std::span<Victim> victims) const {
  return_aside();
  update_roots(order);
  rank_roots(order);
  size_t n = 0;
  while (n < victims.size()) {
    const int32_t heap = smallest_root();
    if (heap < 0) break;
    const double rank = ranks_[heap];
    Node root = *nodes_of(heap);
    const int64_t key = needed.contains(root.slot) ? root.key : order.key(root.expert, root.key);
    if (key != root.key) {
      root.key = key;
      sift_down(nodes_of(heap), n_nodes_[heap], 0, root);
    } else {
      if (!needed.contains(root.slot)) {
        victims[n++] = {.slot = root.slot, .expert = root.expert, .rank = rank};
      }
      pop_root(heap);
      put_aside(root);
    }
    update_root(heap, order);
    ranks_[heap] = order.rank(heap, root_values_[heap]);
    find_block_min(static_cast<size_t>(heap) / kBlock);
  }
  return static_cast<int32_t>(n);
}

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_RANK_HEAPS_H_
