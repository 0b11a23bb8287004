#include "hotset/lanes/planned_lookup.h"

#include <array>

namespace hotset::lanes {

const char* split_label(Split split) {
  static constexpr std::array<const char*, kSplits> kLabels = {
      "plan: hits", "plan: uploads",    "plan: both",
      "plan: cpu",  "plan: all on cpu", "plan: streamed"};
  return kLabels[static_cast<size_t>(split)];
}

std::string_view split_name(Split split) {
  return std::string_view(split_label(split)).substr(std::string_view("plan: ").size());
}

uint64_t cache::CacheCounts::* split_count(Split split) {
  static constexpr std::array<uint64_t cache::CacheCounts::*, kSplits> kMembers = {
      &cache::CacheCounts::split_hits,       &cache::CacheCounts::split_uploads,
      &cache::CacheCounts::split_both,       &cache::CacheCounts::split_cpu,
      &cache::CacheCounts::split_all_on_cpu, &cache::CacheCounts::split_streamed};
  return kMembers[static_cast<size_t>(split)];
}

std::string_view reason_name(SplitReason reason) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "nothing missing", "share",           "costs",   "many tokens",
      "most experts",    "uploads stopped", "no slots"};
  return kNames[static_cast<size_t>(reason)];
}

}  // namespace hotset::lanes
