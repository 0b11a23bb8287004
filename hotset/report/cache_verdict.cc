#include "hotset/report/cache_verdict.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "hotset/base/ranges_text.h"

namespace hotset::report {
namespace {

// More groups than this are shown by their sum.
constexpr size_t kMaxGroupsNamed = 3;

double percent(int64_t part, int64_t whole) {
  return whole > 0 ? 100 * static_cast<double>(part) / static_cast<double>(whole) : 0;
}

bool is_resident(const cache::CacheGroup& group) { return group.n_slots == group.spec.n_experts(); }

std::string plural(int64_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

std::string group_layers(const cache::CacheGroup& group) {
  return fmt::format("layer{} {}", group.spec.layers.size() == 1 ? "" : "s",
                     ranges_text<int32_t>(group.spec.layers));
}

std::string group_text(const cache::CacheGroup& group) {
  const int64_t n_experts = group.spec.n_experts();
  if (group.n_slots == 0) return fmt::format("no slots for {}", group_layers(group));
  if (is_resident(group)) {
    return fmt::format("all {} experts of {} resident", n_experts, group_layers(group));
  }
  return fmt::format("{} slots for {} experts ({:.1f}%) of {}", group.n_slots, n_experts,
                     percent(group.n_slots, n_experts), group_layers(group));
}

std::string groups_text(std::span<const cache::CacheGroup> groups) {
  if (groups.size() == 1) return group_text(groups[0]);
  int64_t n_slots = 0;
  int64_t n_experts = 0;
  std::string each;
  for (const cache::CacheGroup& group : groups) {
    n_slots += group.n_slots;
    n_experts += group.spec.n_experts();
    each += (each.empty() ? "" : "; ") + group_text(group);
  }
  if (groups.size() > kMaxGroupsNamed) {
    each = fmt::format(
        "{} of them resident, {} without slots", std::ranges::count_if(groups, is_resident),
        std::ranges::count_if(groups, [](const cache::CacheGroup& g) { return g.n_slots == 0; }));
  }
  return fmt::format("{} slots for {} experts ({:.1f}%) in {} groups ({})", n_slots, n_experts,
                     percent(n_slots, n_experts), groups.size(), each);
}

std::string_view overlap_text(const device::DeviceInfo& info) {
  switch (info.overlap) {
    case device::Overlap::kYes:
      return "overlap with computing";
    case device::Overlap::kNo:
      return "do not overlap with computing";
    case device::Overlap::kUntested:
      break;
  }
  return "were not tested for overlap";
}

// What the device and the CPU compute, behind either verdict.
std::string placement_text(const CacheState& state) {
  return fmt::format("{} of {} layers{} on the device", state.n_on_device, state.n_layer,
                     state.head_on_device ? " and the head" : "");
}

bool is_refused(const cache::CacheGroup& group) { return group.spec.max_slots == 0; }

std::string refused_text(const CacheState& state) {
  return fmt::format("the device's kernels do not multiply experts of type {} by id (layer{} {})",
                     state.refused_types, state.refused_layers.size() == 1 ? "" : "s",
                     ranges_text<int32_t>(state.refused_layers));
}

std::string on_text(const CacheState& state) {
  std::string text =
      fmt::format("{} ({}) has {}, {}", state.device->name, state.device->description,
                  groups_text(state.groups), to_string(state.device_bytes));
  const bool all_resident = std::ranges::all_of(state.groups, is_resident);
  if (all_resident) {
    text += ", so nothing is copied while it works";
  } else {
    const lanes::CacheRules& o = state.options.rules;
    text += fmt::format("; copies {} and come {}; CPU share {}, fills {}, policy {}, streamed {}",
                        overlap_text(*state.device),
                        state.source_is_pinned        ? "from pinned memory"
                        : state.device->pinned_memory ? "through a pinned ring"
                                                      : "from pageable memory",
                        o.cpu_share ? fmt::format("{:g}", *o.cpu_share) : "auto",
                        o.fills ? "on" : "off", o.policy,
                        o.cpu_share || o.cache_batch ? "above " + plural(o.most_in_batch(), "token")
                                                     : "where it takes less");
  }
  if (!state.refused_layers.empty()) {
    text += fmt::format("; {}, so the CPU computes them", refused_text(state));
  }
  return fmt::format("{}; {}", text, placement_text(state));
}

// Fills in the layers whose experts the device cannot multiply.
void note_refused(const engine::Engine& engine, CacheState& state) {
  std::vector<std::string_view> types;
  for (const cache::CacheGroup& group : state.groups) {
    if (!is_refused(group)) continue;
    const auto& layers = group.spec.layers;
    state.refused_layers.insert(state.refused_layers.end(), layers.begin(), layers.end());
    const auto& weights = engine.model().weights().layers[layers.front()];
    for (const std::string_view name : engine::bank_type_names(weights.experts)) {
      if (!std::ranges::contains(types, name)) types.push_back(name);
    }
  }
  std::ranges::sort(state.refused_layers);
  state.refused_types = fmt::format("{}", fmt::join(types, ", "));
}

std::string off_reason(const CacheState& state) {
  if (state.n_on_device == 0) return "no layer is on the device (-ngl)";
  if (!state.why_repacked.empty()) return state.why_repacked;
  if (state.asked == Bytes{}) return "--moe-cache-mib 0";
  if (state.device->shares_host_memory && !state.asked) {
    return "the device reads host memory in place, so it needs none";
  }
  if (state.groups.empty()) return "no layer on the device has experts";
  if (std::ranges::all_of(state.groups, is_refused)) return refused_text(state);
  const std::optional<int64_t> needed = needed_mib(state);
  if (!needed) {
    return fmt::format("the device's kernels accept no bank of {} experts, a token's", state.k);
  }
  return fmt::format("{} less than {} experts, a token's, need (--moe-cache-mib {} or more)",
                     state.asked ? to_string(*state.asked) + " are" : "the memory left is", state.k,
                     *needed);
}

}  // namespace

bool CacheState::has_slots() const {
  return std::ranges::any_of(groups,
                             [](const cache::CacheGroup& group) { return group.n_slots > 0; });
}

CacheState cache_state(const engine::Engine& engine, std::optional<Bytes> asked) {
  const model::ModelSpec& spec = engine.spec();
  CacheState state{.asked = asked,
                   .n_expert = static_cast<int32_t>(spec.router.n_expert),
                   .k = static_cast<int32_t>(spec.router.n_expert_used),
                   .n_layer = spec.n_layer,
                   .head_on_device = engine.placement().head_on_device,
                   .groups = engine.cache_groups()};
  note_refused(engine, state);
  if (engine.device() != nullptr) {
    state.device = &engine.device()->info();
    state.n_on_device = spec.n_layer - engine.placement().first_device_layer;
  }
  // Only an engine that was asked for a cache says this of none.
  if (engine.repacked_instead()) state.why_repacked = engine.plan().why_no_cache;
  if (engine.cache() != nullptr) {
    state.device_bytes = engine.cache()->banks().device_bytes();
    state.source_is_pinned = engine.cache()->banks().source_is_pinned();
    state.options = engine.cache()->options();
    state.why_bypassed = engine.cache()->why_unused();
  }
  return state;
}

std::string cache_verdict(const CacheState& state) {
  if (state.device == nullptr) {
    return fmt::format(
        "expert cache off: no device in use; all {} layers x {} experts are computed "
        "by the CPU",
        state.n_layer, state.n_expert);
  }
  if (state.has_slots() && state.why_bypassed.empty()) return "expert cache on: " + on_text(state);
  return fmt::format(
      "expert cache off: {}; {} ({}): {}, the CPU computes all routed experts; "
      "copies {}, {} memory",
      state.why_bypassed.empty() ? off_reason(state) : state.why_bypassed, state.device->name,
      state.device->description, placement_text(state), overlap_text(*state.device),
      state.device->pinned_memory ? "pinned" : "pageable");
}

std::string cache_warning(const CacheState& state) {
  if (!state.has_slots()) return "";
  if (state.device->shares_host_memory) {
    return fmt::format("{} reads host memory in place: a cache only copies (--moe-cache-mib 0)",
                       state.device->name);
  }
  std::vector<int32_t> layers;
  for (const cache::CacheGroup& group : state.groups) {
    // What a device cannot do no user can change: the verdict says it.
    if (group.n_slots > 0 || is_refused(group)) continue;
    layers.insert(layers.end(), group.spec.layers.begin(), group.spec.layers.end());
  }
  if (layers.empty()) return "";
  std::ranges::sort(layers);
  return fmt::format(
      "layer{} {}: fewer slots than the {} experts of a token, so the CPU computes all their "
      "experts",
      layers.size() == 1 ? "" : "s", ranges_text<int32_t>(layers), state.k);
}

std::optional<int64_t> needed_mib(const CacheState& state) {
  std::optional<double> least;
  for (const cache::CacheGroup& group : state.groups) {
    const cache::GroupSpec& spec = group.spec;
    if (spec.max_slots < state.k) continue;
    const double part = spec.split / spec.split_sum *
                        static_cast<double>(spec.group_host_bytes.count) /
                        static_cast<double>(spec.device_host_bytes.count);
    const double needed = cache::bank_bytes(spec, state.k).mib() / part;
    least = std::min(least.value_or(needed), needed);
  }
  if (!least) return std::nullopt;
  return static_cast<int64_t>(std::ceil(*least));
}

}  // namespace hotset::report
