// Which layers live on the device and which on the CPU.
// Thread-compatible: a plain value.
#ifndef HOTSET_ENGINE_WEIGHTS_PLACEMENT_H_
#define HOTSET_ENGINE_WEIGHTS_PLACEMENT_H_

#include <algorithm>
#include <cstdint>

namespace hotset::engine {

// Layers [first_device_layer, n_layer) are on the device, the earlier ones on the CPU whole. The
// token embedding is always on the CPU, the experts always in host memory.
struct Placement {
  int64_t first_device_layer = INT64_MAX;
  bool head_on_device = false;

  bool on_device(int64_t layer) const { return layer >= first_device_layer; }
};

// As programs on ggml count: the last `n_gpu_layers` of the layers and, behind them, the head.
// Requires: n_gpu_layers >= 0; more than there are: all.
inline Placement place_layers(int64_t n_layer, int64_t n_gpu_layers) {
  return {.first_device_layer =
              n_gpu_layers == 0 ? INT64_MAX : std::max<int64_t>(0, n_layer - n_gpu_layers),
          .head_on_device = n_gpu_layers > n_layer};
}

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_PLACEMENT_H_
