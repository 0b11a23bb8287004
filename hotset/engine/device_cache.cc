#include "hotset/engine/device_cache.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/device/tensor_context.h"

namespace hotset::engine {

using device::QueueId;

LaneTotals& LaneTotals::operator+=(const LaneTotals& other) {
  uploaded += other.uploaded;
  filled += other.filled;
  streamed += other.streamed;
  unused += other.unused;
  cpu_read += other.cpu_read;
  timed_upload_us += other.timed_upload_us;
  timed_upload += other.timed_upload;
  cpu_us += other.cpu_us;
  wait_us += other.wait_us;
  for (size_t i = 0; i < kSplits; ++i) splits[i] += other.splits[i];
  return *this;
}

const char* split_label(Split split) {
  static constexpr std::array<const char*, kSplits> kLabels = {
      "plan: hits", "plan: uploads",    "plan: both",
      "plan: cpu",  "plan: all on cpu", "plan: streamed"};
  return kLabels[static_cast<size_t>(split)];
}

const char* split_name(Split split) {
  return split_label(split) + std::string_view("plan: ").size();
}

double LaneTotals::upload_us() const {
  if (timed_upload.count == 0) return 0;
  return timed_upload_us * static_cast<double>(uploaded.count) /
         static_cast<double>(timed_upload.count);
}

namespace {

// Whether the device multiplies by id with a bank of `n_experts` experts.
bool accepts_bank(ggml_context* c, const device::Device& device, const ExpertTensor& tensor,
                  int64_t n_experts) {
  ggml_reset(c);
  const auto type = static_cast<ggml_type>(tensor.type);
  ggml_tensor* bank = ggml_new_tensor_3d(c, type, tensor.n_columns, tensor.n_rows, n_experts);
  ggml_tensor* x = ggml_new_tensor_3d(c, GGML_TYPE_F32, tensor.n_columns, 1, 1);
  ggml_tensor* ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, 1, 1);
  return device.supports(ggml_mul_mat_id(c, bank, x, ids));
}

}  // namespace

Result<std::vector<MoeLayer>> moe_layers(const ModelDescription& model) {
  ModelWeights weights;
  WeightList list;
  model.architecture->declare_weights(model.spec, weights, list);
  std::vector<MoeLayer> layers;
  for (const WeightDeclaration& declaration : list.declarations()) {
    if (declaration.use != WeightUse::kExperts) continue;
    HOTSET_TRY(const model::TensorInfo* info, find_weight(model.file, declaration));
    if (info == nullptr) continue;
    if (layers.empty() || layers.back().layer != declaration.layer) {
      layers.push_back({.layer = static_cast<int32_t>(declaration.layer),
                        .n_expert = static_cast<int32_t>(model.spec.router.n_expert)});
    }
    layers.back().tensors.push_back({.type = static_cast<int32_t>(info->type),
                                     .n_rows = info->ne[1],
                                     .n_columns = info->ne[0],
                                     .expert_bytes = {info->n_bytes.count / info->ne[2]}});
  }
  return layers;
}

Result<std::vector<CacheGroup>> DeviceCache::form_groups(const ModelDescription& model,
                                                         const device::Device& device,
                                                         const Placement& placement, Bytes budget) {
  const model::ModelSpec& spec = model.spec;
  HOTSET_TRY(std::vector<MoeLayer> layers, moe_layers(model));
  std::erase_if(layers, [&](const MoeLayer& at) { return !placement.on_device(at.layer); });
  if (layers.empty()) return std::vector<CacheGroup>();
  HOTSET_TRY(const device::TensorContext context, device::new_tensor_context(8));
  const DeviceShare share{
      .alignment = static_cast<int64_t>(ggml_backend_buft_get_alignment(device.buffer_type())),
      .accepts_bank = [&](const ExpertTensor& tensor, int64_t n) {
        // With room for the staging area, which is at most a quarter of a layer.
        return accepts_bank(context.get(), device, tensor, n + spec.router.n_expert / 4 + 2);
      }};
  const auto k = static_cast<int32_t>(spec.router.n_expert_used);
  HOTSET_TRY(std::vector<GroupSpec> specs, hotset::form_groups(layers, {&share, 1}, budget, k));
  std::vector<CacheGroup> groups;
  for (GroupSpec& group : specs) {
    const int64_t n_slots = slots_for_budget(group_budget(budget, group), group, k);
    groups.push_back({.spec = std::move(group), .n_slots = n_slots});
  }
  return groups;
}

