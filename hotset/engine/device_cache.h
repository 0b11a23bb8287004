// The expert cache of one device: the core that plans lookups, and the banks in which its plans
// become true. Serves one layer of one token step at a time:
//
//   before_routing(layer)    arrived fills enter; where the device looks up slots by itself, the
//                            layer's slot map is brought there
//   prefetch(layer)          of a prefill that will need nearly all experts: its first chunk
//   plan(layer, ids)         which pairs are where; the host has waited for ids
//   queue_uploads()          copies of missing experts, then uploads_arrive() for the compute queue
//   queue_fills()            copies that nobody waits for yet
//
// Thread-compatible: the thread that drives the device.
#ifndef HOTSET_ENGINE_DEVICE_CACHE_H_
#define HOTSET_ENGINE_DEVICE_CACHE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/cache/expert_cache.h"
#include "hotset/cache/fixed_share.h"
#include "hotset/device/device.h"
#include "hotset/engine/cache_options.h"
#include "hotset/engine/executor.h"
#include "hotset/engine/expert_banks.h"
#include "hotset/engine/loaded_model.h"
#include "hotset/lanes/lane_planner.h"
#include "hotset/plan/lane_model.h"
#include "hotset/plan/never_slower.h"

namespace hotset::engine {

// Experts of a prefill that are copied together: into slots of their own, or through one half of
// the staging area.
struct StreamChunk {
  static constexpr int32_t kOwnSlots = -1;

  std::vector<int32_t> experts;  // ascending
  std::vector<int32_t> slots;    // theirs
  std::vector<int32_t> pairs;    // theirs
  // The chunk that used the same half before, whose pairs must be computed first; -1: none.
  int32_t after = -1;
  int32_t half = kOwnSlots;  // of the staging area
  bool is_prefetched = false;
  device::Event copied;
  device::Event computed;
};

// What became of the experts of a lookup.
enum class Split {
  kHits,      // all were resident
  kUploads,   // all missing ones were uploaded
  kBoth,      // some were uploaded, the CPU computed the others
  kCpu,       // the CPU computed all missing ones
  kAllOnCpu,  // the CPU computed everything, also resident ones
  kStreamed,  // missing ones were streamed, or computed by the CPU
};
inline constexpr size_t kSplits = 6;
// "hits", "uploads", "both", "cpu", "all on cpu", "streamed".
const char* split_name(Split split);
// As profiles have it: "plan: hits". A string literal.
const char* split_label(Split split);

// A planned lookup. A pair is a token's i-th expert, number token * k + i; lists are ascending.
struct ServedLookup {
  std::span<const int32_t> hit_pairs;     // of experts that were resident
  std::span<const int32_t> upload_pairs;  // of experts that are uploaded for this lookup
  std::span<const int32_t> device_pairs;  // both
  std::span<const int32_t> cpu_pairs;     // of experts that the CPU computes
  std::span<const StreamChunk> chunks;    // of a prefill: everything that crosses the link
  int32_t n_hits = 0;                     // distinct experts
  int32_t n_uploads = 0;
  int32_t n_cpu = 0;
  int32_t n_streamed = 0;  // in chunks
  // The CPU computes every pair, also of resident experts; nothing is on the device.
  bool all_on_cpu = false;
  Split split = Split::kHits;
};

// What one lane did for the lookups of a layer and a batch class.
struct LaneTotals {
  Bytes uploaded;
  Bytes filled;
  Bytes streamed;
  Bytes unused;  // copied ahead of the routing, which then did not ask for it
  Bytes cpu_read;
  // From the first copy of a lookup to the last one, of the lookups whose copies were timed: on a
  // virtual clock all, else some.
  double timed_upload_us = 0;
  Bytes timed_upload;
  double cpu_us = 0;                          // of the CPU lane
  double wait_us = 0;                         // of the host, for the routing
  std::array<uint64_t, kSplits> splits = {};  // lookups

  // Of all uploads, as the timed ones say; 0 if none was timed.
  double upload_us() const;

