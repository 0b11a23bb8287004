#include "hotset/lanes/lane_planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace hotset::lanes {
namespace {

// An expert that the CPU serves may enter by a fill a little later, so an upload is worth only what
// it saves until then, and not over its whole stay: with the whole stay the link of a large cache
// carries every miss, at up to 1.5 times the time. On the traces of docs/replay.md the modelled
// time is flat between 2 and 8 tokens.
constexpr double kFillHorizonTokens = 4;

// While there are empty slots, far more experts want in than fills can bring, and what enters
// stays. The modelled time of a run from a cold cache is flat between 80 and 100 tokens.
constexpr double kColdHorizonTokens = 96;

// A chunk large enough that starting its copies does not count, and small enough that the first
// one, which nothing overlaps with, does not either.
constexpr Bytes kMaxChunkBytes = mib(32);
constexpr int64_t kMinChunks = 8;

// Of an expert that enters an empty slot. A prompt does not wait for what only later tokens gain.
double cold_value_us(const plan::UploadValue& value, const Lookup& lookup, double score) {
  if (lookup.n_tokens > kMaxDecodeTokens) return 0;
  return std::min(plan::kMaxCost, value.saving_us() * kColdHorizonTokens * score);
}

}  // namespace

int64_t stage_experts(const GroupSpec& group) {
  const int64_t fit = kMaxChunkBytes.count / group.bytes_per_expert().count;
  return std::clamp<int64_t>(fit, 1, std::max<int64_t>(1, group.n_expert / kMinChunks));
}

Result<LanePlanner> LanePlanner::create(const plan::LaneRates& rates, const ExpertCache& cache) {
  std::vector<plan::LaneCosts> costs;
  for (int32_t g = 0; g < cache.n_groups(); ++g) {
    HOTSET_TRY(costs.emplace_back(),
               plan::costs_from_rates(rates, cache.spec(g).bytes_per_expert()));
  }
  return create(costs, cache);
}

Result<LanePlanner> LanePlanner::create(std::span<const plan::LaneCosts> costs,
                                        const ExpertCache& cache) {
  if (std::cmp_not_equal(costs.size(), cache.n_groups())) {
    return make_error(ErrorCode::kInvalidArgument, "costs of {} groups, expected {}", costs.size(),
                      cache.n_groups());
  }
  size_t max_misses = 0;
  for (int32_t g = 0; g < cache.n_groups(); ++g) {
    max_misses = std::max(max_misses, static_cast<size_t>(cache.spec(g).n_expert));
  }
  LanePlanner planner(max_misses);
  planner.misses_.reserve(max_misses);
  planner.arrived_.reserve(max_misses);
  std::map<uint32_t, size_t> link_of_device;
  for (int32_t g = 0; g < cache.n_groups(); ++g) {
    const plan::LaneCosts& of_group = costs[static_cast<size_t>(g)];
    HOTSET_RETURN_IF_ERROR(plan::validate(of_group));
    const GroupSpec& spec = cache.spec(g);
    const Bytes expert_bytes = spec.bytes_per_expert();
    // Before anything is seen, a miss is taken to cost what the cheaper lane takes for it alone.
    const double one_upload_us =
        of_group.upload_solo_us.at(static_cast<double>(expert_bytes.count)) +
        of_group.pairs.turn_us;
    const double one_cpu_us =
        of_group.cpu_solo.turn_us + of_group.cpu_solo.expert_us.at(1) + of_group.rows_us;
    HOTSET_TRY(plan::UploadValue value,
               plan::UploadValue::create({.saving_us = std::min(one_upload_us, one_cpu_us),
                                          .residency_tokens = kFillHorizonTokens}));
    const auto [link, is_new] = link_of_device.try_emplace(spec.device, link_of_device.size());
    if (is_new) planner.links_.emplace_back().fills.reserve(max_misses);
    planner.groups_.push_back(
        {of_group, value, expert_bytes, link->second, stage_experts(spec), spec.n_expert});
  }
  return planner;
}

