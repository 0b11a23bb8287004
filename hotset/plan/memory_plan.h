// What goes where in device memory, decided before anything is allocated: design.md section 6.
// Pure arithmetic over sizes that the caller measured or computed.
// Thread-compatible: plain values and pure functions.
#ifndef HOTSET_PLAN_MEMORY_PLAN_H_
#define HOTSET_PLAN_MEMORY_PLAN_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::plan {

// x and Y of a lookup of `n_ubatch` tokens: 2 * n_ubatch * k * n_embd * 4 bytes.
// Errors: kInvalidArgument, naming the field, if one is below 1 or the product overflows.
Result<Bytes> pair_buffer_bytes(int64_t n_ubatch, int64_t k, int64_t n_embd);

// Memory left to others and to what drivers keep for themselves: max(512 MiB, 5% of `total`).
Bytes default_headroom(Bytes total);

// 256 PiB: no real size comes near, and sums of them stay in range.
inline constexpr Bytes kMaxPlanBytes{int64_t{1} << 58};

// One device and what it must hold. All sizes 0 to kMaxPlanBytes.
struct DeviceDemand {
  std::string name = {};  // "Vulkan0"
  Bytes total_memory = {};
  Bytes free_memory = {};  // as the driver reports it; some report more than the total
  Bytes dense_weights = {};
  Bytes kv_cache = {};    // at full context
  Bytes kv_windows = {};  // the part of kv_cache that does not depend on the context
  Bytes recurrent_state = {};
  Bytes compute_buffers = {};
  Bytes pairs_and_staging = {};
  Bytes upload_ring = {};
  Bytes all_experts = {};  // banks that would hold every routed expert of the device's layers
  int64_t n_layers = 0;    // layers on the device, for advice; 0: not known
};

struct MemoryRequest {
  std::vector<DeviceDemand> devices = {};  // 1 or more
  // One number per device, 0 or more, some above 0; empty: by free memory.
  std::vector<double> tensor_split = {};
  // --moe-cache-mib, for all devices together; none: auto.
  std::optional<Bytes> asked_cache = {};
  // --memory-headroom-mib, of each device; none: default_headroom.
  std::optional<Bytes> headroom = {};
  int64_t n_ctx = 0;     // for advice; 0: not known
  int64_t n_ubatch = 0;  // for advice; 0: not known
};

// A line of a device's plan, in the order of allocation.
struct PlanItem {
  std::string name = {};  // "dense weights"
  Bytes bytes = {};
  Bytes left = {};  // of the free memory after this item; below 0 where it does not fit
};

struct DevicePlan {
  std::string name = {};
  Bytes total_memory = {};
  Bytes free_memory = {};
  std::vector<PlanItem> items = {};  // dense weights, KV and state, compute, pairs, ring, headroom
  Bytes left_for_banks = {};         // after all items; 0 if they do not fit
  Bytes asked = {};  // this device's part of the asked cache; left_for_banks for auto
  Bytes banks = {};  // what the cache may use: at most all_experts; 0 if refused
  Bytes all_experts = {};
  Bytes missing = {};        // above 0: refused
  std::string refusal = {};  // what is missing and what to change; empty if it fits
};

struct MemoryPlan {
  std::vector<DevicePlan> devices = {};
  bool is_auto = true;

  // Errors: kOutOfMemory with the refusals of all devices that need more than they have.
  Status fits() const;
  // Lines of `hotset info --plan`: a table of every device, refusals below it.
  std::vector<std::string> table() const;
};

// A plan is returned even where it does not fit, so that it can be shown: ask `fits()`.
// After the warm-up the same call with the items at 0 and the free memory read again gives the
// final size of the banks.
// Errors: kInvalidArgument, naming device and field.
Result<MemoryPlan> plan_memory(const MemoryRequest& request);

}  // namespace hotset::plan

#endif  // HOTSET_PLAN_MEMORY_PLAN_H_
