#include "hotset/trace/shape.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

namespace hotset::trace {
namespace {

// The sums over `counts` that a RoutingSpread shows. Leaves `counts` sorted.
void spread_of_counts(std::vector<int64_t>& counts, RoutingSpread& spread) {
  spread.n_experts = std::ssize(counts);
  std::sort(counts.begin(), counts.end(), std::greater<>());
  const size_t tenth = (counts.size() + 9) / 10;
  int64_t n_top = 0;
  double entropy = 0;
  for (size_t i = 0; i < counts.size() && counts[i] > 0; ++i) {
    ++spread.n_experts_used;
    if (i < tenth) n_top += counts[i];
    const double part = static_cast<double>(counts[i]) / static_cast<double>(spread.n_ids);
    entropy -= part * std::log(part);
  }
  if (spread.n_ids == 0) return;
  spread.top_tenth_share = static_cast<double>(n_top) / static_cast<double>(spread.n_ids);
  spread.effective_experts = std::exp(entropy);
}

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

}  // namespace

// The experts of a group by their last use, so that the number of experts used since is found in
// O(log n) (a Fenwick tree over use times; Bennett and Kruskal, "LRU stack processing", 1975).
// Times are renumbered when they run out, so the memory does not grow with the trace.
class TraceShapeBuilder::ReuseStack {
 public:
  explicit ReuseStack(size_t n_experts)
      : last_use_(n_experts, -1),
        owner_(2 * n_experts, -1),
        tree_(2 * n_experts + 1),
        n_by_distance_(n_experts) {}

  void use(size_t expert) {
    if (now_ == owner_.size()) renumber();
    ++n_uses_;
    if (last_use_[expert] >= 0) {
      const auto before = static_cast<size_t>(last_use_[expert]);
      // Experts used later than this one's last use.
      const int64_t distance = n_live_ - sum_to(before);
      ++n_by_distance_[distance];
      ++n_reuses_;
      add(before, -1);
      owner_[before] = -1;
    } else {
      ++n_live_;
    }
    add(now_, 1);
    owner_[now_] = static_cast<int32_t>(expert);
    last_use_[expert] = static_cast<int64_t>(now_++);
  }

  GroupShape shape() const {
    GroupShape shape{.n_uses = n_uses_, .n_reuses = n_reuses_, .reuse_distance = {}};
    for (size_t p = 0; p < kReusePercentiles.size() && n_reuses_ > 0; ++p) {
      // The smallest distance that at least this part of the reuses does not exceed.
      const int64_t wanted = (n_reuses_ * kReusePercentiles[p] + 99) / 100;
      int64_t n_below = 0;
      size_t distance = 0;
      while ((n_below += n_by_distance_[distance]) < wanted) ++distance;
      shape.reuse_distance[p] = static_cast<int64_t>(distance);
    }
    return shape;
  }

 private:
  void add(size_t position, int32_t change) {
    for (size_t i = position + 1; i < tree_.size(); i += i & -i) tree_[i] += change;
  }

  // Experts whose last use is at `position` or before.
  int64_t sum_to(size_t position) const {
    int64_t sum = 0;
    for (size_t i = position + 1; i > 0; i -= i & -i) sum += tree_[i];
    return sum;
  }

  void renumber() {
    std::fill(tree_.begin(), tree_.end(), 0);
    size_t next = 0;
    for (size_t i = 0; i < owner_.size(); ++i) {
      const int32_t expert = std::exchange(owner_[i], -1);
      if (expert < 0) continue;
      owner_[next] = expert;
      last_use_[expert] = static_cast<int64_t>(next);
      add(next++, 1);
    }
    now_ = next;
  }

