#include "hotset/trace/trace.h"

#include <cmath>
#include <map>

namespace hotset::trace {
namespace {

std::unexpected<Error> out_of_range(const char* field, int64_t found, int64_t low, int64_t high) {
  return make_error(ErrorCode::kInvalidArgument, "{} is {}, expected {} to {}", field, found, low,
                    high);
}

Status validate_bytes(const TraceGroup& group) {
  if (group.group_host_bytes.count < 1 || group.group_host_bytes.count > kMaxTraceHostBytes) {
    return out_of_range("group host bytes", group.group_host_bytes.count, 1, kMaxTraceHostBytes);
  }
  if (group.device_host_bytes < group.group_host_bytes ||
      group.device_host_bytes.count > kMaxTraceHostBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "device host bytes is {}, expected at least the group's {} and at most {}",
                      group.device_host_bytes.count, group.group_host_bytes.count,
                      kMaxTraceHostBytes);
  }
  if (group.alignment_bytes < 1 || group.alignment_bytes > kMaxTraceAlignment) {
    return out_of_range("alignment", group.alignment_bytes, 1, kMaxTraceAlignment);
  }
  if (group.tensor_expert_bytes.empty() || group.tensor_expert_bytes.size() > kMaxTraceTensors) {
    return out_of_range("number of expert tensors", std::ssize(group.tensor_expert_bytes), 1,
                        kMaxTraceTensors);
  }
  Bytes total;
  for (const Bytes bytes : group.tensor_expert_bytes) {
    if (bytes.count < 1 || bytes.count > kMaxTraceExpertBytes) {
      return out_of_range("bytes of one expert of a tensor", bytes.count, 1, kMaxTraceExpertBytes);
    }
    total += bytes;
  }
  if (total.count > kMaxTraceExpertBytes) {
    return out_of_range("bytes of one expert", total.count, 1, kMaxTraceExpertBytes);
  }
  return {};
}

}  // namespace

Bytes TraceGroup::expert_bytes() const {
  Bytes total;
  for (const Bytes bytes : tensor_expert_bytes) total += bytes;
  return total;
}

int64_t TraceHeader::total_experts() const {
  int64_t n_experts = 0;
  for (const TraceGroup& group : groups) n_experts += group.total_experts();
  return n_experts;
}

Bytes TraceHeader::host_bytes() const {
  std::map<uint32_t, Bytes> by_device;
  for (const TraceGroup& group : groups) by_device[group.device] = group.device_host_bytes;
  Bytes total;
  for (const auto& [device, bytes] : by_device) total += bytes;
  return total;
}

std::vector<int32_t> TraceHeader::group_by_layer() const {
  std::vector<int32_t> index(n_layer, -1);
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const uint32_t layer : groups[g].layers) index[layer] = static_cast<int32_t>(g);
  }
  return index;
}

Status validate(const TraceGroup& group, uint32_t n_layer) {
  if (group.n_expert < 1 || group.n_expert > kMaxTraceExpertsPerLayer) {
    return out_of_range("number of experts", group.n_expert, 1, kMaxTraceExpertsPerLayer);
  }
  if (group.layers.empty() || group.layers.size() > n_layer) {
    return out_of_range("number of layers in the group", std::ssize(group.layers), 1, n_layer);
  }
  for (const uint32_t layer : group.layers) {
    if (layer >= n_layer) return out_of_range("layer of the group", layer, 0, n_layer - 1);
  }
  // Written so that a NaN fails. The tolerance is for splits that were summed in another order.
  if (!(group.split >= 0) || !(group.split_sum > 0) || !std::isfinite(group.split_sum) ||
      !(group.split / group.split_sum <= 1 + 1e-6)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "split is {} of {}, expected a part between 0 and the sum", group.split,
                      group.split_sum);
  }
  return validate_bytes(group);
}

Status validate(const TraceHeader& header) {
  if (header.n_layer < 1 || header.n_layer > kMaxTraceLayers) {
    return out_of_range("number of layers", header.n_layer, 1, kMaxTraceLayers);
  }
  if (header.experts_per_token < 1 || header.experts_per_token > kMaxTraceExpertsPerLayer) {
    return out_of_range("experts per token", header.experts_per_token, 1, kMaxTraceExpertsPerLayer);
  }
  if (header.groups.empty() || header.groups.size() > header.n_layer) {
    return out_of_range("number of groups", std::ssize(header.groups), 1, header.n_layer);
  }
  std::vector<bool> seen(header.n_layer);
  for (size_t g = 0; g < header.groups.size(); ++g) {
    if (Status status = validate(header.groups[g], header.n_layer); !status) {
      return add_context(status.error(), fmt::format("group {}", g));
    }
    for (const uint32_t layer : header.groups[g].layers) {
      if (seen[layer]) {
        return make_error(ErrorCode::kInvalidArgument,
                          "group {}: layer {} is named twice, expected once", g, layer);
      }
      seen[layer] = true;
    }
  }
  if (header.total_experts() > kMaxTraceExperts) {
    return out_of_range("experts of all layers", header.total_experts(), 1, kMaxTraceExperts);
  }
  return {};
}

Status validate(const TraceLookup& lookup, const TraceHeader& header,
                std::span<const int32_t> group_by_layer) {
  if (lookup.layer < 0 || lookup.layer >= std::ssize(group_by_layer)) {
    return out_of_range("layer", lookup.layer, 0, std::ssize(group_by_layer) - 1);
  }
  const int32_t group = group_by_layer[lookup.layer];
  if (group < 0) {
    return make_error(ErrorCode::kInvalidArgument, "layer {} is in no group of the header",
                      lookup.layer);
  }
  const int64_t n_expert = header.groups[group].n_expert;
  const int64_t n_ids = std::ssize(lookup.ids);
  if (lookup.experts_per_token < 1 || lookup.experts_per_token > n_expert) {
    return out_of_range("experts per token", lookup.experts_per_token, 1, n_expert);
  }
  if (n_ids < 1 || n_ids > kMaxTraceLookupIds || n_ids % lookup.experts_per_token != 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "number of ids is {}, expected a multiple of {} experts per token, at most {}", n_ids,
        lookup.experts_per_token, kMaxTraceLookupIds);
  }
  for (size_t i = 0; i < lookup.ids.size(); ++i) {
    if (lookup.ids[i] < 0 || lookup.ids[i] >= n_expert) {
      return make_error(ErrorCode::kInvalidArgument, "id {} of the lookup is {}, expected 0 to {}",
                        i, lookup.ids[i], n_expert - 1);
    }
  }
  return {};
}

}  // namespace hotset::trace
