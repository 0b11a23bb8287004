#include "hotset/policy/rank_heaps.h"

#include <algorithm>

namespace hotset {

RankHeaps::RankHeaps(int32_t n_heaps, int32_t experts_per_heap, int32_t n_slots)
    : experts_per_heap_(experts_per_heap),
      heap_capacity_(std::min(experts_per_heap, n_slots)),
      nodes_(static_cast<size_t>(n_heaps) * static_cast<size_t>(heap_capacity_)),
      n_nodes_(static_cast<size_t>(n_heaps)),
      position_(static_cast<size_t>(n_heaps) * static_cast<size_t>(experts_per_heap), -1) {
  // Every node is pushed at most once, and there are at most n_slots nodes.
  frontier_.reserve(static_cast<size_t>(n_slots) + 1);
}

void RankHeaps::place(Node* nodes, int32_t position, const Node& node) {
  nodes[position] = node;
  position_[static_cast<size_t>(node.expert)] = position;
}

void RankHeaps::sift_up(Node* nodes, int32_t position, const Node& node) {
  while (position > 0) {
    const int32_t parent = (position - 1) / 2;
    if (!before(node, nodes[parent])) break;
    place(nodes, position, nodes[parent]);
    position = parent;
  }
  place(nodes, position, node);
}

void RankHeaps::sift_down(Node* nodes, int32_t n, int32_t position, const Node& node) {
  while (true) {
    int32_t child = 2 * position + 1;
    if (child >= n) break;
    if (child + 1 < n && before(nodes[child + 1], nodes[child])) child++;
    if (!before(nodes[child], node)) break;
    place(nodes, position, nodes[child]);
    position = child;
  }
  place(nodes, position, node);
}

void RankHeaps::insert(ExpertIndex expert, int32_t slot, int64_t key) {
  const int32_t heap = expert / experts_per_heap_;
  const int32_t position = n_nodes_[static_cast<size_t>(heap)]++;
  sift_up(nodes_of(heap), position, {key, expert, slot});
}

void RankHeaps::update(ExpertIndex expert, int64_t key) {
  const int32_t heap = expert / experts_per_heap_;
  Node* nodes = nodes_of(heap);
  const int32_t position = position_[static_cast<size_t>(expert)];
  Node node = nodes[position];
  const bool rises = key < node.key;
  node.key = key;
  if (rises) {
    sift_up(nodes, position, node);
  } else {
    sift_down(nodes, n_nodes_[static_cast<size_t>(heap)], position, node);
  }
}

void RankHeaps::erase(ExpertIndex expert) {
  const int32_t heap = expert / experts_per_heap_;
  Node* nodes = nodes_of(heap);
  const int32_t position = position_[static_cast<size_t>(expert)];
  position_[static_cast<size_t>(expert)] = -1;
  const int32_t n = --n_nodes_[static_cast<size_t>(heap)];
  if (position == n) return;
  const Node last = nodes[n];
  if (position > 0 && before(last, nodes[(position - 1) / 2])) {
    sift_up(nodes, position, last);
  } else {
    sift_down(nodes, n, position, last);
  }
}

void RankHeaps::clear() {
  std::ranges::fill(n_nodes_, 0);
  std::ranges::fill(position_, -1);
}

RankHeaps::Candidate RankHeaps::candidate(int32_t heap, int32_t position, int64_t offset) const {
  const Node& node = nodes_of(heap)[position];
  return {node.key - offset, node.expert, heap, position};
}

int32_t RankHeaps::choose(const NeededSlots& needed, std::span<const int64_t> offsets,
                          std::span<Victim> victims) const {
  // Best first over all heaps: a node's children are candidates only once the node is out.
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.expert > b.expert;
  };
  frontier_.clear();
  const auto n_heaps = static_cast<int32_t>(n_nodes_.size());
  for (int32_t heap = 0; heap < n_heaps; heap++) {
    if (n_nodes_[static_cast<size_t>(heap)] > 0) {
      frontier_.push_back(candidate(heap, 0, offsets[static_cast<size_t>(heap)]));
    }
  }
  std::ranges::make_heap(frontier_, later);
  int32_t n = 0;
  while (static_cast<size_t>(n) < victims.size() && !frontier_.empty()) {
    std::ranges::pop_heap(frontier_, later);
    const Candidate next = frontier_.back();
    frontier_.pop_back();
    const int32_t slot = nodes_of(next.heap)[next.position].slot;
    if (!needed.contains(slot)) {
      victims[static_cast<size_t>(n++)] = {
          .slot = slot, .expert = next.expert, .rank = static_cast<double>(next.rank)};
    }
    for (int32_t child = 2 * next.position + 1; child <= 2 * next.position + 2; child++) {
      if (child >= n_nodes_[static_cast<size_t>(next.heap)]) break;
      frontier_.push_back(candidate(next.heap, child, offsets[static_cast<size_t>(next.heap)]));
      std::ranges::push_heap(frontier_, later);
    }
  }
  return n;
}

}  // namespace hotset