Result<std::unique_ptr<DeviceCache>> DeviceCache::create(const LoadedModel& model,
                                                         device::Device& device,
                                                         std::vector<CacheGroup> groups,
                                                         const CacheOptions& options) {
  std::unique_ptr<DeviceCache> cache(new DeviceCache(model, device, options));
  const auto n_expert = static_cast<size_t>(model.spec().router.n_expert);
  const auto n_layer = static_cast<int32_t>(model.spec().n_layer);
  HOTSET_TRY(cache->cache_, ExpertCache::create(std::move(groups), options.policy));
  if (options.cpu_share) {
    HOTSET_TRY(cache->share_, FixedShare::create(static_cast<float>(*options.cpu_share), n_layer));
  } else if (cache->learns()) {
    HOTSET_TRY(cache->guard_, plan::NeverSlower::create({}));
  }
  HOTSET_TRY(cache->lanes_, lanes::LanePlanner::create(options.rates.value_or(plan::kTypicalRates),
                                                       *cache->cache_));
  cache->lanes_->set_fills(options.fills);
  cache->lanes_->set_max_decode_tokens(options.cpu_share ? most_queued_tokens(options)
                                                         : options.max_decode_tokens);
  cache->models_.resize(static_cast<size_t>(cache->cache_->n_groups()));
  cache->cpu_further_token_.resize(cache->models_.size());
  HOTSET_TRY(cache->banks_, ExpertBanks::create(model, device, *cache->cache_));
  HOTSET_TRY(cache->uploaded_, device.new_event());
  for (device::Event& event : cache->prefetch_events_) {
    HOTSET_TRY(event, device.new_event());
  }
  cache->all_on_cpu_share_.assign(static_cast<size_t>(n_layer), plan::DecayedMean(4, 0, 1));
  cache->lane_of_.resize(n_expert);
  cache->chunk_of_.resize(n_expert);
  cache->stage_slot_.resize(n_expert);
  cache->n_pairs_of_.resize(n_expert);
  cache->cpu_experts_.reserve(n_expert);
  cache->totals_.resize(static_cast<size_t>(n_layer) * kBatchClasses);
  // A lookup queues at most one fill per expert.
  cache->fills_.reserve(64);
  cache->free_events_.reserve(64);
  cache->used_events_.reserve(64);
  const size_t n_decode_pairs = static_cast<size_t>(most_queued_tokens(options)) *
                                static_cast<size_t>(model.spec().router.n_expert_used);
  for (auto* pairs :
       {&cache->hit_pairs_, &cache->upload_pairs_, &cache->device_pairs_, &cache->cpu_pairs_}) {
    pairs->reserve(n_decode_pairs);
  }
  return cache;
}

Result<device::Event> DeviceCache::free_event() {
  if (free_events_.empty()) return device_.new_event();
  const device::Event event = free_events_.back();
  free_events_.pop_back();
  return event;
}

Status DeviceCache::take_arrived_fills() {
  for (const auto& arrived : lanes_->arrived()) {
    const auto it = std::ranges::find_if(fills_, [&](const QueuedFill& fill) {
      return fill.group == arrived.group && fill.slot == arrived.slot;
    });
    HOTSET_CHECK(it != fills_.end());
    // The link's model says that the copy is done. Where it is late, the device waits for it, so
    // that no graph reads a slot before its expert is there.
    HOTSET_RETURN_IF_ERROR(device_.queue_wait(QueueId::kCompute, it->copied));
    banks_->map_changed(it->layer);
    waited_point_ = std::max(waited_point_, it->point);
    used_events_.push_back(it->copied);
    fills_.erase(it);
  }
  return lanes_->complete_fills(*cache_);
}

Status DeviceCache::before_routing(int64_t layer, bool uses_map) {
  HOTSET_RETURN_IF_ERROR(take_arrived_fills());
  if (!prefetch_.is_waited) {
    // Nobody asked for it; what it was copied from may be used again once the device has it.
    HOTSET_RETURN_IF_ERROR(device_.queue_wait(QueueId::kCompute, prefetch_.copied));
    waited_point_ = std::max(waited_point_, prefetch_.point);
    prefetch_.is_waited = true;
  }
  return uses_map ? banks_->update_map(layer) : Status();
}

