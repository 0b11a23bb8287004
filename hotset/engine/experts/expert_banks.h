// Device memory of the expert cache: per group one bank for each expert tensor, with one more
// expert at the end that stays zero (the pad slot), and per layer the map by which graphs find the
// slots of its experts. Which expert is in which slot is decided elsewhere (cache/expert_cache.h);
// here it is carried out.
//
// Order that keeps a slot from being overwritten while a queued graph may read it: copies into
// slots are queued only after the host has waited for the routing of the lookup that evicted them.
// Every graph before that routing is then done, and those behind it read only slots that this
// lookup needs, which it never evicts. Maps change on the compute queue, in front of the segment
// that routes their layer.
//
// Owns the memory. Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_EXPERTS_EXPERT_BANKS_H_
#define HOTSET_ENGINE_EXPERTS_EXPERT_BANKS_H_

#include <ggml-cpp.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/device/device.h"
#include "hotset/device/tensor_context.h"
#include "hotset/engine/experts/upload_ring.h"
#include "hotset/engine/weights/loaded_model.h"

namespace hotset::engine {

// What graphs read of a layer that has slots.
struct BankedLayer {
  // [n_slots + 1, ...], shared by the layers of the group; biases and scales [n_expert, ...] are
  // the layer's own.
  FeedForwardWeights banks;
  ggml_tensor* map = nullptr;  // [n_expert, 1] I32; null for a resident layer
  int32_t first_stage = 0;     // n_slots; places for experts that only pass through
  int32_t n_stage = 0;         // an even number of them
  int32_t pad_slot = 0;        // behind all others
  // All experts of the group have their own slots: those of this layer begin here. -1: not
  // resident.
  int32_t first_slot = -1;

  bool resident() const { return first_slot >= 0; }
};

// The tensors of a layer's experts that go into banks.
std::vector<const ggml_tensor*> bank_tensors(const FeedForwardWeights& experts);
// The names of their types, one for each tensor.
std::vector<std::string_view> bank_type_names(const FeedForwardWeights& experts);

class ExpertBanks {
 public:
  // Memory for the groups of `cache` that have slots; a group with a slot for every expert is
  // resident: its experts are copied now. References must outlive the object.
  // Errors: kOutOfMemory, kDevice.
  static Result<std::unique_ptr<ExpertBanks>> create(const LoadedModel& model,
                                                     device::DeviceMemory& memory,
                                                     const cache::ExpertCache& cache);
  ~ExpertBanks();

  // Null for a layer without slots.
  const BankedLayer* layer(int64_t layer) const {
    const auto i = static_cast<size_t>(layer);
    return i < layers_.size() && layers_[i].banks.present() ? &layers_[i] : nullptr;
  }

  // Queues copies of experts [expert, expert + n) of a layer into slots [slot, slot + n).
  // Errors: kDevice.
  Status copy(int64_t layer, int32_t expert, int32_t slot, int32_t n, const char* label);

  // Experts of this layer entered or left slots.
  void map_changed(int64_t layer) { is_stale_[layer] = 1; }
  // Brings the device's map of a layer up to date. Requires: the host has waited for the device
  // since the map of this layer was last updated. Errors: kDevice.
  Status update_map(int64_t layer);

  // The host has waited for something on the compute queue that waited for all copies queued
  // before `point`.
  uint64_t point() const { return ring_ ? ring_->point() : 0; }
  void done(uint64_t point) {
    if (ring_) ring_->done(point);
  }

  // Of one expert of a layer that has slots.
  Bytes expert_bytes(int64_t layer) const {
    return cache_.spec(cache_.group_of(static_cast<int32_t>(layer))).bytes_per_expert();
  }
  // Banks and maps on the device.
  Bytes device_bytes() const { return device_bytes_; }
  // Whether copies come straight from pinned memory. False: through a ring.
  bool source_is_pinned() const { return ring_ == nullptr; }
  int64_t n_copies() const { return n_copies_; }

 private:
  // Requires: there is one.
  device::Device& device() const { return *memory_.device(); }
  ExpertBanks(const LoadedModel& model, device::DeviceMemory& memory,
              const cache::ExpertCache& cache);

  Status allocate();
  Status create_ring();
  Status fill_vectors();
  Status fill_resident();

  const LoadedModel& model_;
  device::DeviceMemory& memory_;  // without a device where all is only planned
  const cache::ExpertCache& cache_;
  device::TensorContext context_;
  device::DeviceBuffer buffer_;
  device::HostBuffer maps_;  // [n_layer, n_expert] as the device has them, or will have
  std::unique_ptr<UploadRing> ring_;
  std::vector<BankedLayer> layers_;  // [n_layer]
  std::vector<uint8_t> is_stale_;    // [n_layer]
  Bytes device_bytes_;
  int64_t n_copies_ = 0;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_EXPERT_BANKS_H_