double LanePlanner::hit_us(const GroupState& state, const Lookup& lookup) const {
  if (lookup.hits.empty()) return 0;
  double us = state.costs.pairs.turn_us;
  for (const Hit& hit : lookup.hits) us += state.costs.pairs.expert_us.at(hit.n_pairs);
  return us;
}

double LanePlanner::copy_us(const GroupState& state, size_t n_experts) const {
  if (n_experts == 0) return 0;
  return state.costs.upload_solo_us.at(static_cast<double>(n_experts) *
                                       static_cast<double>(state.expert_bytes.count));
}

Result<plan::LaneChoice> LanePlanner::choose(const Lookup& lookup, size_t max_uploads) {
  const GroupState& state = groups_[static_cast<size_t>(lookup.group)];
  return chooser_.choose(state.costs,
                         {.expert_bytes = state.expert_bytes,
                          .hit_us = hit_us(state, lookup),
                          .max_uploads = max_uploads,
                          .fill_us = fills_ ? copy_us(state, 1) : 0,
                          .fill_backlog_us = links_[state.link].outstanding_us,
                          .other_us = other_us_},
                         misses_);
}

double LanePlanner::all_on_cpu_us(const GroupState& state, const Lookup& lookup) const {
  double us = state.costs.cpu_solo.turn_us + state.costs.all_rows_us;
  for (const Hit& hit : lookup.hits) us += state.costs.cpu_solo.expert_us.at(hit.n_pairs);
  for (const Miss& miss : lookup.misses) us += state.costs.cpu_solo.expert_us.at(miss.n_pairs);
  return us;
}

void LanePlanner::list_misses(const Lookup& lookup) {
  misses_.clear();
  for (const Miss& miss : lookup.misses) {
    misses_.push_back({.expert = miss.expert, .n_tokens = miss.n_pairs});
  }
}

Result<plan::LaneChoice> LanePlanner::cost_splits(const Lookup& lookup) {
  list_misses(lookup);
  return choose(lookup, misses_.size());
}

Result<plan::LaneChoice> LanePlanner::choose_with_values(const Lookup& lookup) {
  const GroupState& state = groups_[static_cast<size_t>(lookup.group)];
  const size_t n = lookup.misses.size();
  misses_.clear();
  // Misses come with the lowest score first, places in the order of their use: the best miss would
  // get the first place.
  for (size_t i = 0; i < n; ++i) {
    const Miss& miss = lookup.misses[i];
    const size_t place = n - 1 - i;
    double value_us = 0;
    if (place < lookup.places.size()) {
      value_us = lookup.group_full ? state.value.value_us(miss.score, lookup.places[place].score)
                                   : cold_value_us(state.value, lookup, miss.score);
    }
    misses_.push_back({.expert = miss.expert, .n_tokens = miss.n_pairs, .value_us = value_us});
  }
  return choose(lookup, lookup.places.size());
}

Result<std::span<const int32_t>> LanePlanner::choose_cpu_experts(const Lookup& lookup) {
  HOTSET_TRY(plan::LaneChoice choice, choose_with_values(lookup));
  const GroupState& state = groups_[static_cast<size_t>(lookup.group)];
  // Uploads of one token that are worth their time are made all the same.
  all_on_cpu_ = (choice.n_uploads == 0 || lookup.n_tokens > 1) &&
                all_on_cpu_us(state, lookup) < cached_us(state, lookup, choice);
  if (all_on_cpu_) choice.n_uploads = 0;
  size_t n_cpu = 0;
  for (const uint32_t i : choice.cpu()) cpu_experts_[n_cpu++] = misses_[i].expert;
  return std::span(cpu_experts_).first(n_cpu);
}

double LanePlanner::admission_us(const GroupState& state, const Lookup& lookup, size_t n_uploads,
                                 bool evicts) const {
  const size_t n = lookup.misses.size();
  // A score counts this use, and what it is compared with waits for its next one: where a lookup
  // selects most experts, any exchange would seem to gain. The coldest miss has little more than
  // this use.
  const double just_used = lookup.misses.empty() ? 0 : lookup.misses.front().score;
  double us = 0;
  for (size_t place = 0; place < std::min(n_uploads, lookup.places.size()); ++place) {
    const double score = lookup.misses[n - 1 - place].score;
    if (lookup.places[place].evicts < 0) {
      us += cold_value_us(state.value, lookup, score);
    } else if (evicts) {
      us += state.value.value_us(score - just_used, lookup.places[place].score);
    }
  }
  return us;
}