Status DeviceCache::prefetch(int64_t layer, int32_t n_tokens) {
  prefetch_.layer = -1;
  const BankedLayer& banked = *banks_->layer(layer);
  const SlotTable& slots = cache_->slots(cache_->group_of(static_cast<int32_t>(layer)));
  // A slot that is empty is filled with an expert that the routing chooses.
  if (n_tokens != whole_streams_of_ || !slots.full() || banked.n_stage < 2 ||
      device_.info().overlap == device::Overlap::kNo) {
    return {};
  }
  // The chunk of the lookup before that was in this half may still be computed.
  for (size_t i = chunks_.size(); i-- > 0;) {
    if (chunks_[i].half != 0) continue;
    HOTSET_RETURN_IF_ERROR(device_.queue_wait(QueueId::kTransfer, chunks_[i].computed));
    break;
  }
  prefetch_.experts.clear();
  const std::span<const int32_t> map = cache_->slot_map(static_cast<int32_t>(layer));
  for (size_t e = 0; e < map.size() && std::ssize(prefetch_.experts) < banked.n_stage / 2; ++e) {
    if (map[e] == kNoSlot) prefetch_.experts.push_back(static_cast<int32_t>(e));
  }
  if (prefetch_.experts.empty()) return {};
  HOTSET_RETURN_IF_ERROR(copy_runs(layer, prefetch_.experts.size(), "prefetch", [&](size_t i) {
    return Upload{prefetch_.experts[i], banked.first_stage + static_cast<int32_t>(i)};
  }));
  std::swap(prefetch_events_[0], prefetch_events_[1]);
  prefetch_.copied = prefetch_events_[0];
  prefetch_.layer = layer;
  prefetch_.point = banks_->point();
  prefetch_.is_waited = false;
  return device_.record(prefetch_.copied, QueueId::kTransfer);
}

Result<Decision> DeviceCache::decide(const Lookup& lookup) {
  cpu_experts_.clear();
  if (share_) {
    const auto n_share = static_cast<size_t>(share_->take(lookup));
    for (const Miss& miss : lookup.misses.first(n_share)) cpu_experts_.push_back(miss.expert);
  } else if (!uploads_allowed()) {
    for (const Miss& miss : lookup.misses) cpu_experts_.push_back(miss.expert);
    return Decision{.cpu_experts = cpu_experts_};
  } else {
    HOTSET_TRY(const auto chosen, lanes_->choose_cpu_experts(lookup));
    cpu_experts_.assign(chosen.begin(), chosen.end());
  }
  if (cpu_experts_.empty() || !options_.fills) return Decision{.cpu_experts = cpu_experts_};
  HOTSET_TRY(const int32_t max_fills,
             lanes_->max_fills(lookup, lookup.misses.size() - cpu_experts_.size()));
  return Decision{.cpu_experts = cpu_experts_, .max_fills = max_fills};
}

