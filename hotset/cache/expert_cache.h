// The expert cache without its memory: it knows which expert is in which slot of which group, and
// plans lookups. The engine and the simulator drive the same object; no device is needed.
//
// A lookup is planned in two phases:
//   classify(layer, ids, n_tokens, k)  -> hits, scored misses, prospective victims. Changes
//   nothing. commit(lookup, decision)           -> uploads, CPU experts, evictions, fills. Acts.
// or commit_prefill(lookup, ...) in the place of commit. A lookup that is not committed (the caller
// gave up, or bypasses the cache) has no effect.
//
// Owns policies, slot tables and statistics; the spans in its answers point into it and live until
// the next call of classify or commit on it. Allocates nothing after create(), except for the
// messages of errors.
// Thread-compatible; one lookup at a time.
#ifndef HOTSET_CACHE_EXPERT_CACHE_H_
#define HOTSET_CACHE_EXPERT_CACHE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/expert_key.h"
#include "hotset/base/units.h"
#include "hotset/cache/cache_counts.h"
#include "hotset/cache/fixed_share.h"
#include "hotset/cache/group.h"
#include "hotset/cache/slot_table.h"
#include "hotset/policy/registry.h"

namespace hotset::cache {

struct CacheGroup {
  GroupSpec spec = {};
  int64_t n_slots = 0;  // 0: the group is not cached, every expert is a miss for the CPU lane
  // For policies that need them, see PolicyConfig. Indexed by ExpertIndex of the group, its layers
  // in ascending order.
  std::span<const uint64_t> profile = {};
  const policy::NextUseOracle* future = nullptr;
};

// A resident expert of a lookup.
struct Hit {
  int32_t expert = 0;
  int32_t slot = 0;
  int32_t n_pairs = 0;  // how many pairs of the lookup are its
};

// A missing expert of a lookup.
struct Miss {
  int32_t expert = 0;
  int32_t n_pairs = 0;
  double score = 0;                     // expected uses per token, this use included
  int32_t fill_slot = policy::kNoSlot;  // a fill of it is on its way into this slot
};

// Where a missing expert could go.
struct Place {
  int32_t slot = policy::kNoSlot;
  policy::ExpertIndex evicts = -1;  // the resident expert that would go; -1 for an empty slot
  double score = 0;                 // its expected uses per token; 0 for an empty slot
};

// A classified lookup.
struct Lookup {
  int32_t layer = 0;  // number in the model
  int32_t group = 0;
  int32_t n_tokens = 0;
  int32_t k = 0;
  std::span<const Hit> hits = {};  // in order of first appearance in the ids
  // The CPU lane's candidates in order: lowest score first, ties by expert.
  std::span<const Miss> misses = {};
  // For uploads, in order of use: empty slots by number, then victims. Fewer than misses if the
  // lookup selects more than the group has free or evictable slots.
  std::span<const Place> places = {};
  bool group_full = false;  // no empty slot; true for a group that is not cached
  bool cached = true;       // the group has slots
  uint64_t version = 0;     // state of the cache that this describes
};

// What to do with the misses of a lookup.
struct Decision {
  // Misses for the CPU lane, in any order; the others are uploaded, the best-scored first if places
  // run out. What gets no place, or is declined by the policy, goes to the CPU lane too.
  std::span<const int32_t> cpu_experts = {};
  // How many fills may be queued for experts of the CPU lane: an expert whose score beats that of
  // the victim it would replace, any for an empty slot; best scores first.
  int32_t max_fills = 0;
};

struct Upload {
  int32_t expert = 0;
  int32_t slot = 0;
};

struct Eviction {
  ExpertKey key = {};
  int32_t slot = 0;
  int64_t residency_tokens = 0;  // tokens of its own layer since it entered
};

// A copy to start behind all demand uploads. Its slot is reserved until complete_fill or
// cancel_fill.
struct Fill {
  int32_t group = 0;
  int32_t slot = 0;
  ExpertKey key = {};
};

// A committed lookup. The slot table already says what is planned here.
struct LookupPlan {
  int32_t layer = 0;
  int32_t group = 0;
  std::span<const Upload> uploads = {};       // ascending experts; slots ascend with them
  std::span<const int32_t> cpu_experts = {};  // ascending. After commit_prefill: streamed instead
  std::span<const Eviction> evictions = {};   // slots that the uploads and fills took
  std::span<const Fill> fills = {};           // best score first
};

class ExpertCache {
 public:
  // Errors: those of check_groups and of make_policy; kInvalidArgument for n_slots outside
  // [0, number of experts]. A policy that needs all slots gets them, whatever n_slots says.
  static Result<ExpertCache> create(std::vector<CacheGroup> groups, std::string_view policy);