  LaneTotals& operator+=(const LaneTotals& other);
};

// The layers of a file that have experts, and these experts' tensors. Errors: as find_weight.
Result<std::vector<MoeLayer>> moe_layers(const ModelDescription& model);

class DeviceCache {
 public:
  // The groups of a model's experts on the layers of `placement`, for a budget.
  // Errors: kInvalidArgument.
  static Result<std::vector<CacheGroup>> form_groups(const ModelDescription& model,
                                                     const device::Device& device,
                                                     const Placement& placement, Bytes budget);

  // References must outlive the object. Resident groups are filled now.
  // Errors: kInvalidArgument (share, policy), kOutOfMemory, kDevice.
  static Result<std::unique_ptr<DeviceCache>> create(const LoadedModel& model,
                                                     device::Device& device,
                                                     std::vector<CacheGroup> groups,
                                                     const CacheOptions& options);

  const ExpertCache& core() const { return *cache_; }
  const ExpertBanks& banks() const { return *banks_; }
  const CacheOptions& options() const { return options_; }
  // Whether the layer's lookups are planned here: it has slots, but not for all experts.
  bool serves(int64_t layer) const {
    const BankedLayer* at = banks_->layer(layer);
    return at != nullptr && !at->resident();
  }
  // Whether hits wait for the uploads, so that one graph computes both: where copies and graphs
  // take turns anyway.
  bool joins_uploads() const { return device_.info().overlap == device::Overlap::kNo; }
  // Whether the CPU computed all experts of most of the last lookups of a layer: then resident ones
  // should not be started before the lookup is known.
  bool expects_all_on_cpu(int64_t layer) const {
    return all_on_cpu_share_[static_cast<size_t>(layer)].mean() > 0.5;
  }
  // Whether the hits of a lookup of so many tokens may be queued before it is known: they read the
  // pad slot for every miss, of which a lookup that is streamed has many.
  bool may_queue_hits(int32_t n_tokens) const {
    return n_tokens <= most_queued_tokens(options_) && !(n_tokens > 1 && streamed_last_);
  }

  // Errors: kDevice. Requires: serves(layer).
  Status before_routing(int64_t layer, bool uses_map);
  // Copies the first chunk of a lookup of so many tokens while the device still computes its
  // routing, if the last lookup of as many tokens was streamed and took nearly everything. Call
  // between before_routing() and routing_arrived(). Errors: kDevice.
  Status prefetch(int64_t layer, int32_t n_tokens);
  // The host has waited for everything that was on the compute queue.
  void routing_arrived();

  // ids [n_tokens, k]. The answer holds until the next call.
  // Errors: as ExpertCache::classify. Requires: before_routing(layer) was the last one.
  Result<ServedLookup> plan(int64_t layer, std::span<const int32_t> ids, int32_t n_tokens);
  // Where an expert of the planned lookup is in the banks; kNoSlot if the CPU has it.
  int32_t device_slot(int32_t expert) const;

  // Queues the copies of the planned uploads. Errors: kDevice.
  Status queue_uploads();
  // What is queued for computing from now on finds the uploads. Errors: kDevice.
  Status uploads_arrive();
  // Queues the copies of a chunk of the planned lookup, and lets the compute queue wait for them;
  // says that what was queued for it is all. In this order, chunk by chunk; the copies of the next
  // chunk may be queued before. Errors: kDevice.
  Status queue_chunk(size_t index);
  Status chunk_arrives(size_t index);
  Status chunk_is_computed(size_t index);
  // Happens when the uploads that were queued last are done.
  device::Event uploaded() const { return uploaded_; }
  // Queues the copies of the planned fills. Errors: kDevice.
  Status queue_fills();

