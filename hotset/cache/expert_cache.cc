#include "hotset/cache/expert_cache.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hotset {
namespace {

constexpr size_t index(int32_t i) { return static_cast<size_t>(i); }

struct GroupState {
  GroupSpec spec;
  std::vector<int32_t> layers;  // ascending
  SlotTable table;
  std::unique_ptr<Policy> policy;       // nullptr without slots
  std::vector<uint64_t> needed_stamps;  // [n_slots] lookup that needs the slot
  std::vector<int64_t> entered_at;      // [n_slots] clock of the expert's layer
};

struct LayerState {
  int32_t group = -1;
  int32_t layer_index = 0;  // in the group
  int64_t clock = 0;
  LayerStatistics statistics;
};

// An expert of the lookup being planned.
struct Selected {
  int32_t expert = 0;
  int32_t n_pairs = 0;
  bool to_cpu = false;
};

}  // namespace

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
  std::vector<Use> uses;                  // the same experts
  std::vector<Hit> hits;
  std::vector<Miss> misses;
  std::vector<Victim> victims;
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
  size_t choose_uploads(const GroupState& group, ExpertIndex first_expert);
  size_t choose_inserts(const GroupState& group, ExpertIndex first_expert, int32_t max_inserts);
  void vacate(GroupState& group, const Place& place);
  void place_uploads(GroupState& group, ExpertIndex first_expert, size_t n_places);
  void queue_fills(GroupState& group, ExpertIndex first_expert, size_t n_places, int32_t max_fills);
  // Experts without a slot are counted as `without_slot`.
  LookupPlan finish(LayerState& layer, GroupState& group, uint64_t LookupCounts::* without_slot);
  const Victim* victim_of(size_t place) const;
  bool is_uploaded(const Miss& miss) const;
  Result<GroupState*> find_slot(int32_t group, int32_t slot);
  // Makes a reserved slot empty; returns where its fill is counted.
  Result<LookupCounts*> release_fill(int32_t group, int32_t slot);
};

void ExpertCache::State::resize_scratch() {
  int32_t n_expert = 0;
  for (const GroupState& group : groups) n_expert = std::max(n_expert, group.spec.n_expert);
  const size_t n = index(n_expert);
  selected_stamps.resize(n);
  selected_at.resize(n);
  selected.reserve(n);
  uses.reserve(n);
  hits.reserve(n);
  misses.reserve(n);
  victims.resize(n);
  places.reserve(n);
  order.reserve(n);
  upload_experts.reserve(n);
  uploads.reserve(n);
  cpu_experts.reserve(n);
  evictions.reserve(n);
  fills.reserve(n);
}

// The distinct experts of ids. Requires: all in range.
void ExpertCache::State::collect(std::span<const int32_t> ids) {
  selected.clear();
  for (const int32_t id : ids) {
    if (selected_stamps[index(id)] == serial) {
      selected[index(selected_at[index(id)])].n_pairs++;
      continue;
    }
    selected_stamps[index(id)] = serial;
    selected_at[index(id)] = static_cast<int32_t>(selected.size());
    selected.push_back({.expert = id, .n_pairs = 1});
  }
  n_pairs = ids.size();
}

void ExpertCache::State::split_hits_and_misses(GroupState& group, int32_t layer_index) {
  uses.clear();
  hits.clear();
  misses.clear();
  const ExpertIndex first_expert = layer_index * group.spec.n_expert;
  for (const Selected& one : selected) {
    const ExpertIndex expert = first_expert + one.expert;
    const int32_t slot = group.table.slot_of(expert);
    uses.push_back({expert, slot});
    if (slot != kNoSlot) {
      group.needed_stamps[index(slot)] = serial;
      hits.push_back({one.expert, slot, one.n_pairs});
    } else {
      misses.push_back({.expert = one.expert,
                        .n_pairs = one.n_pairs,
                        .score = group.policy ? group.policy->score_after_use(expert) : 0.0,
                        .fill_slot = group.table.reserved_for(expert)});
    }
  }
  if (misses.size() > 1) {
    std::ranges::sort(misses, [](const Miss& a, const Miss& b) {
      return a.score != b.score ? a.score < b.score : a.expert < b.expert;
    });
  }
}

