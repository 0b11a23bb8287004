// Brings experts to where a plan wants them on a device: uploads into slots, chunks of a prefill
// through the staging area, copies ahead of the routing, and fills behind everything. It decides
// nothing, and knows which copies a queue must wait for.
//
// Owns the banks, its events and the chunks of the planned lookup.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_EXPERTS_EXPERT_TRANSFERS_H_
#define HOTSET_ENGINE_EXPERTS_EXPERT_TRANSFERS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/device/device.h"
#include "hotset/engine/experts/expert_banks.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/lanes/fill_link.h"
#include "hotset/lanes/planned_lookup.h"

namespace hotset::engine {

// Experts of a prefill that are copied together: into slots of their own, or through one half of
// the staging area.
struct StreamChunk {
  static constexpr int32_t kOwnSlots = -1;

  std::vector<int32_t> experts;  // ascending
  std::vector<int32_t> slots;    // theirs
  // The chunk that used the same half before, whose pairs must be computed first; -1: none.
  int32_t after = -1;
  int32_t half = kOwnSlots;  // of the staging area
  bool is_prefetched = false;
  device::Event copied;
  device::Event computed;
};

class ExpertTransfers {
 public:
  // References must outlive the object. Resident groups are filled now.
  // Errors: kOutOfMemory, kDevice.
  static Result<std::unique_ptr<ExpertTransfers>> create(const LoadedModel& model,
                                                         device::DeviceMemory& memory,
                                                         const cache::ExpertCache& cache);

  const ExpertBanks& banks() const { return *banks_; }
  ExpertBanks& banks() { return *banks_; }

  // --- Between two lookups

  // The planner takes these fills to have arrived. Where a copy is late, the device waits for it,
  // so that no graph reads a slot before its expert is there. Errors: kDevice.
  Status fills_arrive(std::span<const lanes::PendingFill> arrived);
  // What was copied ahead and nobody asked for: what it was copied from may be used again once the
  // device has it. Errors: kDevice.
  Status drop_unasked();
  // Copies experts of a layer, ascending, into the first half of its staging area, while the device
  // computes. Errors: kDevice. Requires: at most half of the staging area.
  Status copy_ahead(int64_t layer, std::span<const int32_t> experts);
  // The host has waited for everything that was on the compute queue.
  void host_has_waited();

  // --- Of a planned lookup

  // Takes a plan on: forms its chunks, if it is streamed, and notes the layers whose slots change.
  // Returns how many bytes were copied ahead in vain. Errors: kDevice.
  Result<Bytes> begin(const lanes::PlannedLookup& plan);
  std::span<const StreamChunk> chunks() const { return chunks_; }
  // Queues copies of experts into slots that somebody waits for. Errors: kDevice.
  Status queue_uploads(int64_t layer, std::span<const cache::Upload> uploads);
  // Happens when the uploads that were queued last are done.
  device::Event uploaded() const { return uploaded_; }
  // What is queued for computing from now on finds the uploads. Errors: kDevice.
  Status uploads_arrive();
  // Queues the copies of a chunk; lets the compute queue wait for them; says that all that computes
  // it was queued. Errors: kDevice.
  Status queue_chunk(int64_t layer, size_t index);
  Status chunk_arrives(size_t index);
  Status chunk_is_computed(size_t index);
  // Queues the copies of fills. Errors: kDevice.
  Status queue_fills(std::span<const cache::Fill> fills);

 private:
  // Experts of a layer that were copied ahead into the first half of the staging area, ascending.
  struct Ahead {
    std::vector<int32_t> experts;
    int64_t layer = -1;     // none
    device::Event copied;   // one of two in turn: the compute queue may still wait for the other
    uint64_t point = 0;     // of the ring, behind its copies
    bool is_waited = true;  // by the compute queue
  };
  // A fill whose copies are queued, and the event behind them.
  struct QueuedFill {
    int32_t group = 0;
    int32_t slot = 0;
    int64_t layer = 0;
    device::Event copied;
    uint64_t point = 0;  // of the ring, behind its copies
  };

  explicit ExpertTransfers(device::DeviceMemory& memory) : device_(memory.device()) {}

  Status form_chunks(const lanes::PlannedLookup& plan);
  Result<StreamChunk*> add_chunk(int32_t half);
  // Of the streamed experts, those that were copied ahead become the first chunk that is staged.
  Status take_ahead(const BankedLayer& banked, int64_t layer);
  // The compute queue waits for what was copied ahead. Errors: kDevice.
  Status wait_for_ahead();
  // Copies n experts, at(i) the i-th with its slot; neighbours in the file that become neighbours
  // in the bank are one copy.
  template <typename At>
  Status copy_runs(int64_t layer, size_t n, const char* label, At at);
  Result<device::Event> free_event();

  device::Device* device_;  // null: only planned
  std::unique_ptr<ExpertBanks> banks_;
  device::Event uploaded_;
  uint64_t uploaded_point_ = 0;  // of the ring, at uploaded_
  uint64_t waited_point_ = 0;    // of the ring; the compute queue waits for the copies before it
  std::vector<QueuedFill> fills_;
  std::vector<device::Event> used_events_;  // of arrived fills; the compute queue waits for them
  std::vector<device::Event> free_events_;
  Ahead ahead_;
  std::array<device::Event, 2> ahead_events_;
  std::vector<int32_t> staged_;           // experts of the planned lookup that pass through
  std::vector<StreamChunk> chunk_store_;  // as many as any lookup had
  std::span<StreamChunk> chunks_;         // of the planned lookup
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_EXPERT_TRANSFERS_H_