ServedLookup DeviceCache::list_pairs(std::span<const int32_t> ids, const Lookup& lookup) {
  for (const Hit& hit : lookup.hits) lane_of_[static_cast<size_t>(hit.expert)] = Lane::kHit;
  for (const Upload& upload : plan_.uploads) {
    lane_of_[static_cast<size_t>(upload.expert)] = Lane::kUpload;
  }
  for (const int32_t expert : plan_.cpu_experts) {
    lane_of_[static_cast<size_t>(expert)] = Lane::kCpu;
  }
  for (size_t c = 0; c < chunks_.size(); ++c) {
    for (size_t i = 0; i < chunks_[c].experts.size(); ++i) {
      const auto expert = static_cast<size_t>(chunks_[c].experts[i]);
      lane_of_[expert] = Lane::kStream;
      chunk_of_[expert] = static_cast<int32_t>(c);
      stage_slot_[expert] = chunks_[c].slots[i];
    }
    chunks_[c].pairs.clear();
  }
  hit_pairs_.clear();
  upload_pairs_.clear();
  device_pairs_.clear();
  cpu_pairs_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto expert = static_cast<size_t>(ids[i]);
    const auto pair = static_cast<int32_t>(i);
    switch (lane_of_[expert]) {
      case Lane::kHit:
        hit_pairs_.push_back(pair);
        device_pairs_.push_back(pair);
        break;
      case Lane::kUpload:
        upload_pairs_.push_back(pair);
        device_pairs_.push_back(pair);
        break;
      case Lane::kCpu:
        cpu_pairs_.push_back(pair);
        break;
      case Lane::kStream:
        chunks_[static_cast<size_t>(chunk_of_[expert])].pairs.push_back(pair);
        break;
    }
  }
  ServedLookup served{.hit_pairs = hit_pairs_,
                      .upload_pairs = upload_pairs_,
                      .device_pairs = device_pairs_,
                      .cpu_pairs = cpu_pairs_,
                      .chunks = chunks_,
                      .n_hits = static_cast<int32_t>(lookup.hits.size()),
                      .n_uploads = static_cast<int32_t>(plan_.uploads.size()),
                      .n_cpu = static_cast<int32_t>(plan_.cpu_experts.size())};
  if (chunks_.empty()) return served;
  for (const StreamChunk& chunk : chunks_) {
    served.n_streamed += static_cast<int32_t>(chunk.experts.size());
  }
  served.n_cpu -= served.n_streamed - served.n_uploads;
  served.n_uploads = 0;
  return served;
}

Result<StreamChunk*> DeviceCache::add_chunk(int32_t half) {
  if (n_chunks_ == chunk_store_.size()) {
    StreamChunk& made = chunk_store_.emplace_back();
    HOTSET_TRY(made.copied, device_.new_event());
    HOTSET_TRY(made.computed, device_.new_event());
  }
  StreamChunk& chunk = chunk_store_[n_chunks_++];
  chunk.experts.clear();
  chunk.slots.clear();
  chunk.after = -1;
  chunk.half = half;
  chunk.is_prefetched = false;
  return &chunk;
}

Status DeviceCache::take_prefetched(const BankedLayer& banked) {
  if (prefetch_.layer != plan_.layer) return {};
  StreamChunk* chunk = nullptr;
  const size_t n_before = streamed_.size();
  for (size_t i = 0; i < prefetch_.experts.size(); ++i) {
    const int32_t expert = prefetch_.experts[i];
    const auto at = std::ranges::lower_bound(streamed_, expert);
    if (at == streamed_.end() || *at != expert) continue;
    streamed_.erase(at);
    if (chunk == nullptr) {
      HOTSET_TRY(chunk, add_chunk(0));
      chunk->is_prefetched = true;
    }
    chunk->experts.push_back(expert);
    chunk->slots.push_back(banked.first_stage + static_cast<int32_t>(i));
  }
  totals().unused +=
      expert_bytes(plan_.layer) *
      (std::ssize(prefetch_.experts) - static_cast<int64_t>(n_before - streamed_.size()));
  return {};
}

Status DeviceCache::form_chunks(const Lookup& lookup, size_t n_streamed) {
  n_chunks_ = 0;
  const BankedLayer& banked = *banks_->layer(plan_.layer);
  const auto n_half = static_cast<size_t>(banked.n_stage / 2);
  for (size_t i = 0; i < plan_.uploads.size(); ++i) {
    if (i % n_half == 0) {
      HOTSET_TRY([[maybe_unused]] const StreamChunk* added, add_chunk(StreamChunk::kOwnSlots));
    }
    chunk_store_[n_chunks_ - 1].experts.push_back(plan_.uploads[i].expert);
    chunk_store_[n_chunks_ - 1].slots.push_back(plan_.uploads[i].slot);
  }
  for (const Miss& miss : lookup.misses) {
    n_pairs_of_[static_cast<size_t>(miss.expert)] = miss.n_pairs;
  }
  // Those with the most tokens; ties by expert, as the list comes.
  streamed_.assign(plan_.cpu_experts.begin(), plan_.cpu_experts.end());
  std::ranges::stable_sort(streamed_, std::greater{}, [&](int32_t expert) {
    return n_pairs_of_[static_cast<size_t>(expert)];
  });
  streamed_.resize(std::min(n_streamed, streamed_.size()));
  // In the order of the file, so that neighbours are one copy.
  std::ranges::sort(streamed_);
  note_streamed(lookup, streamed_.size());
  const size_t n_before = n_chunks_;
  HOTSET_RETURN_IF_ERROR(take_prefetched(banked));
  for (size_t i = 0; i < streamed_.size(); ++i) {
    if (i % n_half == 0) {
      const size_t n_staged = n_chunks_ - n_before;
      HOTSET_TRY(StreamChunk* const chunk, add_chunk(static_cast<int32_t>(n_staged % 2)));
      if (n_staged >= 2) chunk->after = static_cast<int32_t>(n_chunks_) - 3;
    }
    StreamChunk& chunk = chunk_store_[n_chunks_ - 1];
    chunk.experts.push_back(streamed_[i]);
    chunk.slots.push_back(
        banked.first_stage +
        static_cast<int32_t>(static_cast<size_t>(chunk.half) * n_half + i % n_half));
  }
  chunks_ = std::span(chunk_store_).first(n_chunks_);
  return {};
}

