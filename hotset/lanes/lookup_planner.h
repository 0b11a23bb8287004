// The one decision path of the expert cache: which experts of a lookup are hits, which are
// uploaded, streamed or left to the CPU lane, who is evicted, and what is copied behind. The engine
// and the simulator drive the same object, from a device's routing and from a trace. No device is
// needed, and what is decided follows from the lookups, the rules and the costs alone.
//
//   complete_fills()           between two lookups: fills that have arrived enter the cache
//   experts_ahead(layer, n)    what is worth copying before the routing is known
//   plan(layer, ids, n, k)     the decision; the cache then is as the plan says
//
// Owns the cache. Allocates nothing per lookup once every number of fills was seen.
// Thread-compatible.
#ifndef HOTSET_LANES_LOOKUP_PLANNER_H_
#define HOTSET_LANES_LOOKUP_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/cache/fixed_share.h"
#include "hotset/lanes/cache_rules.h"
#include "hotset/lanes/fill_link.h"
#include "hotset/lanes/lane_costs.h"
#include "hotset/lanes/planned_lookup.h"
#include "hotset/lanes/split_costs.h"
#include "hotset/lanes/upload_value.h"

namespace hotset::lanes {

// Takes back some of the experts that a share leaves to the CPU lane: for replays that honour the
// limits of another implementation.
class CpuLimit {
 public:
  virtual ~CpuLimit() = default;
  // Reorders `experts` (each selected by ids [n_tokens, k], none twice; lowest score first) and
  // returns how many of them, from the front, stay on the CPU; the others are uploaded.
  virtual size_t apply(std::span<const int32_t> ids, int32_t k, std::span<int32_t> experts) = 0;
};

struct LookupRules {
  CacheRules cache = {};                   // its policy is that of the cache that is given
  bool streams = true;                     // false: prefills are served like any lookup
  CpuLimit* cpu_limit = nullptr;           // must outlive the planner
  PlanInterceptor* interceptor = nullptr;  // must outlive the planner
};

class LookupPlanner {
 public:
  // Costs from the rules' rates (kTypicalRates where they have none), the same for every group,
  // until set_costs(). Errors: those of check(CacheRules).
  static Result<LookupPlanner> create(cache::ExpertCache cache, const LookupRules& rules);
  // `costs` of each group. Errors: as above, and kInvalidArgument for a wrong number of costs.
  static Result<LookupPlanner> create(cache::ExpertCache cache, const LookupRules& rules,
                                      std::span<const LaneCosts> costs);

  const cache::ExpertCache& cache() const { return cache_; }
  cache::ExpertCache& cache() { return cache_; }
  const LookupRules& rules() const { return rules_; }

  // Costs of a group as they are known now. Requires: validate(costs).
  void set_costs(int32_t group, const LaneCosts& costs) { costs_.set_costs(group, costs); }
  const LaneCosts& costs(int32_t group) const { return costs_.costs(group); }
  // What a layer takes beside its experts (attention, routing): time in which the link may copy
  // fills. 0 until it is set.
  void set_other_us(double us) { other_us_ = us; }
  // Whether lookups may upload and fill; only where no share is fixed.
  void allow_uploads(bool allowed) { uploads_allowed_ = allowed; }

  // Serves a lookup: ids [n_tokens, k], token-major. The answer holds until the next call.
  // Errors: as ExpertCache::classify; nothing has changed then.
  Result<PlannedLookup> plan(int32_t layer, std::span<const int32_t> ids, int32_t n_tokens,
                             int32_t k);

  // At most `most` missing experts, ascending, that a lookup of so many tokens will surely need,
  // because the last one as large streamed nearly everything; none where it does not pay. Valid
  // until the next call of it. Requires: the layer has a group.
  std::span<const int32_t> experts_ahead(int32_t layer, int32_t n_tokens, size_t most);
  // Whether hits of a lookup of so many tokens may be queued before it is known: they read the pad
  // slot for every miss, of which a lookup that is streamed has many, and are not wanted where the
  // CPU has lately computed everything. Requires: the layer has a group.
  bool expects_hits(int32_t layer, int32_t n_tokens) const;

  // The fills that have arrived since complete_fills(), in order.
  std::span<const PendingFill> arrived() const { return arrived_; }
  // Completes the fills that have arrived. Call between two lookups.
  Status complete_fills();

 private:
  LookupPlanner(cache::ExpertCache cache, const LookupRules& rules, SplitCosts costs);

  FillLink& link(int32_t group) { return links_[link_of_[group]]; }
  SplitCosts::Moment moment(int32_t group);
  // Sets is_streamed, and the reason if it is.
  void decide_whether_streamed(const cache::Lookup& lookup, const CostedLookup& costed,
                               PlannedLookup& plan);
  // Fills cpu_experts_; sets all_on_cpu and the reason.
  void choose_cpu_experts(const cache::Lookup& lookup, const CostedLookup& costed,
                          std::span<const int32_t> ids, PlannedLookup& plan);
  // How many fills the link has room for, with cpu_experts_ on the CPU lane.
  int32_t max_fills(const cache::Lookup& lookup, const CostedLookup& costed);
  Status commit_split(const cache::Lookup& lookup, const CostedLookup& costed,
                      std::span<const int32_t> ids, PlannedLookup& plan);
  Status commit_streamed(const cache::Lookup& lookup, const CostedLookup& costed,
                         PlannedLookup& plan);
  static Split split_of(const PlannedLookup& plan);
  // Counts the lookup, and what the next ones are expected to be like.
  void note(const cache::Lookup& lookup, const PlannedLookup& plan);
  void pass_time(const PlannedLookup& plan);

  cache::ExpertCache cache_;
  LookupRules rules_;
  SplitCosts costs_;
  std::optional<cache::FixedShare> share_;
  std::vector<FillLink> links_;  // of each device
  std::vector<size_t> link_of_;  // [n_groups]
  std::vector<PendingFill> arrived_;
  bool uploads_allowed_ = true;
  double other_us_ = 0;
  bool streamed_last_ = false;    // the last lookup of more than one token
  int32_t whole_streams_of_ = 0;  // tokens of the last lookup if it streamed nearly all
  std::vector<DecayedMean> all_on_cpu_share_;  // [n_layer], of lookups that were not streamed
  std::vector<int32_t> cpu_experts_;           // of the lookup that is planned
  std::vector<int32_t> streamed_;
  std::vector<int32_t> n_pairs_of_;  // [n_expert] of a missing one
  std::vector<int32_t> ahead_;
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_LOOKUP_PLANNER_H_
