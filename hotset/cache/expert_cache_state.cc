#include "hotset/cache/expert_cache_state.h"

#include <algorithm>

namespace hotset::cache {

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
  const policy::ExpertIndex first_expert = layer_index * group.spec.n_expert;
  for (const Selected& one : selected) {
    const policy::ExpertIndex expert = first_expert + one.expert;
    const int32_t slot = group.table.slot_of(expert);
    uses.push_back({expert, slot});
    if (slot != policy::kNoSlot) {
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
  int32_t slot = group.table.full() ? policy::kNoSlot : group.table.first_empty();
  while (slot != policy::kNoSlot && places.size() < misses.size()) {
    places.push_back({.slot = slot});
    slot = group.table.first_empty(slot + 1);
  }
  // victims[i] belongs to places[i]; those of empty slots are not used.
  const size_t n_empty = places.size();
  if (n_empty == misses.size()) return;
  const std::span<policy::Victim> wanted =
      std::span(victims).subspan(n_empty, misses.size() - n_empty);
  const int32_t n =
      group.policy->choose_victims({group.needed_stamps, serial, layer_index}, wanted);
  for (const policy::Victim& victim : wanted.first(index(n))) {
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
    if (!is_selected || uses[index(selected_at[index(expert)])].slot != policy::kNoSlot) {
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

const policy::Victim* ExpertCache::State::victim_of(size_t place) const {
  return places[place].evicts < 0 ? nullptr : &victims[place];
}

bool ExpertCache::State::is_uploaded(const Miss& miss) const {
  return !selected[index(selected_at[index(miss.expert)])].to_cpu;
}

// Fills upload_experts with the misses that get a place, the best-scored first, and returns how
// many places they use. The others are marked for the CPU.
size_t ExpertCache::State::choose_uploads(const GroupState& group,
                                          policy::ExpertIndex first_expert) {
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
size_t ExpertCache::State::choose_inserts(const GroupState& group, policy::ExpertIndex first_expert,
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
void ExpertCache::State::place_uploads(GroupState& group, policy::ExpertIndex first_expert,
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

void ExpertCache::State::queue_fills(GroupState& group, policy::ExpertIndex first_expert,
                                     size_t n_places, int32_t max_fills) {
  for (size_t i = misses.size(); i-- > 0;) {
    if (fills.size() == index(max_fills) || n_places == places.size()) break;
    const Miss& miss = misses[i];
    if (is_uploaded(miss) || miss.fill_slot != policy::kNoSlot) continue;
    const Place& place = places[n_places];
    // The others do not score higher, and would replace the same victim.
    if (place.evicts >= 0 && miss.score <= place.score) break;
    const policy::ExpertIndex expert = first_expert + miss.expert;
    if (!group.policy->admits(expert, victim_of(n_places))) continue;
    vacate(group, place);
    group.table.reserve(expert, place.slot);
    group.fill_batch[index(place.slot)] = batch_class(lookup.n_tokens);
    fills.push_back(
        {.group = lookup.group, .slot = place.slot, .key = {lookup.layer, miss.expert}});
    n_places++;
  }
}

// Counts, advances the clock and describes what was done.
LookupPlan ExpertCache::State::finish(LayerState& layer, GroupState& group,
                                      uint64_t CacheCounts::* without_slot) {
  cpu_experts.clear();
  CacheCounts& counts = layer.counts[batch_class(lookup.n_tokens)];
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
  counts.hit_bytes += group.spec.bytes_per_expert() * std::ssize(hits);
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

Result<CacheCounts*> ExpertCache::State::release_fill(int32_t group, int32_t slot) {
  HOTSET_TRY(GroupState * found, find_slot(group, slot));
  const policy::ExpertIndex expert = found->table.reserved_expert(slot);
  if (expert < 0) {
    return make_error(ErrorCode::kInvalidArgument, "group {}: slot {} is not reserved for a fill",
                      group, slot);
  }
  found->table.release(slot);
  last_classified = 0;
  const int32_t layer = found->layers[index(expert / found->spec.n_expert)];
  return &layers[index(layer)].counts[found->fill_batch[index(slot)]];
}

}  // namespace hotset::cache
