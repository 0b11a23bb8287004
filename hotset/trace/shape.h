// The shape of a trace: how much routing it holds, and how far that routing can be cached.
// Memory: about 40 bytes per expert of the model, whatever the length of the trace.
// Thread-compatible.
#ifndef HOTSET_TRACE_SHAPE_H_
#define HOTSET_TRACE_SHAPE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/trace/trace.h"

namespace hotset::trace {

// How the routing of one layer, or of all of them together, is spread.
struct RoutingSpread {
  int64_t n_lookups = 0;
  int64_t n_tokens = 0;
  int64_t n_ids = 0;           // pairs of (token, expert)
  int64_t n_experts = 0;       // that there are
  int64_t n_experts_used = 0;  // that were selected at least once
  // Part of a token's experts that the token before it selected too, in [0, 1].
  double repeated_share = 0;
  // Part of the ids that the tenth of the experts that is selected most takes, in [0, 1].
  double top_tenth_share = 0;
  // exp of the entropy of the selection: as many experts used alike would be as hard to foresee.
  double effective_experts = 0;
};

// Percentiles of the reuse distance: 10, 25, 50, 75, 90, 95 and 99.
constexpr std::array<int, 7> kReusePercentiles = {10, 25, 50, 75, 90, 95, 99};

// The routing of one group of layers, which share their slots.
struct GroupShape {
  int64_t n_uses = 0;    // distinct experts of each lookup, summed
  int64_t n_reuses = 0;  // uses of an expert that was used before
  // Reuse distance: how many other experts of the group were used between two uses of one. A
  // cache that evicts the least recently used expert hits a reuse of distance d if it has more
  // than d slots. 0 where nothing is reused.
  std::array<int64_t, kReusePercentiles.size()> reuse_distance = {};
};

struct LayerShape {
  int32_t layer = 0;
  RoutingSpread spread;
};

struct TraceShape {
  RoutingSpread total;  // n_tokens: of the layer that saw the most
  int64_t max_lookup_tokens = 0;
  // Lookups of 1 token, of 2 to 8, of 9 to 32, of more.
  std::array<int64_t, 4> lookups_by_tokens = {};
  std::vector<GroupShape> groups;  // in the order of the header
  std::vector<LayerShape> layers;  // of all groups, ascending
};

// Builds the shape lookup by lookup.
class TraceShapeBuilder {
 public:
  // Requires: validate(header) is ok.
  explicit TraceShapeBuilder(const TraceHeader& header);
  ~TraceShapeBuilder();
  TraceShapeBuilder(TraceShapeBuilder&&) noexcept;
  TraceShapeBuilder& operator=(TraceShapeBuilder&&) noexcept;

  // Requires: validate(lookup, header) is ok.
  void add(const TraceLookup& lookup);

  // The shape of all lookups so far.
  TraceShape shape() const;

 private:
  class ReuseStack;
  struct LayerState;

  TraceHeader header_;
  std::vector<int32_t> group_by_layer_;
  std::vector<int32_t> layer_slot_;  // of each layer number, in layers_; -1 for none
  std::vector<LayerState> layers_;   // ascending layer numbers
  std::vector<ReuseStack> stacks_;   // one per group
  std::array<int64_t, 4> lookups_by_tokens_ = {};
  int64_t max_lookup_tokens_ = 0;
};

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_SHAPE_H_