void ExpertCache::State::find_places(GroupState& group, int32_t layer_index) {
  places.clear();
  if (misses.empty() || !group.policy) return;
  int32_t slot = group.table.full() ? kNoSlot : group.table.first_empty();
  while (slot != kNoSlot && places.size() < misses.size()) {
    places.push_back({.slot = slot});
    slot = group.table.first_empty(slot + 1);
  }
  // victims[i] belongs to places[i]; those of empty slots are not used.
  const size_t n_empty = places.size();
  if (n_empty == misses.size()) return;
  const std::span<Victim> wanted = std::span(victims).subspan(n_empty, misses.size() - n_empty);
  const int32_t n =
      group.policy->choose_victims({group.needed_stamps, serial, layer_index}, wanted);
  for (const Victim& victim : wanted.first(index(n))) {
    places.push_back({victim.slot, victim.expert, victim.score});
  }
}

Status ExpertCache::State::check_current(const Lookup& asked) const {
  if (asked.version == 0 || asked.version != last_classified) {
    return make_error(ErrorCode::kInvalidArgument,
                      "lookup {} of layer {} is out of date: the cache has moved on to {}",
                      asked.version, asked.layer, last_classified);
  }
  return {};
}

Status ExpertCache::State::mark_cpu(std::span<const int32_t> experts) {
  for (Selected& one : selected) one.to_cpu = false;
  const GroupState& group = groups[index(lookup.group)];
  for (const int32_t expert : experts) {
    const bool is_selected =
        expert >= 0 && expert < group.spec.n_expert && selected_stamps[index(expert)] == serial;
    if (!is_selected || uses[index(selected_at[index(expert)])].slot != kNoSlot) {
      return make_error(ErrorCode::kInvalidArgument,
                        "layer {}: expert {} is given to the CPU, but is not a miss of the lookup",
                        lookup.layer, expert);
    }
    Selected& one = selected[index(selected_at[index(expert)])];
    if (one.to_cpu) {
      return make_error(ErrorCode::kInvalidArgument,
                        "layer {}: expert {} is given to the CPU twice", lookup.layer, expert);
    }
    one.to_cpu = true;
  }
  return {};
}

const Victim* ExpertCache::State::victim_of(size_t place) const {
  return places[place].evicts < 0 ? nullptr : &victims[place];
}

bool ExpertCache::State::is_uploaded(const Miss& miss) const {
  return !selected[index(selected_at[index(miss.expert)])].to_cpu;
}

// Fills upload_experts with the misses that get a place, the best-scored first, and returns how
// many places they use. The others are marked for the CPU.
size_t ExpertCache::State::choose_uploads(const GroupState& group, ExpertIndex first_expert) {
  upload_experts.clear();
  for (size_t i = misses.size(); i-- > 0;) {
    Selected& one = selected[index(selected_at[index(misses[i].expert)])];
    if (one.to_cpu) continue;
    const size_t place = upload_experts.size();
    if (place < places.size() &&
        group.policy->admits(first_expert + one.expert, victim_of(place))) {
      upload_experts.push_back(one.expert);
    } else {
      one.to_cpu = true;
    }
  }
  return upload_experts.size();
}

// The same for a prefill: empty slots only, the most-routed first.
size_t ExpertCache::State::choose_inserts(const GroupState& group, ExpertIndex first_expert,
                                          int32_t max_inserts) {
  upload_experts.clear();
  order.clear();
  for (size_t i = 0; i < misses.size(); i++) order.push_back(static_cast<int32_t>(i));
  std::ranges::sort(order, [&](int32_t a, int32_t b) {
    const Miss& left = misses[index(a)];
    const Miss& right = misses[index(b)];
    return left.n_pairs != right.n_pairs ? left.n_pairs > right.n_pairs
                                         : left.expert < right.expert;
  });
  for (const int32_t i : order) {
    Selected& one = selected[index(selected_at[index(misses[index(i)].expert)])];
    const size_t place = upload_experts.size();
    const bool has_place = place < index(max_inserts) && place < places.size() &&
                           places[place].evicts < 0 &&
                           group.policy->admits(first_expert + one.expert, nullptr);
    one.to_cpu = !has_place;
    if (has_place) upload_experts.push_back(one.expert);
  }
  return upload_experts.size();
}

