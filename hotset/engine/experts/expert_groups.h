// The groups that a device's expert cache is made of: which layers of a model have experts, and how
// their tensors are cut into banks that the device accepts.
// Thread-compatible: pure functions.
#ifndef HOTSET_ENGINE_EXPERTS_EXPERT_GROUPS_H_
#define HOTSET_ENGINE_EXPERTS_EXPERT_GROUPS_H_

#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/device/device.h"
#include "hotset/engine/weights/loaded_model.h"

namespace hotset::engine {

// The layers of a file that have experts, and these experts' tensors. Errors: as find_weight.
Result<std::vector<cache::MoeLayer>> moe_layers(const ModelDescription& model);

// The groups of a model's experts on the layers of `placement`, with the slots that a budget gives
// each. Errors: kInvalidArgument.
Result<std::vector<cache::CacheGroup>> device_groups(const ModelDescription& model,
                                                     const device::DeviceMemory& device,
                                                     const Placement& placement, Bytes budget);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_EXPERT_GROUPS_H_