template <typename At>
Status DeviceCache::copy_runs(int64_t layer, size_t n, const char* label, At at) {
  for (size_t begin = 0; begin < n;) {
    const Upload first = at(begin);
    int32_t n_run = 1;
    while (begin + static_cast<size_t>(n_run) < n) {
      const Upload next = at(begin + static_cast<size_t>(n_run));
      if (next.expert != first.expert + n_run || next.slot != first.slot + n_run) break;
      ++n_run;
    }
    HOTSET_RETURN_IF_ERROR(banks_->copy(layer, first.expert, first.slot, n_run, label));
    begin += static_cast<size_t>(n_run);
  }
  return {};
}

Status DeviceCache::queue_chunk(size_t index) {
  StreamChunk& chunk = chunks_[index];
  totals().streamed += expert_bytes(plan_.layer) * std::ssize(chunk.experts);
  if (chunk.is_prefetched) return {};
  if (chunk.after >= 0) {
    HOTSET_RETURN_IF_ERROR(
        device_.queue_wait(QueueId::kTransfer, chunks_[static_cast<size_t>(chunk.after)].computed));
  }
  HOTSET_RETURN_IF_ERROR(copy_runs(plan_.layer, chunk.experts.size(), "stream", [&](size_t i) {
    return Upload{chunk.experts[i], chunk.slots[i]};
  }));
  HOTSET_RETURN_IF_ERROR(device_.record(chunk.copied, QueueId::kTransfer));
  waited_point_ = std::max(waited_point_, banks_->point());
  return {};
}

Status DeviceCache::chunk_arrives(size_t index) {
  const StreamChunk& chunk = chunks_[index];
  if (!chunk.is_prefetched) return device_.queue_wait(QueueId::kCompute, chunk.copied);
  HOTSET_RETURN_IF_ERROR(device_.queue_wait(QueueId::kCompute, prefetch_.copied));
  waited_point_ = std::max(waited_point_, prefetch_.point);
  prefetch_.is_waited = true;
  return {};
}

Status DeviceCache::chunk_is_computed(size_t index) {
  return device_.record(chunks_[index].computed, QueueId::kCompute);
}

void DeviceCache::observe_other_time(int32_t n_tokens) {
  if (!learns()) return;
  const double now_us = device_.now_us();
  // The attention of a prompt takes far longer than that of a token.
  const bool is_one = n_tokens == 1;
  plan::DecayedMean& other_us = is_one ? other_us_of_one_ : other_us_of_more_;
  if (planned_at_us_ >= 0 && is_one == planned_one_) {
    other_us.observe(std::max(0.0, now_us - planned_at_us_ - planned_us_));
  }
  lanes_->set_other_us(other_us.mean());
  planned_at_us_ = now_us;
  planned_one_ = is_one;
}

Result<bool> DeviceCache::streams(const Lookup& lookup) {
  // What the guard has stopped is not started again by the costs that it found wrong.
  if (!uploads_allowed()) {
    return lookup.n_tokens > most_queued_tokens(options_);
  }
  return lanes_->streams(lookup);
}