// Empties the slot of a place.
void ExpertCache::State::vacate(GroupState& group, const Place& place) {
  if (place.evicts < 0) return;
  group.table.evict(place.slot);
  group.policy->on_evict(place.evicts, place.slot);
  const int32_t layer = group.layers[index(place.evicts / group.spec.n_expert)];
  evictions.push_back(
      {.key = {layer, place.evicts % group.spec.n_expert},
       .slot = place.slot,
       .residency_tokens = layers[index(layer)].clock - group.entered_at[index(place.slot)]});
}

// Ascending experts go to ascending slots, so that neighbours' copies merge where they can. Which
// of the chosen slots an expert gets changes no later decision: policies rank experts.
void ExpertCache::State::place_uploads(GroupState& group, ExpertIndex first_expert,
                                       size_t n_places) {
  uploads.clear();
  for (size_t i = 0; i < n_places; i++) {
    vacate(group, places[i]);
    uploads.push_back({.expert = 0, .slot = places[i].slot});
  }
  if (n_places > 1) {
    std::ranges::sort(upload_experts);
    std::ranges::sort(uploads, {}, &Upload::slot);
  }
  const int64_t now = layers[index(lookup.layer)].clock;
  for (size_t i = 0; i < n_places; i++) {
    uploads[i].expert = upload_experts[i];
    group.table.insert(first_expert + upload_experts[i], uploads[i].slot);
    group.policy->on_insert(first_expert + upload_experts[i], uploads[i].slot);
    group.entered_at[index(uploads[i].slot)] = now;
  }
}

void ExpertCache::State::queue_fills(GroupState& group, ExpertIndex first_expert, size_t n_places,
                                     int32_t max_fills) {
  for (size_t i = misses.size(); i-- > 0;) {
    if (fills.size() == index(max_fills) || n_places == places.size()) break;
    const Miss& miss = misses[i];
    if (is_uploaded(miss) || miss.fill_slot != kNoSlot) continue;
    const Place& place = places[n_places];
    // Scores only fall from here and victims only get better.
    if (place.evicts >= 0 && miss.score <= place.score) break;
    const ExpertIndex expert = first_expert + miss.expert;
    if (!group.policy->admits(expert, victim_of(n_places))) continue;
    vacate(group, place);
    group.table.reserve(expert, place.slot);
    fills.push_back(
        {.group = lookup.group, .slot = place.slot, .key = {lookup.layer, miss.expert}});
    n_places++;
  }
}

// Counts, advances the clock and describes what was done.
LookupPlan ExpertCache::State::finish(LayerState& layer, GroupState& group,
                                      uint64_t LookupCounts::* without_slot) {
  cpu_experts.clear();
  LookupCounts& counts = layer.statistics[batch_class(lookup.n_tokens)];
  for (const Selected& one : selected) {
    if (one.to_cpu) cpu_experts.push_back(one.expert);
  }
  if (cpu_experts.size() > 1) std::ranges::sort(cpu_experts);
  for (const Hit& hit : hits) counts.hit_pairs += static_cast<uint64_t>(hit.n_pairs);
  counts.lookups++;
  counts.tokens += static_cast<uint64_t>(lookup.n_tokens);
  counts.pairs += n_pairs;
  counts.selected += selected.size();
  counts.hits += hits.size();
  counts.uploads += uploads.size();
  counts.*without_slot += cpu_experts.size();
  counts.evictions += evictions.size();
  counts.fills += fills.size();
  if (group.policy) group.policy->on_advance(layer.layer_index, lookup.n_tokens);
  layer.clock += lookup.n_tokens;
  last_classified = 0;
  return {.layer = lookup.layer,
          .group = lookup.group,
          .uploads = uploads,
          .cpu_experts = cpu_experts,
          .evictions = evictions,
          .fills = fills};
}

