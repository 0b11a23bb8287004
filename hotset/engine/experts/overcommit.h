// Drivers hand out more device memory than there is and keep the rest in host memory, without an
// error and with everything slow. What gives it away is a copy to the end of the banks that takes
// far longer than one to their beginning.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_EXPERTS_OVERCOMMIT_H_
#define HOTSET_ENGINE_EXPERTS_OVERCOMMIT_H_

#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/device/device.h"
#include "hotset/engine/experts/expert_banks.h"
#include "hotset/engine/weights/loaded_model.h"

namespace hotset::engine {

// `groups` with as many slots as fit into the device's own memory, and what was found, for users.
struct ShrunkCache {
  std::vector<cache::CacheGroup> groups;
  std::string found;
};

// Copies experts to the beginning and the end of each bank of `groups`. None: all are equally fast.
// Overwrites empty slots: call before the first lookup. Errors: kDevice.
Result<std::optional<ShrunkCache>> without_slow_slots(const LoadedModel& model,
                                                      device::Device& device,
                                                      const ExpertBanks& banks,
                                                      const std::vector<cache::CacheGroup>& groups);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_OVERCOMMIT_H_
