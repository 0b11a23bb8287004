// What each way to serve a lookup takes: every split of its misses between link and CPU lane, with
// slots or streamed in chunks, and the CPU alone. Each is costed once per lookup; whoever decides
// reads it from there.
// Owns its estimates of what an upload is worth. Allocates nothing per lookup. Thread-compatible.
#ifndef HOTSET_LANES_SPLIT_COSTS_H_
#define HOTSET_LANES_SPLIT_COSTS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/lanes/lane_chooser.h"
#include "hotset/lanes/lane_costs.h"
#include "hotset/lanes/upload_value.h"

namespace hotset::lanes {

// The part of a layer's experts from which on its lookups are taken to need all of them.
inline constexpr double kNearlyAll = 0.9;

// How many experts a half of a group's staging area holds: what passes through in prefills comes in
// chunks, one of which is copied while the one before it is computed.
int64_t stage_experts(const cache::GroupSpec& group);

// A lookup's ways, costed. Spans hold until the next lookup is costed.
struct CostedLookup {
  // Into slots, with what uploads are worth later; candidates for as many as get a place.
  LaneChoice cached = {};
  // Of several tokens: in chunks. Its candidates, for all misses, leave out what computing the
  // chunks takes, which streamed_us() has.
  std::optional<LaneChoice> streamed = {};
  double all_on_cpu_us = 0;  // everything, resident experts included
  double hit_us = 0;         // of the resident experts on the device
  double cheapest_us = 0;    // of all splits with slots, and of the CPU alone
};

class SplitCosts {
 public:
  // `costs` of each group of `cache`, which is read here only.
  // Errors: kInvalidArgument, a cost is out of range or their number wrong.
  static Result<SplitCosts> create(std::span<const LaneCosts> costs,
                                   const cache::ExpertCache& cache);

  // Costs of a group as they are known now. Requires: validate(costs).
  void set_costs(int32_t group, const LaneCosts& costs) { of(group).costs = costs; }
  const LaneCosts& costs(int32_t group) const { return of(group).costs; }

  // What besides the lookup is known of the moment.
  struct Moment {
    bool fills = true;          // what the CPU serves may be copied in the background
    double outstanding_us = 0;  // of fills that are on their way
    double other_us = 0;        // what a layer takes beside its experts
  };
  // Errors: kInvalidArgument, a time is out of range.
  Result<CostedLookup> cost(const cache::Lookup& lookup, const Moment& moment);

  // Whether a lookup of several tokens is done sooner if its misses are streamed, instead of being
  // uploaded into the slots of others before they are computed: by what either takes, and by what
  // the experts that would come in are worth above those that would go.
  // Requires: lookup.cached, costed.streamed.
  bool prefers_streaming(const cache::Lookup& lookup, const CostedLookup& costed,
                         const Moment& moment) const;
  // Whether it is done sooner if the CPU computes the resident experts too: starting a graph and
  // bringing scattered rows back can cost more than a few hits save. Then no miss is uploaded.
  bool prefers_all_on_cpu(const cache::Lookup& lookup, const CostedLookup& costed) const;
  // What a streamed lookup takes of which `n_uploads` misses, those with the most tokens, cross the
  // link. Requires: costed.streamed, n_uploads <= lookup.misses.size().
  double streamed_us(const cache::Lookup& lookup, const CostedLookup& costed, size_t n_uploads,
                     const Moment& moment) const;
  // Of `n` experts, alone on the link.
  double copy_us(int32_t group, size_t n) const;

  // What the misses of a lookup cost and how long experts stay: what uploads are worth later goes
  // by it. Errors: kInvalidArgument.
  Status observe(const cache::Lookup& lookup, const CostedLookup& costed,
                 std::span<const cache::Eviction> evictions);

 private:
  struct Group {
    LaneCosts costs;
    UploadValue value;
    Bytes expert_bytes;
    int64_t stage_experts = 1;
    int64_t n_expert = 0;  // of a layer
  };

  explicit SplitCosts(size_t max_misses) : cached_(max_misses), streamed_(max_misses) {
    misses_.reserve(max_misses);
    worthless_.reserve(max_misses);
  }

  Group& of(int32_t group) { return groups_[group]; }
  const Group& of(int32_t group) const { return groups_[group]; }
  void list_misses(const Group& group, const cache::Lookup& lookup);
  double hit_us(const Group& group, const cache::Lookup& lookup) const;
  double all_on_cpu_us(const Group& group, const cache::Lookup& lookup) const;
  // What copying the first chunk while the layer's attention is computed saves, if enough of the
  // experts are needed that it can be copied before it is known which.
  double prefetched_us(const Group& group, const cache::Lookup& lookup, size_t n_uploads,
                       double other_us) const;
  // What `n_uploads` misses are worth in the places they would get, each above what it would push
  // out; only of those that get empty slots, if not `evicts`.
  double admission_us(const Group& group, const cache::Lookup& lookup, size_t n_uploads,
                      bool evicts) const;
  // What the chosen split with slots takes; of several tokens, less what its uploads are worth
  // later.
  double cached_us(const Group& group, const cache::Lookup& lookup,
                   const CostedLookup& costed) const;

  std::vector<Group> groups_;
  LaneChooser cached_;
  LaneChooser streamed_;
  std::vector<UploadCandidate> misses_;     // with what their uploads are worth later
  std::vector<UploadCandidate> worthless_;  // as streamed ones are
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_SPLIT_COSTS_H_