ExpertCache::ExpertCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
ExpertCache::ExpertCache(ExpertCache&&) noexcept = default;
ExpertCache& ExpertCache::operator=(ExpertCache&&) noexcept = default;
ExpertCache::~ExpertCache() = default;

Result<ExpertCache> ExpertCache::create(std::vector<CacheGroup> groups, std::string_view policy) {
  HOTSET_TRY(const PolicyTraits traits, policy_traits(policy));
  std::vector<GroupSpec> specs;
  for (const CacheGroup& group : groups) specs.push_back(group.spec);
  HOTSET_RETURN_IF_ERROR(check_groups(specs));

  auto state = std::make_unique<State>();
  state->policy_name = policy;
  for (CacheGroup& group : groups) {
    const int64_t n_experts = group.spec.n_experts();
    const int64_t n_slots = traits.needs_all_slots ? n_experts : group.n_slots;
    if (n_slots < 0 || n_slots > n_experts) {
      return make_error(ErrorCode::kInvalidArgument,
                        "group of layer {}: {} slots, expected 0 to {}", group.spec.layers.front(),
                        n_slots, n_experts);
    }
    GroupState made{
        .spec = std::move(group.spec),
        .layers = {},
        .table = SlotTable(static_cast<int32_t>(n_experts), static_cast<int32_t>(n_slots)),
        .policy = nullptr,
        .needed_stamps = std::vector<uint64_t>(static_cast<size_t>(n_slots)),
        .entered_at = std::vector<int64_t>(static_cast<size_t>(n_slots))};
    made.layers = made.spec.layers;
    std::ranges::sort(made.layers);
    if (n_slots > 0) {
      HOTSET_TRY(
          made.policy,
          make_policy(policy, {.shape = {.n_layers = static_cast<int32_t>(made.layers.size()),
                                         .n_expert = made.spec.n_expert,
                                         .n_slots = static_cast<int32_t>(n_slots)},
                               .profile = group.profile,
                               .future = group.future}));
    }
    for (size_t i = 0; i < made.layers.size(); i++) {
      const size_t layer = index(made.layers[i]);
      if (layer >= state->layers.size()) state->layers.resize(layer + 1);
      state->layers[layer].group = static_cast<int32_t>(state->groups.size());
      state->layers[layer].layer_index = static_cast<int32_t>(i);
    }
    state->groups.push_back(std::move(made));
  }
  state->resize_scratch();
  return ExpertCache(std::move(state));
}

Result<Lookup> ExpertCache::classify(int32_t layer, std::span<const int32_t> ids, int32_t n_tokens,
                                     int32_t k) {
  State& s = *state_;
  const LayerState* at = s.find_layer(layer);
  if (at == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "layer {} has no experts in the cache's groups",
                      layer);
  }
  GroupState& group = s.groups[index(at->group)];
  if (n_tokens < 1 || k < 1 ||
      ids.size() != static_cast<uint64_t>(n_tokens) * static_cast<uint64_t>(k)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "layer {}: {} ids for {} tokens of {} experts, expected at least one token, "
                      "one expert, and an id for each pair",
                      layer, ids.size(), n_tokens, k);
  }
  for (const int32_t id : ids) {
    if (id < 0 || id >= group.spec.n_expert) {
      return make_error(ErrorCode::kInvalidArgument, "layer {}: expert {}, expected 0 to {}", layer,
                        id, group.spec.n_expert - 1);
    }
  }
  s.last_classified = ++s.serial;
  s.collect(ids);
  s.split_hits_and_misses(group, at->layer_index);
  s.find_places(group, at->layer_index);
  s.lookup = {.layer = layer,
              .group = at->group,
              .n_tokens = n_tokens,
              .k = k,
              .hits = s.hits,
              .misses = s.misses,
              .places = s.places,
              .group_full = group.table.full(),
              .cached = group.policy != nullptr,
              .version = s.serial};
  return s.lookup;
}

