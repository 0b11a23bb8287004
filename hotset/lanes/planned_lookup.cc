#include "hotset/lanes/planned_lookup.h"

#include <array>
#include <utility>

namespace hotset::lanes {

const char* split_label(Split split) {
  static constexpr std::array<const char*, kSplits> kLabels = {
      "plan: hits", "plan: uploads",    "plan: both",
      "plan: cpu",  "plan: all on cpu", "plan: streamed"};
  return kLabels[std::to_underlying(split)];
}

std::string_view split_name(Split split) {
  return std::string_view(split_label(split)).substr(std::string_view("plan: ").size());
}

uint64_t cache::CacheCounts::* split_count(Split split) {
  static constexpr std::array<uint64_t cache::CacheCounts::*, kSplits> kMembers = {
      &cache::CacheCounts::split_hits,       &cache::CacheCounts::split_uploads,
      &cache::CacheCounts::split_both,       &cache::CacheCounts::split_cpu,
      &cache::CacheCounts::split_all_on_cpu, &cache::CacheCounts::split_streamed};
  return kMembers[std::to_underlying(split)];
}

uint64_t cache::CacheCounts::* reason_count(SplitReason reason) {
  using C = cache::CacheCounts;
  static constexpr std::array<uint64_t C::*, kSplitReasons> kMembers = {
      &C::why_nothing_missing, &C::why_share,           &C::why_costs,   &C::why_many_tokens,
      &C::why_most_experts,    &C::why_uploads_stopped, &C::why_no_slots};
  return kMembers[std::to_underlying(reason)];
}

cache::CacheCounts planned_counts(const PlannedLookup& plan, Bytes expert_bytes) {
  cache::CacheCounts counts{.lookups = 1,
                            .tokens = static_cast<uint64_t>(plan.n_tokens),
                            .selected = plan.n_selected(),
                            .hits = plan.hits.size(),
                            .uploads = plan.uploads.size(),
                            .cpu = plan.cpu.size(),
                            .streamed = plan.streamed.size(),
                            .evictions = plan.evictions.size(),
                            .fills = plan.fills.size(),
                            .hit_bytes = expert_bytes * std::ssize(plan.hits),
                            .uploaded_bytes = expert_bytes * std::ssize(plan.uploads),
                            .filled_bytes = expert_bytes * std::ssize(plan.fills),
                            .cpu_bytes = expert_bytes * std::ssize(plan.cpu),
                            .streamed_bytes = expert_bytes * std::ssize(plan.streamed)};
  ++(counts.*split_count(plan.split));
  ++(counts.*reason_count(plan.reason));
  return counts;
}

std::string_view reason_name(SplitReason reason) {
  static constexpr std::array<std::string_view, kSplitReasons> kNames = {
      "nothing missing", "share",           "costs",   "many tokens",
      "most experts",    "uploads stopped", "no slots"};
  return kNames[std::to_underlying(reason)];
}

}  // namespace hotset::lanes