double LanePlanner::cached_us(const GroupState& state, const Lookup& lookup,
                              const plan::LaneChoice& choice) const {
  if (lookup.n_tokens == 1) return choice.cost().done_us();
  // Rows of several tokens come back by a list and a graph. Into empty slots fills bring more.
  const double later_us = lookup.group_full
                              ? admission_us(state, lookup, choice.n_uploads, /*evicts=*/true)
                              : choice.cost().value_us;
  return choice.cost().done_us() + state.costs.pairs.turn_us - later_us;
}

Result<bool> LanePlanner::streams(const Lookup& lookup) {
  if (max_decode_tokens_) return lookup.n_tokens > *max_decode_tokens_;
  if (lookup.n_tokens == 1 || lookup.misses.empty()) return false;
  const GroupState& state = groups_[static_cast<size_t>(lookup.group)];
  // A lookup that needs most of a layer's experts does not say which of them to keep, and what it
  // would bring in would push out what the next layers need: scores of single uses cannot tell.
  const auto n_selected = static_cast<int64_t>(lookup.hits.size() + lookup.misses.size());
  if (lookup.group_full && 2 * n_selected > state.n_expert) return true;
  HOTSET_TRY(const Prefill streamed, plan_prefill(lookup));
  const double streamed_us =
      streamed.us - admission_us(state, lookup, streamed.n_uploads, /*evicts=*/false);
  HOTSET_TRY(const plan::LaneChoice cached, choose_with_values(lookup));
  // If the CPU takes everything either way, what is not streamed may come in by fills.
  return streamed_us < std::min(cached_us(state, lookup, cached), all_on_cpu_us(state, lookup));
}

double LanePlanner::prefetched_us(const GroupState& state, const Lookup& lookup,
                                  size_t n_uploads) const {
  const auto n_selected = static_cast<double>(lookup.hits.size() + lookup.misses.size());
  if (!lookup.group_full || n_selected < kNearlyAll * static_cast<double>(state.n_expert) ||
      static_cast<double>(n_uploads) < kNearlyAll * static_cast<double>(lookup.misses.size())) {
    return 0;
  }
  const size_t n_first = std::min(n_uploads, static_cast<size_t>(state.stage_experts));
  return std::min(other_us_, copy_us(state, n_first));
}

Result<LanePlanner::Prefill> LanePlanner::plan_prefill(const Lookup& lookup) {
  const GroupState& state = groups_[static_cast<size_t>(lookup.group)];
  list_misses(lookup);
  // Chunks are computed while others are copied, so what that takes is left out of the choice.
  plan::LaneCosts costs = state.costs;
  costs.pairs = {};
  const plan::LookupWork work{.expert_bytes = state.expert_bytes, .hit_us = hit_us(state, lookup)};
  HOTSET_TRY(const plan::LaneChoice choice, chooser_.choose(costs, work, misses_));
  const plan::ExpertCost& pairs = state.costs.pairs;
  double pairs_us = 0;
  for (const uint32_t i : choice.uploads()) pairs_us += pairs.expert_us.at(misses_[i].n_tokens);
  const auto n_uploads = static_cast<double>(choice.n_uploads);
  const double n_chunks = std::ceil(n_uploads / static_cast<double>(state.stage_experts));
  const double last_chunk_us = n_chunks > 0 ? pairs.turn_us + pairs_us / n_chunks : 0;
  const double device_us = std::max(work.hit_us + n_chunks * pairs.turn_us + pairs_us,
                                    choice.cost().link_us + last_chunk_us);
  // Lists that nothing overlaps with, of hits and for the rows of the CPU lane.
  constexpr double kSteps = 2;
  const double us = std::max(device_us, choice.cost().cpu_us) + kSteps * pairs.turn_us -
                    prefetched_us(state, lookup, choice.n_uploads);
  const double all_cpu_us = all_on_cpu_us(state, lookup);
  if (all_cpu_us <= us) return Prefill{.n_uploads = 0, .all_on_cpu = true, .us = all_cpu_us};
  return Prefill{.n_uploads = choice.n_uploads, .all_on_cpu = false, .us = us};
}

