// The inside of ExpertCache: what it holds, and the steps of planning a lookup. For expert_cache.cc
// and expert_cache_state.cc only.
// Thread-compatible.
#ifndef HOTSET_CACHE_EXPERT_CACHE_STATE_H_
#define HOTSET_CACHE_EXPERT_CACHE_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hotset/cache/expert_cache.h"

namespace hotset::cache {

// A number that is not negative, as an index.
constexpr size_t index(int32_t i) { return static_cast<size_t>(i); }

struct GroupState {
  GroupSpec spec;
  std::vector<int32_t> layers;  // ascending
  SlotTable table;
  std::unique_ptr<policy::Policy> policy;  // nullptr without slots
  std::vector<uint64_t> needed_stamps;     // [n_slots] lookup that needs the slot
  std::vector<int64_t> entered_at;         // [n_slots] clock of the expert's layer
  std::vector<BatchClass> fill_batch;      // [n_slots] of the lookup that queued the slot's fill
};

struct LayerState {
  int32_t group = -1;
  int32_t layer_index = 0;  // in the group
  int64_t clock = 0;
  LayerCounts counts;
};

// An expert of the lookup being planned.
struct Selected {
  int32_t expert = 0;
  int32_t n_pairs = 0;
  bool to_cpu = false;
};

struct ExpertCache::State {
  std::string policy_name;
  std::vector<GroupState> groups;
  std::vector<LayerState> layers;  // by number in the model

  // The lookup being planned; serial is its stamp, last_classified is 0 once the state has moved
  // on.
  uint64_t serial = 0;
  uint64_t last_classified = 0;
  Lookup lookup;
  size_t n_pairs = 0;
  // Scratch, sized for a lookup that selects every expert of the widest group.
  std::vector<uint64_t> selected_stamps;  // [n_expert]
  std::vector<int32_t> selected_at;       // [n_expert] in `selected`, if stamped
  std::vector<Selected> selected;         // in order of first appearance
  std::vector<policy::Use> uses;          // the same experts
  std::vector<Hit> hits;
  std::vector<Miss> misses;
  std::vector<policy::Victim> victims;
  std::vector<Place> places;
  std::vector<int32_t> order;  // misses by preference
  std::vector<int32_t> upload_experts;
  std::vector<Upload> uploads;
  std::vector<int32_t> cpu_experts;
  std::vector<Eviction> evictions;
  std::vector<Fill> fills;

  // nullptr for a layer that no group has.
  template <typename Self>
  auto* find_layer(this Self& self, int32_t layer) {
    const bool known =
        layer >= 0 && index(layer) < self.layers.size() && self.layers[index(layer)].group >= 0;
    return known ? &self.layers[index(layer)] : nullptr;
  }
  void resize_scratch();
  void collect(std::span<const int32_t> ids);
  void split_hits_and_misses(GroupState& group, int32_t layer_index);
  void find_places(GroupState& group, int32_t layer_index);
  Status check_current(const Lookup& asked) const;
  Status mark_cpu(std::span<const int32_t> experts);
  size_t choose_uploads(const GroupState& group, policy::ExpertIndex first_expert);
  size_t choose_inserts(const GroupState& group, policy::ExpertIndex first_expert,
                        int32_t max_inserts);
  void vacate(GroupState& group, const Place& place);
  void place_uploads(GroupState& group, policy::ExpertIndex first_expert, size_t n_places);
  void queue_fills(GroupState& group, policy::ExpertIndex first_expert, size_t n_places,
                   int32_t max_fills);
  // Experts without a slot are counted as `without_slot`.
  LookupPlan finish(LayerState& layer, GroupState& group, uint64_t CacheCounts::* without_slot);
  const policy::Victim* victim_of(size_t place) const;
  bool is_uploaded(const Miss& miss) const;
  Result<GroupState*> find_slot(int32_t group, int32_t slot);
  // Makes a reserved slot empty; returns where its fill is counted.
  Result<CacheCounts*> release_fill(int32_t group, int32_t slot);
};

}  // namespace hotset::cache

#endif  // HOTSET_CACHE_EXPERT_CACHE_STATE_H_