  // Never slower (design section 5). Around each token step of one token: whether all of its
  // experts should be computed by the CPU (a probe, or a device that gains nothing, as calibrated
  // or as found since), and what it took. Errors: kInvalidArgument.
  void begin_step(int32_t n_tokens);
  bool bypassed() const { return !why_bypassed_.empty() || is_step_bypassed_; }
  Status end_step(double step_us);
  // A layer of a bypassed step.
  void note_bypassed(int64_t layer);
  // From now on the CPU computes everything, but for layers that are resident as a whole.
  void leave_unused(std::string why) { why_bypassed_ = std::move(why); }
  // Why the CPU computes everything, with numbers; empty while the cache is in use.
  const std::string& why_bypassed() const { return why_bypassed_; }
  // What never-slower lets be used now, of steps of one token; no uploads in others either, unless
  // it is kFull.
  plan::CacheUse use() const { return guard_ ? guard_->use() : plan::CacheUse::kFull; }
  bool uploads_allowed() const { return !guard_ || guard_->uploads_allowed(); }
  // Decides, once calibrated, whether resident experts are computed faster than the CPU does.
  void compare_with_cpu();

  // Whether costs are measured, or given by CacheOptions::rates.
  bool learns() const { return !options_.rates.has_value(); }
  // What is known of the lanes of a group. Requires: start_lane_model(group) was called.
  plan::LaneModel& lane_model(int32_t group) { return *models_[static_cast<size_t>(group)]; }
  bool has_lane_model(int32_t group) const {
    return models_[static_cast<size_t>(group)].has_value();
  }
  // Starts a group's model; a further token of an expert costs the CPU `cpu_further_token` of its
  // first. Errors: as LaneModel::create.
  Status start_lane_model(int32_t group, double cpu_further_token);
  // The planner goes by what the model knows now.
  void lanes_learned(int32_t group) { lanes_->set_costs(group, lane_model(group).costs()); }
  const plan::LaneCosts& costs(int32_t group) const { return lanes_->costs(group); }
  ExpertBanks& banks_for_calibration() { return *banks_; }
  // The planned lookup was served, and took `cpu_us` of the CPU lane.
  // Errors: kInvalidArgument.
  Status learn(const ServedLookup& served, double cpu_us);
  // Whether the host should wait for the planned uploads to learn what they take.
  bool wants_upload_time();
  // They took `us`. Errors: kInvalidArgument.
  Status learn_uploads(double us);

  // Adds to the totals of the planned lookup.
  LaneTotals& totals() { return totals_[total_index_]; }
  const LaneTotals& totals(int64_t layer, BatchClass batch) const {
    return totals_[total_index(layer, batch)];
  }
  Bytes expert_bytes(int64_t layer) const {
    return cache_->spec(cache_->group_of(static_cast<int32_t>(layer))).bytes_per_expert();
  }

 private:
  // Experts of a layer that were copied into the first half of the staging area, ascending.
  struct Prefetch {
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

  DeviceCache(const LoadedModel& model, device::Device& device, const CacheOptions& options)
      : model_(model), device_(device), options_(options) {}

  void observe_other_time(int32_t n_tokens);
  // What a step takes beside its experts if the CPU computes all of them.
  double no_cache_other_us() const;
  // A step that the CPU computed took `step_us`.
  void observe_no_cache(double step_us);
  Status take_arrived_fills();
  Result<bool> streams(const Lookup& lookup);
  // Of the lookup that is planned: what prefetch() would have copied, had it been asked.
  void note_streamed(const Lookup& lookup, size_t n_streamed);
  Result<Decision> decide(const Lookup& lookup);
  // Of the planned prefill: what got a slot, and `n_streamed` of the experts that got none.
  Status form_chunks(const Lookup& lookup, size_t n_streamed);
  Result<StreamChunk*> add_chunk(int32_t half);
  // Of the streamed experts, those that prefetch() copied become the first chunk that is streamed.
  Status take_prefetched(const BankedLayer& banked);
  // Copies n experts, at(i) the i-th with its slot; neighbours in the file that become neighbours
  // in the bank are one copy.
  template <typename At>
  Status copy_runs(int64_t layer, size_t n, const char* label, At at);
  Split split_of(bool all_on_cpu, bool is_streamed) const;
  ServedLookup list_pairs(std::span<const int32_t> ids, const Lookup& lookup);
  Result<device::Event> free_event();
  static size_t total_index(int64_t layer, BatchClass batch) {
    return static_cast<size_t>(layer) * kBatchClasses + static_cast<size_t>(batch);
  }

