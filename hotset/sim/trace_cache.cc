#include "hotset/sim/trace_cache.h"

#include <algorithm>

namespace hotset::sim {

cache::GroupSpec group_spec(const trace::TraceGroup& group) {
  cache::GroupSpec spec;
  spec.device = group.device;
  spec.n_expert = static_cast<int32_t>(group.n_expert);
  for (const uint32_t layer : group.layers) spec.layers.push_back(static_cast<int32_t>(layer));
  std::ranges::sort(spec.layers);
  spec.split = group.split;
  spec.split_sum = group.split_sum;
  spec.group_host_bytes = group.group_host_bytes;
  spec.device_host_bytes = group.device_host_bytes;
  spec.alignment = group.alignment_bytes;
  spec.expert_bytes = group.tensor_expert_bytes;
  return spec;
}

std::vector<policy::ExpertIndex> first_expert_by_layer(const trace::TraceHeader& header) {
  std::vector<policy::ExpertIndex> first(header.n_layer, -1);
  for (const trace::TraceGroup& group : header.groups) {
    std::vector<uint32_t> layers = group.layers;
    std::ranges::sort(layers);
    for (size_t i = 0; i < layers.size(); ++i) {
      first[layers[i]] = static_cast<policy::ExpertIndex>(i * group.n_expert);
    }
  }
  return first;
}

Result<std::vector<int64_t>> slots_for_trace(const trace::TraceHeader& header, Bytes budget,
                                             int32_t n_zero) {
  if (budget.count < 0) {
    return make_error(ErrorCode::kInvalidArgument, "cache budget is {} bytes, expected 0 or more",
                      budget.count);
  }
  std::vector<int64_t> slots;
  for (size_t g = 0; g < header.groups.size(); ++g) {
    const cache::GroupSpec spec = group_spec(header.groups[g]);
    if (Status status = check_group(spec); !status) {
      return add_context(status.error(), fmt::format("group {}", g));
    }
    slots.push_back(cache::slots_for_budget(cache::group_budget(budget, spec), spec,
                                            static_cast<int32_t>(header.experts_per_token),
                                            n_zero));
  }
  return slots;
}

Result<std::vector<std::vector<uint64_t>>> count_uses(trace::TraceReader& reader) {
  const std::vector<policy::ExpertIndex> first_expert = first_expert_by_layer(reader.header());
  std::vector<std::vector<uint64_t>> uses;
  std::vector<std::vector<int64_t>> last_lookup;  // that selected the expert, to count it once
  for (const trace::TraceGroup& group : reader.header().groups) {
    uses.emplace_back(static_cast<size_t>(group.total_experts()));
    last_lookup.emplace_back(static_cast<size_t>(group.total_experts()), -1);
  }
  for (int64_t n = 0;; ++n) {
    HOTSET_TRY(const trace::TraceLookup* lookup, reader.next());
    if (lookup == nullptr) return uses;
    const auto layer = static_cast<size_t>(lookup->layer);
    const auto g = static_cast<size_t>(reader.group_by_layer()[layer]);
    for (const int32_t id : lookup->ids) {
      const policy::ExpertIndex index = first_expert[layer] + id;
      const auto expert = static_cast<size_t>(index);
      if (last_lookup[g][expert] == n) continue;
      last_lookup[g][expert] = n;
      ++uses[g][expert];
    }
  }
}

}  // namespace hotset::sim
