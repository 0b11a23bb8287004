#include "hotset/lanes/lookup_planner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

namespace hotset::lanes {

LookupPlanner::LookupPlanner(cache::ExpertCache cache, const LookupRules& rules, SplitCosts costs)
    : cache_(std::move(cache)), rules_(rules), costs_(std::move(costs)) {}

Result<LookupPlanner> LookupPlanner::create(cache::ExpertCache cache, const LookupRules& rules) {
  const LaneRates rates = rules.cache.rates.value_or(kTypicalRates);
  std::vector<LaneCosts> costs;
  for (int32_t g = 0; g < cache.n_groups(); ++g) {
    HOTSET_TRY(costs.emplace_back(), costs_from_rates(rates, cache.spec(g).bytes_per_expert()));
  }
  return create(std::move(cache), rules, costs);
}

Result<LookupPlanner> LookupPlanner::create(cache::ExpertCache cache, const LookupRules& rules,
                                            std::span<const LaneCosts> costs) {
  HOTSET_RETURN_IF_ERROR(check(rules.cache));
  HOTSET_TRY(SplitCosts split_costs, SplitCosts::create(costs, cache));
  LookupPlanner planner(std::move(cache), rules, std::move(split_costs));
  size_t max_misses = 0;
  int32_t n_layers = 0;
  std::map<uint32_t, size_t> link_of_device;
  for (int32_t g = 0; g < planner.cache_.n_groups(); ++g) {
    const cache::GroupSpec& spec = planner.cache_.spec(g);
    const auto n_expert = static_cast<size_t>(spec.n_expert);
    max_misses = std::max(max_misses, n_expert);
    n_layers = std::max(n_layers, *std::ranges::max_element(spec.layers) + 1);
    const auto [link, is_new] = link_of_device.try_emplace(spec.device, link_of_device.size());
    if (is_new) planner.links_.emplace_back(n_expert);
    planner.link_of_.push_back(link->second);
  }
  if (rules.cache.cpu_share) {
    HOTSET_TRY(planner.share_,
               cache::FixedShare::create(static_cast<float>(*rules.cache.cpu_share), n_layers));
  }
  planner.all_on_cpu_share_.assign(static_cast<size_t>(n_layers), DecayedMean(4, 0, 1));
  for (auto* experts : {&planner.cpu_experts_, &planner.streamed_, &planner.ahead_}) {
    experts->reserve(max_misses);
  }
  planner.n_pairs_of_.resize(max_misses);
  planner.arrived_.reserve(max_misses);
  return planner;
}

SplitCosts::Moment LookupPlanner::moment(int32_t group) {
  return {.fills = rules_.cache.fills,
          .outstanding_us = link(group).outstanding_us(),
          .other_us = other_us_};
}

Result<PlannedLookup> LookupPlanner::plan(int32_t layer, std::span<const int32_t> ids,
                                          int32_t n_tokens, int32_t k) {
  HOTSET_TRY(const cache::Lookup lookup, cache_.classify(layer, ids, n_tokens, k));
  HOTSET_TRY(const CostedLookup costed, costs_.cost(lookup, moment(lookup.group)));
  PlannedLookup plan{
      .layer = layer, .group = lookup.group, .n_tokens = n_tokens, .hits = lookup.hits};
  decide_whether_streamed(lookup, costed, plan);
  if (plan.is_streamed) {
    HOTSET_RETURN_IF_ERROR(commit_streamed(lookup, costed, plan));
  } else {
    HOTSET_RETURN_IF_ERROR(commit_split(lookup, costed, ids, plan));
  }
  plan.cheapest_us = std::min(costed.cheapest_us, plan.predicted_us);
  plan.split = split_of(plan);
  if (lookup.misses.empty() && !plan.all_on_cpu) plan.reason = SplitReason::kNothingMissing;
  HOTSET_RETURN_IF_ERROR(costs_.observe(lookup, costed, plan.evictions));
  note(lookup, plan);
  pass_time(plan);
  if (rules_.interceptor != nullptr) rules_.interceptor->planned(lookup, plan);
  return plan;
}

void LookupPlanner::decide_whether_streamed(const cache::Lookup& lookup, const CostedLookup& costed,
                                            PlannedLookup& plan) {
  if (!rules_.streams || !costed.streamed) return;
  // What the guard has stopped is not started again by the costs that it found wrong.
  if (share_ || rules_.cache.cache_batch || !uploads_allowed_) {
    plan.is_streamed = lookup.n_tokens > rules_.cache.most_in_batch();
    plan.reason = SplitReason::kManyTokens;
    return;
  }
  if (lookup.misses.empty()) return;
  // A lookup that needs most of a layer's experts does not say which of them to keep, and what it
  // would bring in would push out what the next layers need: scores of single uses cannot tell.
  const size_t n_selected = lookup.hits.size() + lookup.misses.size();
  if (lookup.group_full && std::cmp_greater(2 * n_selected, cache_.spec(lookup.group).n_expert)) {
    plan.is_streamed = true;
    plan.reason = SplitReason::kMostExperts;
    return;
  }
  plan.is_streamed = costs_.prefers_streaming(lookup, costed, moment(lookup.group));
  plan.reason = SplitReason::kCosts;
}

void LookupPlanner::choose_cpu_experts(const cache::Lookup& lookup, const CostedLookup& costed,
                                       std::span<const int32_t> ids, PlannedLookup& plan) {
  cpu_experts_.clear();
  const auto take = [&](std::span<const cache::Miss> misses) {
    for (const cache::Miss& miss : misses) cpu_experts_.push_back(miss.expert);
  };
  if (!lookup.cached) {
    plan.reason = SplitReason::kNoSlots;
    return take(lookup.misses);
  }
  if (share_) {
    plan.reason = SplitReason::kShare;
    take(lookup.misses.first(share_->take(lookup)));
    if (rules_.cpu_limit != nullptr) {
      cpu_experts_.resize(rules_.cpu_limit->apply(ids, lookup.k, cpu_experts_));
    }
    return;
  }
  if (!uploads_allowed_) {
    plan.reason = SplitReason::kUploadsStopped;
    return take(lookup.misses);
  }
  plan.reason = SplitReason::kCosts;
  plan.all_on_cpu = costs_.prefers_all_on_cpu(lookup, costed);
  if (plan.all_on_cpu) return take(lookup.misses);
  for (const uint32_t i : costed.cached.cpu()) cpu_experts_.push_back(lookup.misses[i].expert);
}

int32_t LookupPlanner::max_fills(const cache::Lookup& lookup, const CostedLookup& costed) {
  if (!rules_.cache.fills || cpu_experts_.empty() || !lookup.cached ||
      !(share_ || uploads_allowed_)) {
    return 0;
  }
  // What finds no place goes to the CPU lane as well.
  const size_t n_uploads =
      std::min(lookup.misses.size() - cpu_experts_.size(), costed.cached.candidates.size() - 1);
  const double layer_us = other_us_ + costed.cached.candidates[n_uploads].done_us();
  const double copy_us = costs_.copy_us(lookup.group, 1);
  FillState fill{.p = 1,  // whether the score beats the victim's is the cache's question
                 .link_is_idle = costs_.copy_us(lookup.group, n_uploads) < layer_us,
                 .outstanding_us = link(lookup.group).outstanding_us(),
                 .copy_us = copy_us,
                 .layer_us = layer_us};
  int32_t n_fills = 0;
  while (std::cmp_less(n_fills, lookup.misses.size() - n_uploads) && admits_fill(fill)) {
    ++n_fills;
    fill.outstanding_us += copy_us;
  }
  return n_fills;
}

Status LookupPlanner::commit_split(const cache::Lookup& lookup, const CostedLookup& costed,
                                   std::span<const int32_t> ids, PlannedLookup& plan) {
  choose_cpu_experts(lookup, costed, ids, plan);
  const cache::Decision decision{.cpu_experts = cpu_experts_,
                                 .max_fills = max_fills(lookup, costed)};
  HOTSET_TRY(const cache::LookupPlan committed, cache_.commit(lookup, decision));
  plan.uploads = committed.uploads;
  plan.cpu = committed.cpu_experts;
  plan.evictions = committed.evictions;
  plan.fills = committed.fills;
  plan.predicted_us = plan.all_on_cpu ? costed.all_on_cpu_us
                                      : costed.cached.candidates[plan.uploads.size()].done_us();
  return {};
}

Status LookupPlanner::commit_streamed(const cache::Lookup& lookup, const CostedLookup& costed,
                                      PlannedLookup& plan) {
  const SplitCosts::Moment now = moment(lookup.group);
  size_t n_crossing = lookup.misses.size();
  if (!share_) {
    n_crossing = costed.streamed->n_uploads;
    plan.all_on_cpu = costed.all_on_cpu_us <= costs_.streamed_us(lookup, costed, n_crossing, now);
    if (plan.all_on_cpu) n_crossing = 0;
  }
  HOTSET_TRY(const cache::LookupPlan committed,
             cache_.commit_prefill(lookup, static_cast<int32_t>(n_crossing)));
  const std::span<const int32_t> slotless = committed.cpu_experts;
  size_t n_streamed = n_crossing - std::min(n_crossing, committed.uploads.size());
  if (share_) {
    const auto n_share =
        std::llround(*rules_.cache.cpu_share * static_cast<double>(slotless.size()));
    n_streamed = slotless.size() - static_cast<size_t>(n_share);
  }
  for (const cache::Miss& miss : lookup.misses) {
    n_pairs_of_[miss.expert] = miss.n_pairs;
  }
  // Those with the most tokens; ties by expert, as the list comes.
  streamed_.assign(slotless.begin(), slotless.end());
  std::ranges::sort(streamed_, [&](int32_t a, int32_t b) {
    const int32_t n_a = n_pairs_of_[a];
    const int32_t n_b = n_pairs_of_[b];
    return n_a != n_b ? n_a > n_b : a < b;
  });
  cpu_experts_.assign(streamed_.begin() + static_cast<ptrdiff_t>(n_streamed), streamed_.end());
  streamed_.resize(n_streamed);
  std::ranges::sort(streamed_);
  std::ranges::sort(cpu_experts_);
  plan.uploads = committed.uploads;
  plan.streamed = streamed_;
  plan.cpu = cpu_experts_;
  plan.predicted_us = plan.all_on_cpu ? costed.all_on_cpu_us
                                      : costs_.streamed_us(lookup, costed, plan.n_crossing(), now);
  return {};
}

Split LookupPlanner::split_of(const PlannedLookup& plan) {
  if (plan.all_on_cpu) return Split::kAllOnCpu;
  if (plan.n_missing() == 0) return Split::kHits;
  if (plan.is_streamed) return Split::kStreamed;
  if (plan.cpu.empty()) return Split::kUploads;
  return plan.uploads.empty() ? Split::kCpu : Split::kBoth;
}

void LookupPlanner::note(const cache::Lookup& lookup, const PlannedLookup& plan) {
  cache::CacheCounts& counts = cache_.account(plan.layer, cache::batch_class(plan.n_tokens));
  ++(counts.*split_count(plan.split));
  ++(counts.*reason_count(plan.reason));
  if (plan.is_streamed) {
    // The cache knows only that they got no slot.
    counts.streamed -= plan.cpu.size();
    counts.cpu += plan.cpu.size();
  }
  if (!plan.is_streamed) {
    all_on_cpu_share_[plan.layer].observe(plan.all_on_cpu ? 1 : 0);
  }
  if (plan.n_tokens == 1) return;
  streamed_last_ = plan.is_streamed;
  const auto n_missing = std::ranges::count(cache_.slot_map(lookup.layer), policy::kNoSlot);
  const bool is_whole = !plan.streamed.empty() && static_cast<double>(plan.streamed.size()) >=
                                                      kNearlyAll * static_cast<double>(n_missing);
  whole_streams_of_ = is_whole ? plan.n_tokens : 0;
}

void LookupPlanner::pass_time(const PlannedLookup& plan) {
  FillLink& link_of_plan = link(plan.group);
  const double demand_us = costs_.copy_us(plan.group, plan.n_crossing());
  link_of_plan.pass_time(std::max(0.0, other_us_ + plan.predicted_us - demand_us), arrived_);
  for (const cache::Fill& fill : plan.fills)
    link_of_plan.queue(fill, costs_.copy_us(plan.group, 1));
}

std::span<const int32_t> LookupPlanner::experts_ahead(int32_t layer, int32_t n_tokens,
                                                      size_t most) {
  ahead_.clear();
  // A slot that is empty is filled with an expert that the routing chooses.
  if (n_tokens != whole_streams_of_ || !cache_.slots(cache_.group_of(layer)).full()) return ahead_;
  const std::span<const int32_t> map = cache_.slot_map(layer);
  for (size_t e = 0; e < map.size() && ahead_.size() < most; ++e) {
    if (map[e] == policy::kNoSlot) ahead_.push_back(static_cast<int32_t>(e));
  }
  return ahead_;
}

bool LookupPlanner::expects_hits(int32_t layer, int32_t n_tokens) const {
  return n_tokens <= rules_.cache.most_in_batch() && !(n_tokens > 1 && streamed_last_) &&
         all_on_cpu_share_[layer].mean() <= 0.5;
}

Status LookupPlanner::complete_fills() {
  for (const PendingFill& fill : arrived_) {
    HOTSET_TRY([[maybe_unused]] const bool entered, cache_.complete_fill(fill.group, fill.slot));
  }
  arrived_.clear();
  return {};
}

}  // namespace hotset::lanes
