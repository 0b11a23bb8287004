// Groups of MoE layers that share banks, and how a budget becomes slots (design section 4).
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_CACHE_GROUP_H_
#define HOTSET_CACHE_GROUP_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::cache {

// The MoE layers of one device whose expert tensors have the same types and shapes. Trace groups
// (MCT1) have the same fields.
struct GroupSpec {
  uint32_t device = 0;
  int32_t n_expert = 0;              // experts of each layer, > 0
  std::vector<int32_t> layers = {};  // numbers in the model, each in one group only, not empty
  double split = 1;                  // the device's part of the whole budget is split / split_sum
  double split_sum = 1;
  Bytes group_host_bytes = {};   // all experts of the group, > 0
  Bytes device_host_bytes = {};  // all experts of all groups of the device, >= group_host_bytes
  int64_t alignment = 1;         // of a bank, > 0
  std::vector<Bytes> expert_bytes = {};  // of one expert, per tensor; > 0, not empty
  // At most so many slots, for kernels that limit a bank.
  int64_t max_slots = INT64_MAX;

  int64_t n_experts() const { return static_cast<int64_t>(layers.size()) * n_expert; }
  // All tensors of one expert.
  Bytes bytes_per_expert() const;
};

// What check_group accepts, so that no product of them overflows and no file makes hotset allocate
// without end.
inline constexpr int32_t kMaxLayers = 1 << 16;           // layer numbers are below it
inline constexpr int64_t kMaxGroupExperts = 1 << 22;     // layers * n_expert
inline constexpr size_t kMaxExpertTensors = 8;           // per layer
inline constexpr Bytes kMaxExpertTensorBytes = gib(64);  // of one expert
inline constexpr int64_t kMaxAlignment = int64_t{1} << 30;
inline constexpr int32_t kMaxZeroSlots = 1 << 16;

// Errors: kInvalidArgument with the field, what was found and expected. All groups together: a
// layer in two groups.
Status check_group(const GroupSpec& group);
Status check_groups(std::span<const GroupSpec> groups);

// The part of `budget` for this group:
// floor(budget * split / split_sum * group_host_bytes / device_host_bytes), in doubles, in this
// order. Requires: check_group holds, budget >= 0.
Bytes group_budget(Bytes budget, const GroupSpec& group);

// The largest n <= min(n_experts, max_slots) with
//   sum over tensors of align_up(expert_bytes * (n + 1 + n_zero), alignment) <= budget,
// and 0 if that n is below k. n_zero: zero-filled slots of the reference implementation
// (golden/README.md), 0 for hotset itself.
// Requires: check_group holds, budget >= 0, k > 0, n_zero in [0, kMaxZeroSlots].
int64_t slots_for_budget(Bytes budget, const GroupSpec& group, int32_t k, int32_t n_zero = 0);

// Memory of the banks of a group with n_slots slots and the pad slot.
Bytes bank_bytes(const GroupSpec& group, int64_t n_slots);

// A tensor of a layer's experts, as far as grouping cares.
struct ExpertTensor {
  int32_t type = 0;    // the caller's number of the data type
  int64_t n_rows = 0;  // of one expert
  int64_t n_columns = 0;
  Bytes expert_bytes = {};  // of one expert

  bool operator==(const ExpertTensor&) const = default;
};

struct MoeLayer {
  int32_t layer = 0;  // number in the model
  uint32_t device = 0;
  int32_t n_expert = 0;
  std::vector<ExpertTensor> tensors = {};  // in one order for all layers (gate, up, down)
};

struct DeviceShare {
  double split = 1;       // its part is split / sum of the splits of all devices with MoE layers
  int64_t alignment = 1;  // of its buffers
  // Whether the device's kernels accept a bank of `n_experts` experts of this tensor; empty:
  // always.
  std::function<bool(const ExpertTensor&, int64_t n_experts)> accepts_bank = {};
};

// Forms the groups of all layers: by device, then by layout, in order of their first layer; cut
// into runs of consecutive layers, as few and as even as possible, where the budget would make a
// bank larger than the device accepts; where even one layer's bank is too large, max_slots is set.
// devices[i] is device number i.
// Errors: kInvalidArgument for a layer twice, a device number that devices lacks, a negative or
// all-zero split, budget < 0, k < 1, or what check_group refuses.
Result<std::vector<GroupSpec>> form_groups(std::span<const MoeLayer> layers,
                                           std::span<const DeviceShare> devices, Bytes budget,
                                           int32_t k);

}  // namespace hotset::cache

#endif  // HOTSET_CACHE_GROUP_H_
