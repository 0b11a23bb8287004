// The resident experts of a group in order of worth: one binary heap per layer (or one for the
// group), least worth at the root. A use costs nothing here: the key of a node is a lower bound of
// its worth, brought up to date when the node comes to the root while victims are chosen. So
// choosing n victims costs O((n + needed + nodes brought up to date) * (heaps + log)), and a use
// leads to at most one such node; the number of slots does not matter.
// Allocates nothing after construction.
// Thread-compatible, const functions included: `choose` rearranges the heaps.
#ifndef HOTSET_POLICY_RANK_HEAPS_H_
#define HOTSET_POLICY_RANK_HEAPS_H_

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

  static constexpr double kEmpty = std::numeric_limits<double>::infinity();

  static bool before(const Node& a, const Node& b) {
    return a.key != b.key ? a.key < b.key : a.expert < b.expert;
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
  template <typename Order>
  void update_roots(const Order& order) const;
  // The heap whose root has the smallest rank, -1 if all are empty. Sets that rank.
  template <typename Order>
  int32_t smallest_root(const Order& order, double* rank) const;

  int32_t experts_per_heap_;
  int32_t heap_capacity_;
  mutable std::vector<int32_t> n_nodes_;   // [n_heaps]
  mutable std::vector<Node> nodes_;        // [n_heaps][heap_capacity]
  mutable std::vector<int32_t> position_;  // [n_experts] in its heap
  // Values of the roots, kEmpty for an empty heap; out of date where a bit of changed_ is set.
  mutable std::vector<double> root_values_;  // [n_heaps]
  mutable std::vector<uint64_t> changed_;    // one bit per heap
  mutable std::vector<Node> aside_;          // scratch of choose
};

template <typename Order>
void RankHeaps::update_roots(const Order& order) const {
  for (size_t word = 0; word < changed_.size(); word++) {
    while (changed_[word] != 0) {
      const auto heap = static_cast<int32_t>(word * 64) + std::countr_zero(changed_[word]);
      changed_[word] &= changed_[word] - 1;
      root_values_[static_cast<size_t>(heap)] =
          n_nodes_[static_cast<size_t>(heap)] > 0 ? order.value(heap, nodes_of(heap)->key) : kEmpty;
    }
  }
}

template <typename Order>
int32_t RankHeaps::smallest_root(const Order& order, double* rank) const {
  int32_t best = -1;
  *rank = kEmpty;
  const auto n_heaps = static_cast<int32_t>(n_nodes_.size());
  for (int32_t heap = 0; heap < n_heaps; heap++) {
    const double of_heap = order.rank(heap, root_values_[static_cast<size_t>(heap)]);
    // Of equal ranks the first heap has the lower experts.
    if (of_heap < *rank) {
      *rank = of_heap;
      best = heap;
    }
  }
  return best;
}

template <typename Order>
int32_t RankHeaps::choose(const NeededSlots& needed, const Order& order,
                          std::span<Victim> victims) const {
  // Roots that are needed, or chosen already, are put aside until all victims are found.
  aside_.clear();
  size_t n = 0;
  while (n < victims.size()) {
    update_roots(order);
    double rank = 0;
    const int32_t heap = smallest_root(order, &rank);
    if (heap < 0) break;
    Node root = *nodes_of(heap);
    if (!needed.contains(root.slot)) {
      const int64_t key = order.key(root.expert, root.key);
      if (key != root.key) {
        root.key = key;
        sift_down(nodes_of(heap), n_nodes_[static_cast<size_t>(heap)], 0, root);
        mark_changed(heap);
        continue;
      }
      victims[n++] = {.slot = root.slot, .expert = root.expert, .rank = rank};
    }
    aside_.push_back(root);
    pop_root(heap);
  }
  for (const Node& node : aside_) push(node.expert / experts_per_heap_, node);
  return static_cast<int32_t>(n);
}

}  // namespace hotset::policy

#endif  // HOTSET_POLICY_RANK_HEAPS_H_