Result<LookupPlan> ExpertCache::commit(const Lookup& lookup, const Decision& decision) {
  State& s = *state_;
  HOTSET_RETURN_IF_ERROR(s.check_current(lookup));
  if (decision.max_fills < 0) {
    return make_error(ErrorCode::kInvalidArgument, "layer {}: max_fills is {}, expected at least 0",
                      lookup.layer, decision.max_fills);
  }
  HOTSET_RETURN_IF_ERROR(s.mark_cpu(decision.cpu_experts));
  LayerState& layer = s.layers[index(s.lookup.layer)];
  GroupState& group = s.groups[index(s.lookup.group)];
  const ExpertIndex first_expert = layer.layer_index * group.spec.n_expert;
  s.evictions.clear();
  s.fills.clear();
  const size_t n_places = s.choose_uploads(group, first_expert);
  if (group.policy) group.policy->on_lookup(layer.layer_index, s.uses);
  s.place_uploads(group, first_expert, n_places);
  if (decision.max_fills > 0) s.queue_fills(group, first_expert, n_places, decision.max_fills);
  return s.finish(layer, group, &LookupCounts::cpu);
}

Result<LookupPlan> ExpertCache::commit_prefill(const Lookup& lookup, int32_t max_inserts) {
  State& s = *state_;
  HOTSET_RETURN_IF_ERROR(s.check_current(lookup));
  if (max_inserts < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "layer {}: max_inserts is {}, expected at least 0", lookup.layer,
                      max_inserts);
  }
  LayerState& layer = s.layers[index(s.lookup.layer)];
  GroupState& group = s.groups[index(s.lookup.group)];
  const ExpertIndex first_expert = layer.layer_index * group.spec.n_expert;
  s.evictions.clear();
  s.fills.clear();
  const size_t n_places = s.choose_inserts(group, first_expert, max_inserts);
  if (group.policy) group.policy->on_lookup(layer.layer_index, s.uses);
  s.place_uploads(group, first_expert, n_places);
  return s.finish(layer, group, &LookupCounts::streamed);
}

Result<GroupState*> ExpertCache::State::find_slot(int32_t group, int32_t slot) {
  if (group < 0 || index(group) >= groups.size()) {
    return make_error(ErrorCode::kInvalidArgument, "group {}, but the cache has {}", group,
                      groups.size());
  }
  GroupState& found = groups[index(group)];
  if (slot < 0 || slot >= found.table.n_slots()) {
    return make_error(ErrorCode::kInvalidArgument, "group {}: slot {}, but it has {}", group, slot,
                      found.table.n_slots());
  }
  return &found;
}

Result<LookupCounts*> ExpertCache::State::release_fill(int32_t group, int32_t slot) {
  HOTSET_TRY(GroupState * found, find_slot(group, slot));
  const ExpertIndex expert = found->table.reserved_expert(slot);
  if (expert < 0) {
    return make_error(ErrorCode::kInvalidArgument, "group {}: slot {} is not reserved for a fill",
                      group, slot);
  }
  found->table.release(slot);
  last_classified = 0;
  const int32_t layer = found->layers[index(expert / found->spec.n_expert)];
  return &layers[index(layer)].statistics[BatchClass::kOne];
}

Result<bool> ExpertCache::complete_fill(int32_t group, int32_t slot) {
  State& s = *state_;
  HOTSET_TRY(GroupState * found, s.find_slot(group, slot));
  const ExpertIndex expert = found->table.reserved_expert(slot);
  HOTSET_TRY(LookupCounts * counts, s.release_fill(group, slot));
  if (found->table.slot_of(expert) != kNoSlot) {
    counts->fills_dropped++;
    return false;
  }
  counts->fills_entered++;
  found->table.insert(expert, slot);
  found->policy->on_insert(expert, slot);
  found->entered_at[index(slot)] =
      s.layers[index(found->layers[index(expert / found->spec.n_expert)])].clock;
  return true;
}