  std::vector<int64_t> last_use_;       // [n_experts] time of the last use, -1 for none
  std::vector<int32_t> owner_;          // [times] whose last use it is, -1 for nobody's
  std::vector<int32_t> tree_;           // [times + 1] Fenwick sums of owner_[i] >= 0
  std::vector<int64_t> n_by_distance_;  // [n_experts] reuses of each distance
  size_t now_ = 0;
  int64_t n_live_ = 0;
  int64_t n_uses_ = 0;
  int64_t n_reuses_ = 0;
};

struct TraceShapeBuilder::LayerState {
  int32_t layer = 0;
  size_t first_expert = 0;  // of the layer in its group's stack
  int64_t n_lookups = 0;
  int64_t n_tokens = 0;
  int64_t n_ids = 0;
  int64_t n_distinct = 0;            // (token, expert) pairs without repetitions, token 1 left out
  int64_t n_repeated = 0;            // of those, selected by the token before too
  std::vector<int64_t> n_selected;   // [n_expert]
  std::vector<int64_t> last_token;   // [n_expert] number of the last token that selected it
  std::vector<int64_t> last_lookup;  // [n_expert] number of the last lookup that selected it
};

TraceShapeBuilder::~TraceShapeBuilder() = default;
TraceShapeBuilder::TraceShapeBuilder(TraceShapeBuilder&&) noexcept = default;
TraceShapeBuilder& TraceShapeBuilder::operator=(TraceShapeBuilder&&) noexcept = default;

TraceShapeBuilder::TraceShapeBuilder(const TraceHeader& header)
    : header_(header), group_by_layer_(header.group_by_layer()), layer_slot_(header.n_layer, -1) {
  std::vector<size_t> n_placed(header.groups.size());
  for (const TraceGroup& group : header.groups) {
    stacks_.emplace_back(static_cast<size_t>(group.total_experts()));
  }
  for (uint32_t layer = 0; layer < header.n_layer; ++layer) {
    if (group_by_layer_[layer] < 0) continue;
    const auto g = static_cast<size_t>(group_by_layer_[layer]);
    const size_t n_expert = header.groups[g].n_expert;
    layer_slot_[layer] = static_cast<int32_t>(layers_.size());
    LayerState& state = layers_.emplace_back();
    state.layer = static_cast<int32_t>(layer);
    state.first_expert = n_placed[g];
    n_placed[g] += n_expert;
    state.n_selected.resize(n_expert);
    state.last_token.resize(n_expert, -1);
    state.last_lookup.resize(n_expert, -1);
  }
}

void TraceShapeBuilder::add(const TraceLookup& lookup) {
  const auto layer = static_cast<size_t>(lookup.layer);
  LayerState& state = layers_[layer_slot_[layer]];
  ReuseStack& stack = stacks_[group_by_layer_[layer]];
  const int64_t n_tokens = lookup.n_tokens();
  max_lookup_tokens_ = std::max(max_lookup_tokens_, n_tokens);
  ++lookups_by_tokens_[n_tokens == 1 ? 0 : n_tokens <= 8 ? 1 : n_tokens <= 32 ? 2 : 3];
  const auto k = static_cast<size_t>(lookup.experts_per_token);
  for (size_t i = 0; i < lookup.ids.size(); ++i) {
    const auto expert = static_cast<size_t>(lookup.ids[i]);
    const int64_t token = state.n_tokens + static_cast<int64_t>(i / k);
    ++state.n_selected[expert];
    if (state.last_lookup[expert] != state.n_lookups) {
      state.last_lookup[expert] = state.n_lookups;
      stack.use(state.first_expert + expert);
    }
    if (state.last_token[expert] == token) continue;
    if (token > 0) {
      ++state.n_distinct;
      if (state.last_token[expert] == token - 1) ++state.n_repeated;
    }
    state.last_token[expert] = token;
  }
  ++state.n_lookups;
  state.n_tokens += n_tokens;
  state.n_ids += std::ssize(lookup.ids);
}

TraceShape TraceShapeBuilder::shape() const {
  TraceShape shape;
  shape.max_lookup_tokens = max_lookup_tokens_;
  shape.lookups_by_tokens = lookups_by_tokens_;
  for (const ReuseStack& stack : stacks_) shape.groups.push_back(stack.shape());
  std::vector<int64_t> all_counts;
  int64_t n_distinct = 0;
  int64_t n_repeated = 0;
  for (const LayerState& state : layers_) {
    LayerShape& layer = shape.layers.emplace_back();
    layer.layer = state.layer;
    layer.spread.n_lookups = state.n_lookups;
    layer.spread.n_tokens = state.n_tokens;
    layer.spread.n_ids = state.n_ids;
    layer.spread.repeated_share = ratio(state.n_repeated, state.n_distinct);
    std::vector<int64_t> counts = state.n_selected;
    all_counts.insert(all_counts.end(), counts.begin(), counts.end());
    spread_of_counts(counts, layer.spread);
    shape.total.n_lookups += state.n_lookups;
    shape.total.n_tokens = std::max(shape.total.n_tokens, state.n_tokens);
    shape.total.n_ids += state.n_ids;
    n_distinct += state.n_distinct;
    n_repeated += state.n_repeated;
  }
  shape.total.repeated_share = ratio(n_repeated, n_distinct);
  spread_of_counts(all_counts, shape.total);
  return shape;
}

}  // namespace hotset::trace