  ExpertCache(ExpertCache&&) noexcept;
  ExpertCache& operator=(ExpertCache&&) noexcept;
  ~ExpertCache();

  // ids [n_tokens, k], token-major.
  // Errors: kInvalidArgument for a layer without a group, n_tokens or k below 1, ids.size() that is
  // not n_tokens * k, or an id outside [0, n_expert); nothing has changed then.
  Result<Lookup> classify(int32_t layer, std::span<const int32_t> ids, int32_t n_tokens, int32_t k);

  // Serves the lookup: all selected experts are used and all hits promoted, then the uploads take
  // their places in ascending expert order, then the clock of the layer advances by n_tokens.
  // Errors: kInvalidArgument for a CPU expert that is not a miss or given twice, max_fills < 0, or
  // a lookup that is not the last one classified or does not describe the present state (something
  // was committed, filled, cancelled or dropped since); nothing has changed then.
  Result<LookupPlan> commit(const Lookup& lookup, const Decision& decision);

  // Serves a lookup of a prefill: clocks and scores advance, nothing is evicted; up to max_inserts
  // misses go into empty slots (the policy permitting), the most-routed first, ties by expert, the
  // others are streamed.
  // Errors: as commit, with max_inserts for max_fills.
  Result<LookupPlan> commit_prefill(const Lookup& lookup, int32_t max_inserts);

  // The copy of a fill has completed: its expert enters the table, unless it was uploaded meanwhile
  // (then the slot becomes empty). Returns whether it entered.
  // Errors: kInvalidArgument if the slot is not reserved.
  Result<bool> complete_fill(int32_t group, int32_t slot);
  // The fill will not happen: its slot becomes empty. Errors: as complete_fill.
  Status cancel_fill(int32_t group, int32_t slot);
  // The content of a slot is not what it should be (a copy failed): the expert leaves it and the
  // slot becomes empty. Errors: kInvalidArgument if no expert is in it.
  Status drop(int32_t group, int32_t slot);
  // Fills `expert` of `layer` in beforehand, for a profile's hot set: reserves an empty slot for
  // it. Errors: kInvalidArgument for a layer or expert out of range, one that is resident or on its
  // way; kOutOfMemory if no slot is empty.
  Result<Fill> reserve_fill(ExpertKey key);

  int32_t n_groups() const;
  // -1 for a layer that no group has.
  int32_t group_of(int32_t layer) const;
  const GroupSpec& spec(int32_t group) const;
  const SlotTable& slots(int32_t group) const;
  const policy::Policy* policy(int32_t group) const;  // nullptr for a group that is not cached
  std::string_view policy_name() const;
  // The expert's name, from its index in the group.
  ExpertKey key_of(int32_t group, policy::ExpertIndex expert) const;
  // [n_expert] slots of a layer's experts, kNoSlot for missing ones; empty for a layer without a
  // group. Valid as long as the cache.
  std::span<const int32_t> slot_map(int32_t layer) const;
  // Tokens that the layer has seen. 0 for a layer without a group.
  int64_t clock(int32_t layer) const;

  // All zero for a layer without a group.
  const LayerCounts& counts(int32_t layer) const;
  // Where whoever carries plans out adds what it did. Requires: the layer has a group.
  CacheCounts& account(int32_t layer, BatchClass batch);
  CacheCounts total_counts() const;
  void reset_counts();

 private:
  struct State;
  explicit ExpertCache(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace hotset::cache

#endif  // HOTSET_CACHE_EXPERT_CACHE_H_