void DeviceCache::note_streamed(const Lookup& lookup, size_t n_streamed) {
  const std::span<const int32_t> map = cache_->slot_map(lookup.layer);
  const auto n_missing = std::ranges::count(map, kNoSlot);
  const bool is_whole = n_streamed > 0 && static_cast<double>(n_streamed) >=
                                              lanes::kNearlyAll * static_cast<double>(n_missing);
  whole_streams_of_ = is_whole ? lookup.n_tokens : 0;
}

Result<ServedLookup> DeviceCache::plan(int64_t layer, std::span<const int32_t> ids,
                                       int32_t n_tokens) {
  const auto k = static_cast<int32_t>(model_.spec().router.n_expert_used);
  observe_other_time(n_tokens);
  HOTSET_TRY(const Lookup lookup, cache_->classify(static_cast<int32_t>(layer), ids, n_tokens, k));
  total_index_ = total_index(layer, batch_class(n_tokens));
  size_t n_crossing = lookup.misses.size();
  bool all_on_cpu = false;
  HOTSET_TRY(const bool is_streamed, streams(lookup));
  if (n_tokens > 1) {
    streamed_last_ = is_streamed;
    if (!is_streamed) whole_streams_of_ = 0;
  }
  if (is_streamed) {
    if (!share_) {
      HOTSET_TRY(const lanes::LanePlanner::Prefill prefill, lanes_->plan_prefill(lookup));
      all_on_cpu = prefill.all_on_cpu;
      n_crossing = all_on_cpu ? 0 : prefill.n_uploads;
    }
    HOTSET_TRY(plan_, cache_->commit_prefill(lookup, static_cast<int32_t>(n_crossing)));
    size_t n_streamed = n_crossing - std::min(n_crossing, plan_.uploads.size());
    if (share_) {
      n_streamed = plan_.cpu_experts.size();
      n_streamed -=
          static_cast<size_t>(*options_.cpu_share * static_cast<double>(n_streamed) + 0.5);
    }
    HOTSET_RETURN_IF_ERROR(form_chunks(lookup, n_streamed));
  } else {
    chunks_ = {};
    HOTSET_TRY(const Decision decision, decide(lookup));
    all_on_cpu = lanes_->all_on_cpu();
    all_on_cpu_share_[static_cast<size_t>(layer)].observe(all_on_cpu ? 1 : 0);
    HOTSET_TRY(plan_, cache_->commit(lookup, decision));
    n_crossing -= plan_.cpu_experts.size();
  }
  HOTSET_TRY(planned_us_, lanes_->commit(lookup, plan_, n_crossing));
  if (guard_ && models_[static_cast<size_t>(lookup.group)]) {
    step_planned_us_ += planned_us_;
    step_cheapest_us_ += lanes_->cheapest_us();
    step_no_cache_us_ += lane_model(lookup.group)
                             .no_cache_us(static_cast<double>(lookup.hits.size()) +
                                          static_cast<double>(lookup.misses.size()));
  }
  if (!plan_.uploads.empty()) banks_->map_changed(layer);
  for (const Eviction& eviction : plan_.evictions) banks_->map_changed(eviction.key.layer);
#ifdef HOTSET_SEEDED_BUG_EARLY_REUSE  // which a test must notice: the next victim's slot is taken
  if (!plan_.uploads.empty() && lookup.places.size() > plan_.uploads.size()) {
    HOTSET_RETURN_IF_ERROR(banks_->copy(layer, plan_.uploads[0].expert,
                                        lookup.places[plan_.uploads.size()].slot, 1, "too early"));
  }
#endif
  ServedLookup served = list_pairs(ids, lookup);
  served.all_on_cpu = all_on_cpu;
  served.split = split_of(all_on_cpu, is_streamed);
  ++totals().splits[static_cast<size_t>(served.split)];
  return served;
}

Split DeviceCache::split_of(bool all_on_cpu, bool is_streamed) const {
  if (all_on_cpu) return Split::kAllOnCpu;
  if (plan_.uploads.empty() && plan_.cpu_experts.empty()) return Split::kHits;
  if (is_streamed) return Split::kStreamed;
  if (plan_.cpu_experts.empty()) return Split::kUploads;
  return plan_.uploads.empty() ? Split::kCpu : Split::kBoth;
}

void DeviceCache::routing_arrived() {
  banks_->done(waited_point_);
  for (const device::Event event : used_events_) free_events_.push_back(event);
  used_events_.clear();
}