Status ExpertCache::cancel_fill(int32_t group, int32_t slot) {
  HOTSET_TRY(LookupCounts * counts, state_->release_fill(group, slot));
  counts->fills_dropped++;
  return {};
}

Status ExpertCache::drop(int32_t group, int32_t slot) {
  HOTSET_TRY(GroupState * found, state_->find_slot(group, slot));
  if (found->table.expert_in(slot) < 0) {
    return make_error(ErrorCode::kInvalidArgument, "group {}: slot {} holds no expert", group,
                      slot);
  }
  const ExpertIndex expert = found->table.evict(slot);
  found->policy->on_evict(expert, slot);
  state_->last_classified = 0;
  return {};
}

Result<Fill> ExpertCache::reserve_fill(ExpertKey key) {
  State& s = *state_;
  LayerState* layer = s.find_layer(key.layer);
  if (layer == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "layer {} has no experts in the cache's groups",
                      key.layer);
  }
  GroupState& group = s.groups[index(layer->group)];
  if (key.expert < 0 || key.expert >= group.spec.n_expert) {
    return make_error(ErrorCode::kInvalidArgument, "layer {}: expert {}, expected 0 to {}",
                      key.layer, key.expert, group.spec.n_expert - 1);
  }
  const ExpertIndex expert = layer->layer_index * group.spec.n_expert + key.expert;
  const int32_t slot = group.table.first_empty();
  if (slot == kNoSlot) {
    return make_error(ErrorCode::kOutOfMemory, "layer {}: expert {}: all {} slots are taken",
                      key.layer, key.expert, group.table.n_slots());
  }
  if (group.table.slot_of(expert) != kNoSlot || group.table.reserved_for(expert) != kNoSlot ||
      !group.policy->admits(expert, nullptr)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "layer {}: expert {} is resident, on its way, or declined by the policy",
                      key.layer, key.expert);
  }
  group.table.reserve(expert, slot);
  layer->statistics[BatchClass::kOne].fills++;
  s.last_classified = 0;
  return Fill{.group = layer->group, .slot = slot, .key = key};
}

int32_t ExpertCache::n_groups() const { return static_cast<int32_t>(state_->groups.size()); }

int32_t ExpertCache::group_of(int32_t layer) const {
  const LayerState* at = state_->find_layer(layer);
  return at == nullptr ? -1 : at->group;
}

const GroupSpec& ExpertCache::spec(int32_t group) const {
  return state_->groups.at(index(group)).spec;
}

const SlotTable& ExpertCache::slots(int32_t group) const {
  return state_->groups.at(index(group)).table;
}

const Policy* ExpertCache::policy(int32_t group) const {
  return state_->groups.at(index(group)).policy.get();
}

std::string_view ExpertCache::policy_name() const { return state_->policy_name; }

ExpertKey ExpertCache::key_of(int32_t group, ExpertIndex expert) const {
  const GroupState& of = state_->groups.at(index(group));
  return {of.layers.at(index(expert / of.spec.n_expert)), expert % of.spec.n_expert};
}

std::span<const int32_t> ExpertCache::slot_map(int32_t layer) const {
  const LayerState* at = state_->find_layer(layer);
  if (at == nullptr) return {};
  const GroupState& group = state_->groups[index(at->group)];
  const size_t n_expert = index(group.spec.n_expert);
  return group.table.slots_of_experts().subspan(index(at->layer_index) * n_expert, n_expert);
}

int64_t ExpertCache::clock(int32_t layer) const {
  const LayerState* at = state_->find_layer(layer);
  return at == nullptr ? 0 : at->clock;
}

const LayerStatistics& ExpertCache::statistics(int32_t layer) const {
  static const LayerStatistics kNothing;
  const LayerState* at = state_->find_layer(layer);
  return at == nullptr ? kNothing : at->statistics;
}

LookupCounts ExpertCache::total_statistics() const {
  LookupCounts sum;
  for (const LayerState& layer : state_->layers) sum += layer.statistics.total();
  return sum;
}

void ExpertCache::reset_statistics() {
  for (LayerState& layer : state_->layers) layer.statistics = {};
}

}  // namespace hotset
