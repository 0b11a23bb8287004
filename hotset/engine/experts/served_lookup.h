// A lookup of the expert cache on its way, as objects: each stage is made by the one before it, and
// gives only what may be done then.
//
//   AwaitedLookup    CachedExperts::await(): its layer's segment is about to be queued
//   ServedLookup     plan(ids): the routing is known, and which lane computes what
//   QueuedUploads    queue_uploads(): their copies are on their way
//   StagedChunks     stage(): of a prefill, chunk by chunk
//
// All refer to the CachedExperts that made them, and hold until its next lookup.
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_EXPERTS_SERVED_LOOKUP_H_
#define HOTSET_ENGINE_EXPERTS_SERVED_LOOKUP_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "hotset/base/error.h"
#include "hotset/cache/cache_counts.h"
#include "hotset/engine/experts/expert_transfers.h"
#include "hotset/engine/experts/lookup_pairs.h"
#include "hotset/lanes/planned_lookup.h"

namespace hotset::engine {

class CachedExperts;

// Copies of a lookup that is not streamed.
class [[nodiscard]] QueuedUploads {
 public:
  bool empty() const { return n_ == 0; }
  // What is queued for computing from now on finds them. Errors: kDevice.
  Status arrive();
  // Now and then, on a clock that tells no times, the host waits for them to learn what they take,
  // `start_us` being when the lookup was planned; it would wait a little later anyway. Call when
  // all else is queued. Errors: kDevice, kInvalidArgument.
  Status sample_time(double start_us);

 private:
  friend class ServedLookup;
  QueuedUploads(CachedExperts& owner, size_t n) : owner_(&owner), n_(n) {}
  CachedExperts* owner_;
  size_t n_;
};

// The chunks of a prefill: the next one is copied while one is computed.
class [[nodiscard]] StagedChunks {
 public:
  struct Chunk {
    std::span<const int32_t> pairs;
    size_t n_experts = 0;
  };
  // The chunk whose pairs are to be queued for computing now; null at the end. What was queued
  // since the last call computes the chunk of that call. Errors: kDevice.
  Result<const Chunk*> next();

 private:
  friend class ServedLookup;
  explicit StagedChunks(CachedExperts& owner) : owner_(&owner) {}
  Status queue(size_t index);
  CachedExperts* owner_;
  size_t n_given_ = 0;
  Chunk chunk_;
};

class [[nodiscard]] ServedLookup {
 public:
  ServedLookup(ServedLookup&&) = default;
  ServedLookup& operator=(ServedLookup&&) = default;

  const lanes::PlannedLookup& plan() const { return plan_; }
  const LookupPairs& pairs() const;
  // Distinct experts that are uploaded into slots and waited for as a whole; a prefill's are in its
  // chunks.
  size_t n_uploads() const { return plan_.is_streamed ? 0 : plan_.uploads.size(); }
  // Where what is done for it is counted.
  cache::CacheCounts& account();

  // Queues the copies of the uploads. Errors: kDevice, kInvalidArgument.
  Result<QueuedUploads> queue_uploads();
  StagedChunks stage() { return StagedChunks(*owner_); }
  // Queues the copies of the fills. Errors: kDevice.
  Status queue_fills();
  // The lookup was served, and took `cpu_us` of the CPU lane, 0 if it had nothing to do.
  // Errors: kInvalidArgument.
  Status finish(double cpu_us) &&;

 private:
  friend class AwaitedLookup;
  ServedLookup(CachedExperts& owner, const lanes::PlannedLookup& plan)
      : owner_(&owner), plan_(plan) {}
  CachedExperts* owner_;
  lanes::PlannedLookup plan_;
};

class [[nodiscard]] AwaitedLookup {
 public:
  AwaitedLookup(AwaitedLookup&&) = default;
  AwaitedLookup& operator=(AwaitedLookup&&) = default;

  // Copies the first chunk of a prefill while the device still computes its routing, if the last
  // lookup of as many tokens was streamed and took nearly everything. Errors: kDevice.
  Status prefetch();
  // The host has waited for the routing: ids [n_tokens, k]. Errors: as LookupPlanner::plan,
  // kDevice.
  Result<ServedLookup> plan(std::span<const int32_t> ids) &&;

 private:
  friend class CachedExperts;
  AwaitedLookup(CachedExperts& owner, int64_t layer, int32_t n_tokens)
      : owner_(&owner), layer_(layer), n_tokens_(n_tokens) {}
  CachedExperts* owner_;
  int64_t layer_;
  int32_t n_tokens_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_SERVED_LOOKUP_H_