int32_t DeviceCache::device_slot(int32_t expert) const {
  const auto at = static_cast<size_t>(expert);
  return lane_of_[at] == Lane::kStream ? stage_slot_[at] : cache_->slot_map(plan_.layer)[at];
}

Status DeviceCache::queue_uploads() {
  const double start_us = device_.now_us();
  // A prefill's are in its chunks.
  const auto uploads = chunks_.empty() ? plan_.uploads : std::span<const Upload>();
  HOTSET_RETURN_IF_ERROR(
      copy_runs(plan_.layer, uploads.size(), "upload", [&](size_t i) { return uploads[i]; }));
  if (uploads.empty()) return {};
  HOTSET_RETURN_IF_ERROR(device_.record(uploaded_, QueueId::kTransfer));
  uploaded_point_ = banks_->point();
  totals().uploaded += expert_bytes(plan_.layer) * std::ssize(uploads);
  if (!device_.info().virtual_clock) return {};
  return learn_uploads(device_.event_time_us(uploaded_) - start_us);
}

Status DeviceCache::start_lane_model(int32_t group, double cpu_further_token) {
  const auto g = static_cast<size_t>(group);
  const Bytes expert_bytes = cache_->spec(group).bytes_per_expert();
  cpu_further_token_[g] = cpu_further_token;
  HOTSET_TRY(models_[g], plan::LaneModel::create({.expert_bytes = expert_bytes,
                                                  .cpu_further_token = cpu_further_token,
                                                  .prior = lanes_->costs(group),
                                                  .min_concurrent_weight = 1}));
  return {};
}

void DeviceCache::begin_step(int32_t n_tokens) {
  is_step_of_one_ = guard_.has_value() && n_tokens == 1 && why_bypassed_.empty();
  step_planned_us_ = step_cheapest_us_ = step_no_cache_us_ = 0;
  is_probe_ = is_step_of_one_ && step_no_cache_mean_.weight() > 0 &&
              guard_->wants_probe(step_no_cache_mean_.mean());
  const bool uses_none = use() == plan::CacheUse::kNone;
  is_step_bypassed_ = is_step_of_one_ && uses_none != is_probe_;
  // Its time is no layer's other time.
  if (is_step_bypassed_) planned_at_us_ = -1;
}

void DeviceCache::note_bypassed(int64_t layer) {
  const int32_t group = cache_->group_of(static_cast<int32_t>(layer));
  if (!models_[static_cast<size_t>(group)]) return;
  step_no_cache_us_ +=
      lane_model(group).no_cache_us(static_cast<double>(model_.spec().router.n_expert_used));
}

double DeviceCache::no_cache_other_us() const {
  return probe_other_us_ ? probe_other_us_->mean() : step_other_us_.mean();
}

void DeviceCache::observe_no_cache(double step_us) {
  // One that is off by more than this has found other conditions, not noise.
  constexpr double kNoise = 0.25;
  constexpr double kHalfLife = 4;  // of such steps
  const double other_us = std::max(0.0, step_us - step_no_cache_us_);
  const double predicted_us = no_cache_other_us() + step_no_cache_us_;
  if (!probe_other_us_ || std::abs(step_us - predicted_us) > kNoise * predicted_us) {
    probe_other_us_.emplace(kHalfLife, other_us, 1);
  } else {
    probe_other_us_->observe(other_us);
  }
}

Status DeviceCache::end_step(double step_us) {
  const bool was_probe = std::exchange(is_probe_, false);
  const bool was_bypassed = std::exchange(is_step_bypassed_, false);
  if (!std::exchange(is_step_of_one_, false) || !(step_us > 0)) return {};
  const double other_us = std::max(0.0, step_us - step_planned_us_);
  if (was_bypassed) {
    observe_no_cache(step_us);
  } else {
    step_other_us_.observe(other_us);
  }
  const double no_cache_us = no_cache_other_us() + step_no_cache_us_;
  if (!was_probe) step_no_cache_mean_.observe(no_cache_us);
  // Steps with the cache that are probes are too few for a mean.
  const double cache_us = was_bypassed ? no_cache_us
                          : was_probe  ? other_us + step_cheapest_us_
                                       : step_other_us_.mean() + step_cheapest_us_;
  if (!(no_cache_us > 0 && cache_us > 0)) return {};
  HOTSET_TRY(const auto change, guard_->observe({.is_probe = was_probe,
                                                 .token_us = step_us,
                                                 .no_cache_us = no_cache_us,
                                                 .cache_us = cache_us}));
  if (!change) return {};
  log_info("{}", plan::describe(*change));
  // What was known of steps with the cache is from before it was left unused.
  if (change->from == plan::CacheUse::kNone) step_other_us_ = {kStepsToHalve, other_us, 1};
  return {};
}

