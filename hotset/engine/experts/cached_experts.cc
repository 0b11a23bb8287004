#include "hotset/engine/experts/cached_experts.h"

#include <algorithm>
#include <utility>

#include "hotset/base/log.h"

namespace hotset::engine {

CachedExperts::CachedExperts(const LoadedModel& model, device::DeviceMemory& memory,
                             const CacheOptions& options)
    : memory_(memory),
      options_(options),
      experts_per_token_(static_cast<int32_t>(model.spec().router.n_expert_used)),
      pairs_(static_cast<size_t>(model.spec().router.n_expert),
             static_cast<size_t>(options.rules.most_in_batch()) *
                 static_cast<size_t>(model.spec().router.n_expert_used)) {}

Result<std::unique_ptr<CachedExperts>> CachedExperts::create(const LoadedModel& model,
                                                             device::DeviceMemory& memory,
                                                             std::vector<cache::CacheGroup> groups,
                                                             const CacheOptions& options) {
  std::unique_ptr<CachedExperts> experts(new CachedExperts(model, memory, options));
  HOTSET_TRY(cache::ExpertCache cache,
             cache::ExpertCache::create(std::move(groups), options.rules.policy));
  HOTSET_TRY(experts->planner_,
             lanes::LookupPlanner::create(
                 std::move(cache), {.cache = options.rules, .interceptor = options.interceptor}));
  experts->learner_.emplace(*experts->planner_);
  if (!options.rules.cpu_share && experts->learns()) {
    HOTSET_TRY(experts->guard_, lanes::StepGuard::create());
  }
  HOTSET_TRY(experts->transfers_, ExpertTransfers::create(model, memory, experts->core()));
  return experts;
}

void CachedExperts::begin_step(int32_t n_tokens) {
  if (!guard_ || !why_unused_.empty()) return;
  guard_->begin(n_tokens);
  // Its time is no layer's other time.
  if (guard_->bypasses_step()) learner_->interrupt();
}

void CachedExperts::note_bypassed(int64_t layer) {
  if (!guard_) return;
  guard_->bypassed(learner_->no_cache_us(core().group_of(static_cast<int32_t>(layer)),
                                         static_cast<double>(experts_per_token_)));
}

Status CachedExperts::end_step(double step_us) {
  if (!guard_ || !why_unused_.empty()) return {};
  HOTSET_TRY(const auto change, guard_->end(step_us));
  if (!change) return {};
  planner_->allow_uploads(guard_->use() == lanes::CacheUse::kFull);
  log_info("{}", lanes::describe(*change));
  return {};
}

void CachedExperts::compare_with_cpu() {
  if (options_.rules.cpu_share || !learns()) return;
  why_unused_ = learner_->why_cpu_alone(memory_.info().name, experts_per_token_);
}

Result<AwaitedLookup> CachedExperts::await(int64_t layer, int32_t n_tokens, bool uses_map) {
  HOTSET_RETURN_IF_ERROR(transfers_->fills_arrive(planner_->arrived()));
  HOTSET_RETURN_IF_ERROR(planner_->complete_fills());
  HOTSET_RETURN_IF_ERROR(transfers_->drop_unasked());
  if (uses_map) HOTSET_RETURN_IF_ERROR(banks().update_map(layer));
  return AwaitedLookup(*this, layer, n_tokens);
}

Result<lanes::PlannedLookup> CachedExperts::plan(int64_t layer, std::span<const int32_t> ids,
                                                 int32_t n_tokens) {
  if (learns()) learner_->lookup_begins(n_tokens, device().now_us());
  HOTSET_TRY(plan_, planner_->plan(static_cast<int32_t>(layer), ids, n_tokens, experts_per_token_));
  learner_->lookup_is_planned(plan_.predicted_us);
  if (guard_ && learner_->has_model(plan_.group)) {
    guard_->planned(plan_.predicted_us, plan_.cheapest_us,
                    learner_->no_cache_us(plan_.group, static_cast<double>(plan_.n_selected())));
  }
  HOTSET_TRY(const Bytes unused, transfers_->begin(plan_));
  account().unused_bytes += unused;
  pairs_.list(plan_, transfers_->chunks(), core().slot_map(plan_.layer), ids);
  return plan_;
}

Status CachedExperts::learn_uploads(double us) {
  const Bytes n_bytes = expert_bytes(plan_.layer) * std::ssize(plan_.uploads);
  account().timed_upload_us += us;
  account().timed_upload_bytes += n_bytes;
  if (!learns()) return {};
  const auto use = plan_.cpu.empty() ? lanes::LaneUse::kSolo : lanes::LaneUse::kConcurrent;
  return learner_->learn_uploads(plan_.group, use, n_bytes, us);
}

// --- The stages of a lookup

Status AwaitedLookup::prefetch() {
  const BankedLayer& banked = *owner_->banks().layer(layer_);
  const bool overlaps = owner_->memory_.info().overlap != device::Overlap::kNo;
  const auto most = static_cast<size_t>(overlaps ? banked.n_stage / 2 : 0);
  return owner_->transfers_->copy_ahead(
      layer_, owner_->planner_->experts_ahead(static_cast<int32_t>(layer_), n_tokens_, most));
}

Result<ServedLookup> AwaitedLookup::plan(std::span<const int32_t> ids) && {
  owner_->transfers_->host_has_waited();
  HOTSET_TRY(const lanes::PlannedLookup plan, owner_->plan(layer_, ids, n_tokens_));
  return ServedLookup(*owner_, plan);
}

const LookupPairs& ServedLookup::pairs() const { return owner_->pairs_; }
cache::CacheCounts& ServedLookup::account() { return owner_->account(); }

Result<QueuedUploads> ServedLookup::queue_uploads() {
  const size_t n = n_uploads();
  QueuedUploads queued(*owner_, n);
  if (n == 0) return queued;
  const double start_us = owner_->device().now_us();
  HOTSET_RETURN_IF_ERROR(owner_->transfers_->queue_uploads(plan_.layer, plan_.uploads));
  account().uploaded_bytes += owner_->expert_bytes(plan_.layer) * static_cast<int64_t>(n);
  if (owner_->memory_.info().virtual_clock) {
    const double end_us = owner_->device().event_time_us(owner_->transfers_->uploaded());
    HOTSET_RETURN_IF_ERROR(owner_->learn_uploads(end_us - start_us));
  }
  return queued;
}

Status ServedLookup::queue_fills() {
  HOTSET_RETURN_IF_ERROR(owner_->transfers_->queue_fills(plan_.fills));
  for (const cache::Fill& fill : plan_.fills)
    account().filled_bytes += owner_->expert_bytes(fill.key.layer);
  return {};
}

Status ServedLookup::finish(double cpu_us) && {
  const size_t n_experts = plan_.cpu.size() + (plan_.all_on_cpu ? plan_.hits.size() : 0);
  account().cpu_us += cpu_us;
  account().cpu_bytes += owner_->expert_bytes(plan_.layer) * static_cast<int64_t>(n_experts);
  if (!owner_->learns()) return {};
  const size_t n_pairs = pairs().cpu().size() + (plan_.all_on_cpu ? pairs().hits().size() : 0);
  const auto use = plan_.n_crossing() == 0 ? lanes::LaneUse::kSolo : lanes::LaneUse::kConcurrent;
  return owner_->learner_->learn_cpu(plan_.group, use, static_cast<int64_t>(n_experts),
                                     static_cast<int64_t>(n_pairs), cpu_us);
}

Status QueuedUploads::arrive() { return owner_->transfers_->uploads_arrive(); }

Status QueuedUploads::sample_time(double start_us) {
  constexpr int64_t kLookupsPerSample = 16;
  device::Device& device = owner_->device();
  if (empty() || device.info().virtual_clock) return {};
  if (owner_->n_upload_lookups_++ % kLookupsPerSample != 0) return {};
  HOTSET_RETURN_IF_ERROR(device.wait(owner_->transfers_->uploaded()));
  return owner_->learn_uploads(device.now_us() - start_us);
}

Status StagedChunks::queue(size_t index) {
  const int32_t layer = owner_->plan_.layer;
  const StreamChunk& chunk = owner_->transfers_->chunks()[index];
  owner_->account().streamed_bytes += owner_->expert_bytes(layer) * std::ssize(chunk.experts);
  return owner_->transfers_->queue_chunk(layer, index);
}

Result<const StagedChunks::Chunk*> StagedChunks::next() {
  ExpertTransfers& transfers = *owner_->transfers_;
  const size_t n_chunks = transfers.chunks().size();
  if (n_given_ == 0) {
    // Both halves of the staging area are free at first: the host has waited for the routing.
    for (size_t i = 0; i < std::min<size_t>(2, n_chunks); ++i) {
      HOTSET_RETURN_IF_ERROR(queue(i));
    }
  } else {
    HOTSET_RETURN_IF_ERROR(transfers.chunk_is_computed(n_given_ - 1));
    if (n_given_ + 1 < n_chunks) HOTSET_RETURN_IF_ERROR(queue(n_given_ + 1));
  }
  if (n_given_ == n_chunks) return nullptr;
  HOTSET_RETURN_IF_ERROR(transfers.chunk_arrives(n_given_));
  chunk_ = {.pairs = owner_->pairs_.chunk(n_given_),
            .n_experts = transfers.chunks()[n_given_].experts.size()};
  ++n_given_;
  return &chunk_;
}

}  // namespace hotset::engine