  const LoadedModel& model_;
  device::Device& device_;
  CacheOptions options_;
  std::optional<ExpertCache> cache_;
  std::unique_ptr<ExpertBanks> banks_;
  std::optional<FixedShare> share_;
  std::optional<lanes::LanePlanner> lanes_;
  std::vector<std::optional<plan::LaneModel>> models_;  // [n_groups]
  std::vector<double> cpu_further_token_;               // [n_groups]
  std::vector<plan::DecayedMean> all_on_cpu_share_;     // [n_layer], of decode lookups
  plan::DecayedMean other_us_of_one_{64, 0, 0};         // of a layer and token, beside its experts
  plan::DecayedMean other_us_of_more_{64, 0, 0};        // of a layer and several tokens
  double planned_at_us_ = -1;                           // the last lookup
  bool planned_one_ = true;                             // which was of one token
  double planned_us_ = 0;                               // and what its experts should take
  int64_t n_upload_lookups_ = 0;
  std::optional<plan::NeverSlower> guard_;  // with share auto
  std::string why_bypassed_;
  bool is_step_of_one_ = false;
  bool is_probe_ = false;
  bool is_step_bypassed_ = false;
  double step_planned_us_ = 0;   // experts of the step, as the splits that were taken should take
  double step_cheapest_us_ = 0;  // and the cheapest splits
  double step_no_cache_us_ = 0;  // and all of them on the CPU
  static constexpr double kStepsToHalve = 64;
  plan::DecayedMean step_other_us_{kStepsToHalve, 0, 0};  // of a step, beside its experts
  plan::DecayedMean step_no_cache_mean_{kStepsToHalve, 0, 0};
  // Of a step without the cache, as those that were found it. What costs foresee wrongly of a step
  // with the cache is in step_other_us_, too, and would excuse the cache for what it causes.
  std::optional<plan::DecayedMean> probe_other_us_;
  LookupPlan plan_;
  device::Event uploaded_;
  uint64_t uploaded_point_ = 0;  // of the ring, at uploaded_
  uint64_t waited_point_ = 0;    // of the ring; the compute queue waits for the copies before it
  std::vector<QueuedFill> fills_;
  std::vector<device::Event> used_events_;  // of arrived fills; the compute queue waits for them
  std::vector<device::Event> free_events_;
  enum class Lane : uint8_t { kHit, kUpload, kCpu, kStream };
  std::vector<Lane> lane_of_;        // [n_expert] of the planned lookup
  std::vector<int32_t> chunk_of_;    // [n_expert] of a streamed one
  std::vector<int32_t> stage_slot_;  // [n_expert]
  std::vector<int32_t> n_pairs_of_;  // [n_expert] of a missing one
  std::vector<int32_t> streamed_;
  Prefetch prefetch_;
  std::array<device::Event, 2> prefetch_events_;
  bool streamed_last_ = false;            // the last lookup of more than one token
  int32_t whole_streams_of_ = 0;          // tokens of the last lookup if it streamed nearly all
  std::vector<StreamChunk> chunk_store_;  // as many as any lookup had
  size_t n_chunks_ = 0;
  std::span<StreamChunk> chunks_;     // of the planned lookup
  std::vector<int32_t> cpu_experts_;  // what is asked of the CPU lane
  std::vector<int32_t> hit_pairs_;
  std::vector<int32_t> upload_pairs_;
  std::vector<int32_t> device_pairs_;
  std::vector<int32_t> cpu_pairs_;
  std::vector<LaneTotals> totals_;  // [n_layer, kBatchClasses]
  size_t total_index_ = 0;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_DEVICE_CACHE_H_
