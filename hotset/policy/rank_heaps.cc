#include "hotset/policy/rank_heaps.h"

#include <algorithm>

namespace hotset::policy {

RankHeaps::RankHeaps(int32_t n_heaps, int32_t experts_per_heap, int32_t n_slots)
    : experts_per_heap_(experts_per_heap),
      heap_capacity_(std::min(experts_per_heap, n_slots)),
      n_nodes_(n_heaps),
      nodes_(static_cast<size_t>(n_heaps) * static_cast<size_t>(heap_capacity_)),
      position_(static_cast<size_t>(n_heaps) * static_cast<size_t>(experts_per_heap)),
      root_values_(static_cast<size_t>(n_heaps), kEmpty),
      changed_((static_cast<size_t>(n_heaps) + 63) / 64),
      ranks_((static_cast<size_t>(n_heaps) + kBlock - 1) / kBlock * kBlock, kEmpty),
      block_mins_(ranks_.size() / kBlock, kEmpty) {
  aside_.reserve(n_slots);
}

void RankHeaps::place(Node* nodes, int32_t position, const Node& node) const {
  nodes[position] = node;
  position_[node.expert] = position;
}

void RankHeaps::sift_up(Node* nodes, int32_t position, const Node& node) const {
  while (position > 0) {
    const int32_t parent = (position - 1) / kChildren;
    if (!before(node, nodes[parent])) break;
    place(nodes, position, nodes[parent]);
    position = parent;
  }
  place(nodes, position, node);
}

void RankHeaps::sift_down(Node* nodes, int32_t n, int32_t position, const Node& node) const {
  // To a leaf along the smallest children, and up from there: a node that was used has become worth
  // more than most, so that asking at each level whether it may stay only costs.
  const int32_t top = position;
  for (int32_t child = kChildren * position + 1; child < n; child = kChildren * position + 1) {
    int32_t smallest = child;
    if (child + kChildren <= n) {
      const int32_t left = child + static_cast<int32_t>(before(nodes[child + 1], nodes[child]));
      const int32_t right =
          child + 2 + static_cast<int32_t>(before(nodes[child + 3], nodes[child + 2]));
      smallest = before(nodes[right], nodes[left]) ? right : left;
    } else {
      for (int32_t i = child + 1; i < n; i++)
        smallest = before(nodes[i], nodes[smallest]) ? i : smallest;
    }
    place(nodes, position, nodes[smallest]);
    position = smallest;
  }
  while (position > top) {
    const int32_t parent = (position - 1) / kChildren;
    if (!before(node, nodes[parent])) break;
    place(nodes, position, nodes[parent]);
    position = parent;
  }
  place(nodes, position, node);
}

void RankHeaps::put_aside(const Node& node) const {
  position_[node.expert] = -1 - static_cast<int32_t>(aside_.size());
  aside_.push_back(node);
}

void RankHeaps::return_aside() const {
  for (const Node& node : aside_) push(node.expert / experts_per_heap_, node);
  aside_.clear();
}

void RankHeaps::push(int32_t heap, const Node& node) const {
  const int32_t position = n_nodes_[heap]++;
  sift_up(nodes_of(heap), position, node);
  mark_changed(heap);
}

void RankHeaps::pop_root(int32_t heap) const {
  Node* nodes = nodes_of(heap);
  const int32_t n = --n_nodes_[heap];
  if (n > 0) sift_down(nodes, n, 0, nodes[n]);
}

void RankHeaps::insert(ExpertIndex expert, int32_t slot, int64_t key) {
  push(expert / experts_per_heap_, {key, expert, slot});
}

void RankHeaps::update(ExpertIndex expert, int64_t key) {
  return_aside();
  const int32_t heap = expert / experts_per_heap_;
  Node* nodes = nodes_of(heap);
  const int32_t position = position_[expert];
  const Node node = {key, expert, nodes[position].slot};
  if (position > 0 && before(node, nodes[(position - 1) / kChildren])) {
    sift_up(nodes, position, node);
  } else {
    sift_down(nodes, n_nodes_[heap], position, node);
  }
  mark_changed(heap);
}

void RankHeaps::erase(ExpertIndex expert) {
  const int32_t heap = expert / experts_per_heap_;
  Node* nodes = nodes_of(heap);
  const int32_t position = position_[expert];
  if (position < 0) {
    const auto place_aside = static_cast<size_t>(-1 - position);
    aside_[place_aside] = aside_.back();
    position_[aside_[place_aside].expert] = position;
    aside_.pop_back();
    return;
  }
  const int32_t n = --n_nodes_[heap];
  mark_changed(heap);
  if (position == n) return;
  const Node last = nodes[n];
  if (position > 0 && before(last, nodes[(position - 1) / kChildren])) {
    sift_up(nodes, position, last);
  } else {
    sift_down(nodes, n, position, last);
  }
}

void RankHeaps::clear() {
  aside_.clear();
  std::ranges::fill(n_nodes_, 0);
  for (size_t heap = 0; heap < n_nodes_.size(); heap++) mark_changed(static_cast<int32_t>(heap));
}

}  // namespace hotset::policy
