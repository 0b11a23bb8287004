// Which lane serves the misses of a lookup, and when the link has room for a fill: the chooser, the
// value of an upload and the admission of fills, joined for the groups of a cache. The engine and
// the simulator drive the same object. The link is a model: a lookup gives it the time that the
// costs say it takes, so what is decided follows from the lookups and the costs alone.
// Owns its estimators and queues. Allocates nothing per lookup once every number of fills was seen.
// Thread-compatible.
#ifndef HOTSET_LANES_LANE_PLANNER_H_
#define HOTSET_LANES_LANE_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/plan/lane_chooser.h"
#include "hotset/plan/lane_costs.h"
#include "hotset/plan/upload_value.h"

namespace hotset::lanes {

class LanePlanner {
 public:
  // A fill that is on its way, or has arrived.
  struct PendingFill {
    int32_t group = 0;
    int32_t slot = 0;
    double remaining_us = 0;
  };

  // `cache`: for its groups; read here only.
  // Errors: kInvalidArgument, a rate is out of range; names it.
  static Result<LanePlanner> create(const plan::LaneRates& rates, const ExpertCache& cache);
  // `costs` of each group. Errors: kInvalidArgument, a cost is out of range or their number wrong.
  static Result<LanePlanner> create(std::span<const plan::LaneCosts> costs,
                                    const ExpertCache& cache);

  // Costs of a group as they are known now. Requires: plan::validate(costs).
  void set_costs(int32_t group, const plan::LaneCosts& costs) {
    groups_[static_cast<size_t>(group)].costs = costs;
  }
  const plan::LaneCosts& costs(int32_t group) const {
    return groups_[static_cast<size_t>(group)].costs;
  }

  // Whether what the CPU serves may be copied in the background: uploads are worth less then.
  void set_fills(bool fills) { fills_ = fills; }

  // What a layer takes beside its experts (attention, routing): time in which the link may copy
  // fills. 0 until it is set.
  void set_other_us(double us) { other_us_ = us; }

  // The experts that the chooser leaves to the CPU lane. The answer holds until the next call of
  // any function. Requires: lookup.cached.
  Result<std::span<const int32_t>> choose_cpu_experts(const Lookup& lookup);
  // Whether the lookup that was chosen for last, and is not committed, is done sooner if the CPU
  // computes its resident experts too: starting a graph and bringing scattered rows back can cost
  // more than a few hits save. Then no miss is uploaded.
  bool all_on_cpu() const { return all_on_cpu_; }

  // How a prefill is served: `n_uploads` of its misses, those with the most tokens, cross the link,
  // the CPU lane takes the others; or it takes everything, resident experts included.
  struct Prefill {
    size_t n_uploads = 0;
    bool all_on_cpu = false;
  };
  // By the costs alone: uploads are worth nothing later here.
  Result<Prefill> plan_prefill(const Lookup& lookup);

  // How many fills the modelled link has room for if `n_uploads` of the misses cross it.
  // Requires: n_uploads <= lookup.misses.size().
  Result<int32_t> max_fills(const Lookup& lookup, size_t n_uploads);

  // The lookup was committed as `plan`, `n_uploads` of its misses crossing the link. Learns from
  // the evictions, lets the modelled time pass, and queues the fills behind those on their way.
  // Returns that time, in microseconds, from ids to result rows. Requires: n_uploads <=
  // lookup.misses.size().
  Result<double> commit(const Lookup& lookup, const LookupPlan& plan, size_t n_uploads);

  // What the lookup committed last would have taken with its cheapest split.
  double cheapest_us() const { return cheapest_us_; }

  // The fills that have arrived since complete_fills(), in order.
  std::span<const PendingFill> arrived() const { return arrived_; }
  // Completes in `cache` the fills that have arrived. Call between two lookups.
  Status complete_fills(ExpertCache& cache);

 private:
  struct GroupState {
    plan::LaneCosts costs;
    plan::UploadValue value;
    Bytes expert_bytes;
    size_t link = 0;  // index in links_
  };
  // The copies of one device that wait behind its demand uploads.
  struct Link {
    std::vector<PendingFill> fills;  // few: the front may be erased
    double outstanding_us = 0;
  };

  LanePlanner(size_t max_misses) : chooser_(max_misses), cpu_experts_(max_misses) {}

  double hit_us(const GroupState& state, const Lookup& lookup) const;
  double copy_us(const GroupState& state, size_t n_experts) const;
  // All experts of a lookup on the CPU lane.
  double all_on_cpu_us(const GroupState& state, const Lookup& lookup) const;
  // Fills misses_ with those of the lookup, worth nothing later.
  void list_misses(const Lookup& lookup);
  // The costs of all splits of the misses, as if uploads were worth nothing later.
  Result<plan::LaneChoice> cost_splits(const Lookup& lookup);
  // The chooser's answer for misses_.
  Result<plan::LaneChoice> choose(const Lookup& lookup, size_t max_uploads);
  void pass_time(Link& link, double free_us);

  bool fills_ = true;
  double other_us_ = 0;
  double cheapest_us_ = 0;
  bool all_on_cpu_ = false;
  std::vector<GroupState> groups_;
  std::vector<Link> links_;
  std::vector<PendingFill> arrived_;
  plan::LaneChooser chooser_;
  std::vector<plan::Miss> misses_;
  std::vector<int32_t> cpu_experts_;
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_LANE_PLANNER_H_
