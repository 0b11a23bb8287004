#include "hotset/cache/expert_cache.h"

#include <algorithm>
#include <utility>

#include "hotset/cache/expert_cache_state.h"

namespace hotset::cache {

ExpertCache::ExpertCache(std::unique_ptr<State> state) : state_(std::move(state)) {}
ExpertCache::ExpertCache(ExpertCache&&) noexcept = default;
ExpertCache& ExpertCache::operator=(ExpertCache&&) noexcept = default;
ExpertCache::~ExpertCache() = default;

Result<ExpertCache> ExpertCache::create(std::vector<CacheGroup> groups, std::string_view policy) {
  HOTSET_TRY(const policy::PolicyTraits traits, policy::policy_traits(policy));
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
        .entered_at = std::vector<int64_t>(static_cast<size_t>(n_slots)),
        .fill_batch = std::vector<BatchClass>(static_cast<size_t>(n_slots))};
    made.layers = made.spec.layers;
    std::ranges::sort(made.layers);
    if (n_slots > 0) {
      HOTSET_TRY(made.policy,
                 policy::make_policy(
                     policy, {.shape = {.n_layers = static_cast<int32_t>(made.layers.size()),
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
  const policy::ExpertIndex first_expert = layer.layer_index * group.spec.n_expert;
  s.evictions.clear();
  s.fills.clear();
  const size_t n_places = s.choose_uploads(group, first_expert);
  if (group.policy) group.policy->on_lookup(layer.layer_index, s.uses);
  s.place_uploads(group, first_expert, n_places);
  if (decision.max_fills > 0) s.queue_fills(group, first_expert, n_places, decision.max_fills);
  return s.finish(layer, group, &CacheCounts::cpu);
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
  const policy::ExpertIndex first_expert = layer.layer_index * group.spec.n_expert;
  s.evictions.clear();
  s.fills.clear();
  const size_t n_places = s.choose_inserts(group, first_expert, max_inserts);
  if (group.policy) group.policy->on_lookup(layer.layer_index, s.uses);
  s.place_uploads(group, first_expert, n_places);
  return s.finish(layer, group, &CacheCounts::streamed);
}

Result<bool> ExpertCache::complete_fill(int32_t group, int32_t slot) {
  State& s = *state_;
  HOTSET_TRY(GroupState * found, s.find_slot(group, slot));
  const policy::ExpertIndex expert = found->table.reserved_expert(slot);
  HOTSET_TRY(CacheCounts * counts, s.release_fill(group, slot));
  if (found->table.slot_of(expert) != policy::kNoSlot) {
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
  HOTSET_TRY(CacheCounts * counts, state_->release_fill(group, slot));
  counts->fills_dropped++;
  return {};
}

Status ExpertCache::drop(int32_t group, int32_t slot) {
  HOTSET_TRY(GroupState * found, state_->find_slot(group, slot));
  if (found->table.expert_in(slot) < 0) {
    return make_error(ErrorCode::kInvalidArgument, "group {}: slot {} holds no expert", group,
                      slot);
  }
  const policy::ExpertIndex expert = found->table.evict(slot);
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
  const policy::ExpertIndex expert = layer->layer_index * group.spec.n_expert + key.expert;
  const int32_t slot = group.table.first_empty();
  if (slot == policy::kNoSlot) {
    return make_error(ErrorCode::kOutOfMemory, "layer {}: expert {}: all {} slots are taken",
                      key.layer, key.expert, group.table.n_slots());
  }
  if (group.table.slot_of(expert) != policy::kNoSlot ||
      group.table.reserved_for(expert) != policy::kNoSlot ||
      !group.policy->admits(expert, nullptr)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "layer {}: expert {} is resident, on its way, or declined by the policy",
                      key.layer, key.expert);
  }
  group.table.reserve(expert, slot);
  group.fill_batch[index(slot)] = BatchClass::kOne;
  layer->counts[BatchClass::kOne].fills++;
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

const policy::Policy* ExpertCache::policy(int32_t group) const {
  return state_->groups.at(index(group)).policy.get();
}

std::string_view ExpertCache::policy_name() const { return state_->policy_name; }

ExpertKey ExpertCache::key_of(int32_t group, policy::ExpertIndex expert) const {
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

const LayerCounts& ExpertCache::counts(int32_t layer) const {
  static const LayerCounts kNothing;
  const LayerState* at = state_->find_layer(layer);
  return at == nullptr ? kNothing : at->counts;
}

CacheCounts& ExpertCache::account(int32_t layer, BatchClass batch) {
  LayerState* at = state_->find_layer(layer);
  HOTSET_CHECK(at != nullptr);
  return at->counts[batch];
}

CacheCounts ExpertCache::total_counts() const {
  CacheCounts sum;
  for (const LayerState& layer : state_->layers) sum += layer.counts.total();
  return sum;
}

void ExpertCache::reset_counts() {
  for (LayerState& layer : state_->layers) layer.counts = {};
}

}  // namespace hotset::cache
