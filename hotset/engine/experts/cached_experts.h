// The experts of one device's layers that the expert cache serves: the planner that decides, the
// transfers that carry it out, what is learned from the lanes, and the guard that keeps it from
// being slower than the CPU alone. Lookups are served one at a time, each an object of its own
// (served_lookup.h).
//
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_EXPERTS_CACHED_EXPERTS_H_
#define HOTSET_ENGINE_EXPERTS_CACHED_EXPERTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/device/device.h"
#include "hotset/engine/experts/cache_options.h"
#include "hotset/engine/experts/expert_transfers.h"
#include "hotset/engine/experts/lookup_pairs.h"
#include "hotset/engine/experts/served_lookup.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/lanes/lane_learner.h"
#include "hotset/lanes/lookup_planner.h"
#include "hotset/lanes/step_guard.h"

namespace hotset::engine {

class CachedExperts {
 public:
  // References must outlive the object. Resident groups are filled now.
  // Errors: kInvalidArgument (share, policy), kOutOfMemory, kDevice.
  static Result<std::unique_ptr<CachedExperts>> create(const LoadedModel& model,
                                                       device::DeviceMemory& memory,
                                                       std::vector<cache::CacheGroup> groups,
                                                       const CacheOptions& options);

  const cache::ExpertCache& core() const { return planner_->cache(); }
  const ExpertBanks& banks() const { return transfers_->banks(); }
  ExpertBanks& banks() { return transfers_->banks(); }
  const CacheOptions& options() const { return options_; }
  const lanes::LookupPlanner& planner() const { return *planner_; }
  const lanes::LaneLearner& learner() const { return *learner_; }
  lanes::LaneLearner& learner() { return *learner_; }
  const lanes::LaneCosts& costs(int32_t group) const { return planner_->costs(group); }
  Bytes expert_bytes(int64_t layer) const { return banks().expert_bytes(layer); }
  // Whether costs are measured, or given by CacheOptions::rates.
  bool learns() const { return !options_.rules.rates.has_value(); }

  // Whether the layer's lookups are planned here: it has slots, but not for all experts.
  bool serves(int64_t layer) const {
    const BankedLayer* at = banks().layer(layer);
    return at != nullptr && !at->resident();
  }
  // Whether hits wait for the uploads, so that one graph computes both: where copies and graphs
  // take turns anyway.
  bool joins_uploads() const { return memory_.info().overlap == device::Overlap::kNo; }
  // Whether the hits of a lookup may be queued before it is known.
  bool expects_hits(int64_t layer, int32_t n_tokens) const {
    return planner_->expects_hits(static_cast<int32_t>(layer), n_tokens);
  }

  // Around each token step: never slower. Errors: kInvalidArgument.
  void begin_step(int32_t n_tokens);
  // Whether the CPU computes all experts of the step: a probe, or a device that gains nothing, as
  // calibrated or as found since.
  bool bypasses_step() const { return !why_unused_.empty() || (guard_ && guard_->bypasses_step()); }
  // A layer of a bypassed step.
  void note_bypassed(int64_t layer);
  Status end_step(double step_us);

  // A lookup of a layer, before its segment is queued; arrived fills enter. Where the device looks
  // up slots by itself (`uses_map`) the layer's slot map is brought there.
  // Requires: serves(layer). Errors: kDevice.
  Result<AwaitedLookup> await(int64_t layer, int32_t n_tokens, bool uses_map);

  // Decides, once calibrated, whether resident experts are computed faster than the CPU does.
  void compare_with_cpu();
  // From now on the CPU computes everything, but for layers that are resident as a whole.
  void leave_unused(std::string why) { why_unused_ = std::move(why); }
  // Why the CPU computes everything, with numbers; empty while the cache is in use.
  const std::string& why_unused() const { return why_unused_; }
  // What never-slower lets be used now.
  lanes::CacheUse use() const { return guard_ ? guard_->use() : lanes::CacheUse::kFull; }

 private:
  // Requires: there is one.
  device::Device& device() const { return *memory_.device(); }
  friend class AwaitedLookup;
  friend class ServedLookup;
  friend class QueuedUploads;
  friend class StagedChunks;

  CachedExperts(const LoadedModel& model, device::DeviceMemory& memory,
                const CacheOptions& options);

  Result<lanes::PlannedLookup> plan(int64_t layer, std::span<const int32_t> ids, int32_t n_tokens);
  // The uploads of a lookup took `us`.
  Status learn_uploads(double us);
  // The account of the lookup that is served.
  cache::CacheCounts& account() {
    return planner_->cache().account(plan_.layer, cache::batch_class(plan_.n_tokens));
  }

  device::DeviceMemory& memory_;  // without a device where all is only planned
  CacheOptions options_;
  int32_t experts_per_token_;
  std::optional<lanes::LookupPlanner> planner_;
  std::unique_ptr<ExpertTransfers> transfers_;
  std::optional<lanes::LaneLearner> learner_;
  std::optional<lanes::StepGuard> guard_;  // with share auto
  std::string why_unused_;
  LookupPairs pairs_;          // of the lookup that is served
  lanes::PlannedLookup plan_;  // of it
  int64_t n_upload_lookups_ = 0;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_CACHED_EXPERTS_H_