void DeviceCache::compare_with_cpu() {
  if (share_ || !learns()) return;
  const auto k = static_cast<double>(model_.spec().router.n_expert_used);
  for (int32_t group = 0; group < cache_->n_groups(); ++group) {
    if (!models_[static_cast<size_t>(group)]) continue;
    const plan::LaneCosts& costs = lanes_->costs(group);
    const double device_us = costs.pairs.turn_us + k * costs.pairs.expert_us.at(1);
    const double cpu_us = lane_model(group).no_cache_us(k);
    if (device_us < cpu_us) return;
    why_bypassed_ =
        fmt::format("{} takes {:.0f} us for the {} experts of a layer and token, the CPU {:.0f} us",
                    device_.info().name, device_us, static_cast<int64_t>(k), cpu_us);
  }
}

bool DeviceCache::wants_upload_time() {
  if (!chunks_.empty()) return false;
  // A device tells no times: now and then the host waits for the uploads of a lookup, which it
  // would do a little later anyway.
  constexpr int64_t kLookupsPerSample = 16;
  if (plan_.uploads.empty() || device_.info().virtual_clock) return false;
  return n_upload_lookups_++ % kLookupsPerSample == 0;
}

Status DeviceCache::learn_uploads(double us) {
  const Bytes n_bytes = expert_bytes(plan_.layer) * std::ssize(plan_.uploads);
  totals().timed_upload_us += us;
  totals().timed_upload += n_bytes;
  if (!learns() || !models_[static_cast<size_t>(plan_.group)]) return {};
  const auto use = plan_.cpu_experts.empty() ? plan::LaneUse::kSolo : plan::LaneUse::kConcurrent;
  HOTSET_RETURN_IF_ERROR(lane_model(plan_.group).observe_upload(use, n_bytes, us));
  lanes_learned(plan_.group);
  return {};
}

Status DeviceCache::learn(const ServedLookup& served, double cpu_us) {
  const int32_t n_experts = served.n_cpu + (served.all_on_cpu ? served.n_hits : 0);
  if (!learns() || n_experts == 0 || !models_[static_cast<size_t>(plan_.group)]) return {};
  const auto n_pairs =
      std::ssize(served.cpu_pairs) + (served.all_on_cpu ? std::ssize(served.hit_pairs) : 0);
  const bool is_alone = served.n_uploads == 0 && served.chunks.empty();
  const auto use = is_alone ? plan::LaneUse::kSolo : plan::LaneUse::kConcurrent;
  const double further = cpu_further_token_[static_cast<size_t>(plan_.group)];
  const auto n_further = static_cast<double>(n_pairs - n_experts);
  HOTSET_RETURN_IF_ERROR(
      lane_model(plan_.group).observe_cpu(use, n_experts + further * n_further, cpu_us));
  lanes_learned(plan_.group);
  return {};
}

Status DeviceCache::uploads_arrive() {
  HOTSET_RETURN_IF_ERROR(device_.queue_wait(QueueId::kCompute, uploaded_));
  waited_point_ = std::max(waited_point_, uploaded_point_);
  return {};
}

Status DeviceCache::queue_fills() {
  for (const Fill& fill : plan_.fills) {
    HOTSET_RETURN_IF_ERROR(banks_->copy(fill.key.layer, fill.key.expert, fill.slot, 1, "fill"));
    HOTSET_TRY(const device::Event copied, free_event());
    HOTSET_RETURN_IF_ERROR(device_.record(copied, QueueId::kTransfer));
    fills_.push_back({fill.group, fill.slot, fill.key.layer, copied, banks_->point()});
    totals().filled += expert_bytes(fill.key.layer);
  }
  return {};
}

}  // namespace hotset::engine
