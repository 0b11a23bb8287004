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
#include <optional>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/plan/lane_chooser.h"
#include "hotset/plan/lane_costs.h"
#include "hotset/plan/upload_value.h"

namespace hotset::lanes {

// Lookups of more tokens are taken for prompts: they are streamed where a fixed share, and not the
// costs, says what crosses the link.
inline constexpr int32_t kMaxDecodeTokens = 32;

// The part of a layer's experts from which on its lookups are taken to need all of them.
inline constexpr double kNearlyAll = 0.9;

// How many experts a half of a group's staging area holds: what passes through in prefills comes in
// chunks, one of which is copied while the one before it is computed.
int64_t stage_experts(const GroupSpec& group);

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

  // Lookups of more tokens than this are streamed; none: the costs decide for each lookup.
  void set_max_decode_tokens(std::optional<int32_t> n) { max_decode_tokens_ = n; }

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

  // Whether the misses of a lookup of several tokens should be streamed, in chunks of which one is
  // computed while the next is copied, and change nothing but empty slots, instead of being
  // uploaded into the slots of others before they are computed: by what either takes, and by what
  // the experts that would come in are worth above those that would go. One token is never
  // streamed. The lookup is one that is not committed. Requires: lookup.cached, unless a number of
  // tokens decides.
  Result<bool> streams(const Lookup& lookup);

  // How a prefill is served: `n_uploads` of its misses, those with the most tokens, cross the link,
  // the CPU lane takes the others; or it takes everything, resident experts included.
  struct Prefill {
    size_t n_uploads = 0;
    bool all_on_cpu = false;
    double us = 0;  // from ids to result rows
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
    int64_t stage_experts = 1;
    int64_t n_expert = 0;  // of a layer
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
  // What copying the first chunk while the layer's attention is computed saves, if enough of the
  // experts are needed that it can be copied before it is known which.
  double prefetched_us(const GroupState& state, const Lookup& lookup, size_t n_uploads) const;
  // misses_ and the chooser's answer, with what uploads are worth later.
  Result<plan::LaneChoice> choose_with_values(const Lookup& lookup);
  // What `n_uploads` misses are worth in the places they would get, each above what it would push
  // out; only of those that get empty slots, if not `evicts`.
  double admission_us(const GroupState& state, const Lookup& lookup, size_t n_uploads,
                      bool evicts) const;
  // What a choice for a lookup takes; of several tokens, less what its uploads are worth later.
  double cached_us(const GroupState& state, const Lookup& lookup,
                   const plan::LaneChoice& choice) const;
  // The chooser's answer for misses_.
  Result<plan::LaneChoice> choose(const Lookup& lookup, size_t max_uploads);
  void pass_time(Link& link, double free_us);

  bool fills_ = true;
  std::optional<int32_t> max_decode_tokens_ = kMaxDecodeTokens;
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
