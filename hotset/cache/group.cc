#include "hotset/cache/group.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace hotset::cache {
namespace {

template <typename Found>
std::unexpected<Error> bad_field(const GroupSpec& group, std::string_view field, Found found,
                                 std::string_view expected) {
  return make_error(ErrorCode::kInvalidArgument, "group of layer {}: {} is {}, expected {}",
                    group.layers.empty() ? -1 : group.layers.front(), field, found, expected);
}

Bytes bank_bytes_with(const GroupSpec& group, int64_t n_in_bank) {
  Bytes sum;
  for (const Bytes& expert : group.expert_bytes)
    sum += align_up(expert * n_in_bank, group.alignment);
  return sum;
}

// The largest n in [0, limit] for which `fits` holds, if it holds up to some n; 0 if for none.
template <typename Fits>
int64_t largest(int64_t limit, Fits fits) {
  int64_t low = 0;  // fits, or 0
  int64_t high = limit + 1;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

Bytes GroupSpec::bytes_per_expert() const {
  Bytes sum;
  for (const Bytes& bytes : expert_bytes) sum += bytes;
  return sum;
}

Status check_group(const GroupSpec& group) {
  if (group.layers.empty()) return bad_field(group, "number of layers", 0, "at least 1");
  if (group.n_expert <= 0) return bad_field(group, "n_expert", group.n_expert, "at least 1");
  if (group.n_experts() > kMaxGroupExperts) {
    return bad_field(group, "layers * n_expert", group.n_experts(), "at most 2^22");
  }
  for (const int32_t layer : group.layers) {
    if (layer < 0 || layer >= kMaxLayers) return bad_field(group, "a layer", layer, "0 to 65535");
  }
  if (!(group.split_sum > 0) || !std::isfinite(group.split_sum)) {
    return bad_field(group, "split_sum", group.split_sum, "a positive number");
  }
  if (!(group.split >= 0 && group.split <= group.split_sum)) {
    return bad_field(group, "split", group.split, "0 to split_sum");
  }
  if (group.alignment <= 0 || group.alignment > kMaxAlignment) {
    return bad_field(group, "alignment", group.alignment, "1 to 2^30");
  }
  if (group.expert_bytes.empty() || group.expert_bytes.size() > kMaxExpertTensors) {
    return bad_field(group, "number of tensors", group.expert_bytes.size(), "1 to 8");
  }
  for (const Bytes& bytes : group.expert_bytes) {
    if (bytes.count <= 0 || bytes > kMaxExpertTensorBytes) {
      return bad_field(group, "bytes of an expert's tensor", bytes.count, "1 to 64 GiB");
    }
  }
  if (group.group_host_bytes.count <= 0) {
    return bad_field(group, "group_host_bytes", group.group_host_bytes.count, "at least 1");
  }
  if (group.device_host_bytes < group.group_host_bytes) {
    return bad_field(group, "device_host_bytes", group.device_host_bytes.count,
                     "at least group_host_bytes");
  }
  if (group.max_slots < 0) return bad_field(group, "max_slots", group.max_slots, "at least 0");
  return {};
}

Status check_groups(std::span<const GroupSpec> groups) {
  std::set<int32_t> seen;
  for (const GroupSpec& group : groups) {
    HOTSET_RETURN_IF_ERROR(check_group(group));
    for (const int32_t layer : group.layers) {
      if (!seen.insert(layer).second) {
        return make_error(ErrorCode::kInvalidArgument, "layer {} is in the groups twice", layer);
      }
    }
  }
  return {};
}

Bytes group_budget(Bytes budget, const GroupSpec& group) {
  const double part = static_cast<double>(budget.count) * group.split / group.split_sum *
                      static_cast<double>(group.group_host_bytes.count) /
                      static_cast<double>(group.device_host_bytes.count);
  // Rounding may reach 2^63, which int64_t cannot hold.
  return {std::min(static_cast<int64_t>(std::min(std::floor(part), 0x1p62)), budget.count)};
}

int64_t slots_for_budget(Bytes budget, const GroupSpec& group, int32_t k, int32_t n_zero) {
  HOTSET_CHECK(budget.count >= 0 && k > 0 && n_zero >= 0 && n_zero <= kMaxZeroSlots);
  const int64_t n = largest(std::min(group.n_experts(), group.max_slots), [&](int64_t n_slots) {
    return bank_bytes_with(group, n_slots + 1 + n_zero) <= budget;
  });
  return n < k ? 0 : n;
}

Bytes bank_bytes(const GroupSpec& group, int64_t n_slots) {
  return bank_bytes_with(group, n_slots + 1);
}

namespace {

// So that no sum overflows.
constexpr Bytes kMaxDeviceBytes = gib(int64_t{1} << 30);

// Layers that could share banks.
struct Layout {
  uint32_t device = 0;
  int32_t n_expert = 0;
  std::vector<ExpertTensor> tensors;
  std::vector<int32_t> layers;  // ascending
};

Result<std::vector<Layout>> collect_layouts(std::span<const MoeLayer> layers, size_t n_devices) {
  std::vector<MoeLayer> sorted(layers.begin(), layers.end());
  std::ranges::sort(sorted, {}, &MoeLayer::layer);
  std::vector<Layout> layouts;
  for (const MoeLayer& layer : sorted) {
    if (layer.device >= n_devices) {
      return make_error(ErrorCode::kInvalidArgument, "layer {}: device {}, but there are {}",
                        layer.layer, layer.device, n_devices);
    }
    const auto same = [&](const Layout& layout) {
      return layout.device == layer.device && layout.n_expert == layer.n_expert &&
             layout.tensors == layer.tensors;
    };
    auto found = std::ranges::find_if(layouts, same);
    if (found == layouts.end()) {
      layouts.push_back({layer.device, layer.n_expert, layer.tensors, {}});
      found = layouts.end() - 1;
    }
    found->layers.push_back(layer.layer);
  }
  // By device; within a device the order of the first layers stays.
  std::ranges::stable_sort(layouts, {}, &Layout::device);
  return layouts;
}

// The group of layers [begin, end) of a layout, without its device's totals.
GroupSpec group_of_run(const Layout& layout, size_t begin, size_t end) {
  GroupSpec group;
  group.device = layout.device;
  group.n_expert = layout.n_expert;
  group.layers.assign(layout.layers.begin() + static_cast<std::ptrdiff_t>(begin),
                      layout.layers.begin() + static_cast<std::ptrdiff_t>(end));
  for (const ExpertTensor& tensor : layout.tensors) {
    group.expert_bytes.push_back(tensor.expert_bytes);
  }
  group.group_host_bytes = group.bytes_per_expert() * group.n_experts();
  return group;
}

bool accepts(const DeviceShare& device, const Layout& layout, int64_t n_slots) {
  if (!device.accepts_bank) return true;
  return std::ranges::all_of(layout.tensors, [&](const ExpertTensor& tensor) {
    return device.accepts_bank(tensor, n_slots + 1);
  });
}

// The layout cut into n_runs runs, each with at most the slots that the device accepts.
// whole: a group of the layout with its device's totals.
std::vector<GroupSpec> cut(const Layout& layout, const GroupSpec& whole, size_t n_runs) {
  std::vector<GroupSpec> groups;
  const size_t n_layers = layout.layers.size();
  for (size_t run = 0; run < n_runs; run++) {
    GroupSpec group = group_of_run(layout, n_layers * run / n_runs, n_layers * (run + 1) / n_runs);
    group.split = whole.split;
    group.split_sum = whole.split_sum;
    group.alignment = whole.alignment;
    group.device_host_bytes = whole.device_host_bytes;
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace

Result<std::vector<GroupSpec>> form_groups(std::span<const MoeLayer> layers,
                                           std::span<const DeviceShare> devices, Bytes budget,
                                           int32_t k) {
  if (budget.count < 0 || k < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "groups: budget of {} bytes and k = {}, expected at least 0 and 1",
                      budget.count, k);
  }
  HOTSET_TRY(const std::vector<Layout> layouts, collect_layouts(layers, devices.size()));
  double split_sum = 0;
  std::vector<Bytes> device_bytes(devices.size());
  for (const Layout& layout : layouts) {
    GroupSpec whole = group_of_run(layout, 0, layout.layers.size());
    whole.device_host_bytes = whole.group_host_bytes;
    HOTSET_RETURN_IF_ERROR(check_group(whole));
    const double split = devices[layout.device].split;
    if (!(split >= 0) || !std::isfinite(split)) {
      return make_error(ErrorCode::kInvalidArgument, "device {}: split is {}, expected at least 0",
                        layout.device, split);
    }
    Bytes& of_device = device_bytes[layout.device];
    if (of_device.count == 0) split_sum += split;
    if (whole.group_host_bytes > kMaxDeviceBytes - of_device) {
      return make_error(ErrorCode::kInvalidArgument,
                        "device {}: more than {} of experts from layer {} on", layout.device,
                        to_string(kMaxDeviceBytes), layout.layers.front());
    }
    of_device += whole.group_host_bytes;
  }
  std::vector<GroupSpec> groups;
  for (const Layout& layout : layouts) {
    const DeviceShare& device = devices[layout.device];
    GroupSpec whole;
    whole.split = device.split;
    whole.split_sum = split_sum;
    whole.alignment = device.alignment;
    whole.device_host_bytes = device_bytes[layout.device];
    std::vector<GroupSpec> runs;
    for (size_t n_runs = 1; n_runs <= layout.layers.size(); n_runs++) {
      runs = cut(layout, whole, n_runs);
      HOTSET_RETURN_IF_ERROR(check_groups(runs));
      const bool fit = std::ranges::all_of(runs, [&](const GroupSpec& run) {
        return accepts(device, layout, slots_for_budget(group_budget(budget, run), run, k));
      });
      if (fit) break;
    }
    for (GroupSpec& run : runs) {
      if (!accepts(device, layout, slots_for_budget(group_budget(budget, run), run, k))) {
        run.max_slots =
            largest(run.n_experts(), [&](int64_t n) { return accepts(device, layout, n); });
      }
      groups.push_back(std::move(run));
    }
  }
  HOTSET_RETURN_IF_ERROR(check_groups(groups));
  return groups;
}

}  // namespace hotset::cache