Result<int32_t> LanePlanner::max_fills(const Lookup& lookup, size_t n_uploads) {
  const GroupState& state = groups_[static_cast<size_t>(lookup.group)];
  HOTSET_TRY(const plan::LaneChoice choice, cost_splits(lookup));
  const double layer_us = other_us_ + choice.candidates[n_uploads].done_us();
  plan::FillState fill{.p = 1,  // whether the score beats the victim's is the cache's question
                       .link_is_idle = copy_us(state, n_uploads) < layer_us,
                       .outstanding_us = links_[state.link].outstanding_us,
                       .copy_us = copy_us(state, 1),
                       .layer_us = layer_us};
  const size_t n_cpu = lookup.misses.size() - n_uploads;
  size_t n_fills = 0;
  while (n_fills < n_cpu && plan::admits_fill(fill)) {
    ++n_fills;
    fill.outstanding_us += fill.copy_us;
  }
  return static_cast<int32_t>(n_fills);
}

Result<double> LanePlanner::commit(const Lookup& lookup, const LookupPlan& plan, size_t n_uploads) {
  GroupState& state = groups_[static_cast<size_t>(lookup.group)];
  HOTSET_TRY(const plan::LaneChoice choice, cost_splits(lookup));
  const double all_cpu_us = all_on_cpu_us(state, lookup);
  const double done_us =
      std::exchange(all_on_cpu_, false) ? all_cpu_us : choice.candidates[n_uploads].done_us();
  cheapest_us_ = std::min(all_cpu_us, choice.cost().done_us());
  if (!misses_.empty()) {
    // What the misses cost by the cheapest split, not by the one that was taken: with that one, a
    // value that is too high would make uploads, and slow uploads make it higher.
    double all_hits_us = lookup.hits.empty() ? state.costs.pairs.turn_us : hit_us(state, lookup);
    for (const plan::Miss& miss : misses_) {
      all_hits_us += state.costs.pairs.expert_us.at(miss.n_tokens);
    }
    HOTSET_RETURN_IF_ERROR(state.value.observe_saving((choice.cost().done_us() - all_hits_us) /
                                                      static_cast<double>(misses_.size())));
  }
  for (const Eviction& eviction : plan.evictions) {
    HOTSET_RETURN_IF_ERROR(state.value.observe_residency(
        std::min(kFillHorizonTokens, static_cast<double>(eviction.residency_tokens))));
  }
  Link& link = links_[state.link];
  pass_time(link, std::max(0.0, other_us_ + done_us - copy_us(state, n_uploads)));
  for (const Fill& fill : plan.fills) {
    const double us = copy_us(state, 1);
    link.fills.push_back({fill.group, fill.slot, us});
    link.outstanding_us += us;
  }
  return done_us;
}

void LanePlanner::pass_time(Link& link, double free_us) {
  while (!link.fills.empty() && free_us > 0) {
    PendingFill& fill = link.fills.front();
    const double used_us = std::min(free_us, fill.remaining_us);
    free_us -= used_us;
    fill.remaining_us -= used_us;
    link.outstanding_us -= used_us;
    if (fill.remaining_us > 0) break;
    arrived_.push_back(fill);
    link.fills.erase(link.fills.begin());
  }
  // What subtraction leaves of rounding must not keep the link from being idle.
  if (link.fills.empty()) link.outstanding_us = 0;
}

Status LanePlanner::complete_fills(ExpertCache& cache) {
  for (const PendingFill& fill : arrived_) {
    HOTSET_TRY([[maybe_unused]] const bool entered, cache.complete_fill(fill.group, fill.slot));
  }
  arrived_.clear();
  return {};
}

}  // namespace hotset::lanes
