// What an engine will put where, decided before anything is allocated: layers, device memory and
// the slots of the expert cache (design section 6). Thread-compatible: pure functions over what
// they are given.
#ifndef HOTSET_ENGINE_RUN_ENGINE_PLAN_H_
#define HOTSET_ENGINE_RUN_ENGINE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/device/backend.h"
#include "hotset/device/device.h"
#include "hotset/engine/run/engine_options.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/engine/weights/placement.h"
#include "hotset/plan/memory_plan.h"

namespace hotset::engine {

struct EnginePlan {
  plan::MemoryPlan memory;  // of the one device; ask fits()
  Placement placement;
  int64_t n_gpu_layers = 0;  // as placed
  int32_t n_ctx = 0;         // as asked, or as chosen (default_context.h)
  int32_t n_ctx_sequence = 0;
  bool flash_attention = true;
  std::vector<cache::CacheGroup> groups;  // of the expert cache; those without slots are not cached
  std::string why_no_cache;               // empty where a group has slots
  // Of the device, beside the banks.
  plan::DeviceDemand demand;
};

// A budget for which every group gets all slots it can have.
inline constexpr Bytes kUnlimitedBudget = plan::kMaxPlanBytes;

// Plans for `device`. `description` is used and given back as it was. `options` after
// resolve().
// Errors: kUnsupported (an operation), kInvalidArgument. A plan that does not fit is no error.
Result<EnginePlan> plan_engine(ModelDescription& description, const EngineOptions& options,
                               device::Device& device, device::Backend& cpu);

// The groups and their slots for a budget of banks.
// Errors: as device_groups.
Status size_cache(const ModelDescription& description, const device::Device& device, Bytes budget,
                  EnginePlan& plan);

// Sizes the cache of a plan again, by what is free now that everything but the device's graphs,
// pair buffers and banks is allocated and drivers have taken what they take. Never more than
// planned. Errors: kOutOfMemory, nothing is left; those of size_cache.
Status shrink_to_free_memory(const ModelDescription& description, const device::Device& device,
                             const EngineOptions& options, EnginePlan& plan);

// Opens the device of `options`, plans, and closes it: what `hotset info --plan` shows. Null device
// name: kInvalidArgument. Errors: those of device::open_device and plan_engine.
Result<EnginePlan> plan_without_loading(ModelDescription& description, EngineOptions options);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_ENGINE_PLAN_H_
