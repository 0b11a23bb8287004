// The CPU's own layouts against the file's, timed on one layer's experts: what a cache has to beat
// (design.md section 5), because experts in such a layout cannot be uploaded.
// Thread-compatible.
#ifndef HOTSET_ENGINE_EXPERTS_REPACKED_RATIO_H_
#define HOTSET_ENGINE_EXPERTS_REPACKED_RATIO_H_

#include <optional>

#include "hotset/base/error.h"
#include "hotset/device/backend.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/engine/weights/placement.h"

namespace hotset::engine {

// What `cpu` takes for a token's experts in its own layouts, over what it takes for them as they
// are in the file; of the first layer on the device that has experts. None where the CPU has no
// layout for them, or no such layer exists. Takes well under a second and 128 MiB.
// Errors: kOutOfMemory, kDevice.
Result<std::optional<double>> repacked_ratio(const ModelDescription& model,
                                             const Placement& placement, device::Backend& cpu);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_REPACKED_RATIO_H_
