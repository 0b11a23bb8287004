#include "hotset/engine/device_cache.h"

#include <algorithm>
#include <utility>

namespace hotset::engine {

using device::QueueId;

LaneTotals& LaneTotals::operator+=(const LaneTotals& other) {
  uploaded += other.uploaded;
  filled += other.filled;
  cpu_read += other.cpu_read;
  upload_us += other.upload_us;
  cpu_us += other.cpu_us;
  wait_us += other.wait_us;
  return *this;
}

namespace {

// Whether the device multiplies by id with a bank of `n_experts` experts.
bool accepts_bank(const device::Device& device, const ExpertTensor& tensor, int64_t n_experts) {
  const ggml_context_ptr context(
      ggml_init({.mem_size = 8 * ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  ggml_context* c = context.get();
  const auto type = static_cast<ggml_type>(tensor.type);
  ggml_tensor* bank = ggml_new_tensor_3d(c, type, tensor.n_columns, tensor.n_rows, n_experts);
  ggml_tensor* x = ggml_new_tensor_3d(c, GGML_TYPE_F32, tensor.n_columns, 1, 1);
  ggml_tensor* ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, 1, 1);
  return device.supports(ggml_mul_mat_id(c, bank, x, ids));
}

}  // namespace

Result<std::vector<CacheGroup>> DeviceCache::form_groups(const ModelDescription& model,
                                                         const device::Device& device,
                                                         const Placement& placement, Bytes budget) {
  const model::ModelSpec& spec = model.spec;
  ModelWeights weights;
  WeightList list;
  model.architecture->declare_weights(spec, weights, list);
  std::vector<MoeLayer> layers;
  for (const WeightDeclaration& declaration : list.declarations()) {
    if (declaration.use != WeightUse::kExperts || !placement.on_device(declaration.layer)) continue;
    HOTSET_TRY(const model::TensorInfo* info, find_weight(model.file, declaration));
    if (info == nullptr) continue;
    if (layers.empty() || layers.back().layer != declaration.layer) {
      layers.push_back({.layer = static_cast<int32_t>(declaration.layer),
                        .n_expert = static_cast<int32_t>(spec.router.n_expert)});
    }
    layers.back().tensors.push_back({.type = static_cast<int32_t>(info->type),
                                     .n_rows = info->ne[1],
                                     .n_columns = info->ne[0],
                                     .expert_bytes = {info->n_bytes.count / info->ne[2]}});
  }
  if (layers.empty()) return std::vector<CacheGroup>();
  const DeviceShare share{
      .alignment = static_cast<int64_t>(ggml_backend_buft_get_alignment(device.buffer_type())),
      .accepts_bank = [&](const ExpertTensor& tensor, int64_t n) {
        return accepts_bank(device, tensor, n);
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
  }
  HOTSET_TRY(cache->lanes_, lanes::LanePlanner::create(options.rates.value_or(plan::kTypicalRates),
                                                       *cache->cache_));
  cache->models_.resize(static_cast<size_t>(cache->cache_->n_groups()));
  cache->cpu_further_token_.resize(cache->models_.size());
  HOTSET_TRY(cache->banks_, ExpertBanks::create(model, device, *cache->cache_));
  HOTSET_TRY(cache->uploaded_, device.new_event());
  cache->lane_of_.resize(n_expert);
  cache->cpu_experts_.reserve(n_expert);
  cache->totals_.resize(static_cast<size_t>(n_layer) * kBatchClasses);
  // A lookup queues at most one fill per expert.
  cache->fills_.reserve(64);
  cache->free_events_.reserve(64);
  cache->used_events_.reserve(64);
  const size_t n_decode_pairs = static_cast<size_t>(options.max_decode_tokens) *
                                static_cast<size_t>(model.spec().router.n_expert_used);
  for (auto* pairs : {&cache->hit_pairs_, &cache->upload_pairs_, &cache->cpu_pairs_}) {
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

Status DeviceCache::before_routing(int64_t layer) {
  HOTSET_RETURN_IF_ERROR(take_arrived_fills());
  return banks_->update_map(layer);
}

Result<Decision> DeviceCache::decide(const Lookup& lookup) {
  cpu_experts_.clear();
  if (share_) {
    const auto n_share = static_cast<size_t>(share_->take(lookup));
    for (const Miss& miss : lookup.misses.first(n_share)) cpu_experts_.push_back(miss.expert);
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
  hit_pairs_.clear();
  upload_pairs_.clear();
  cpu_pairs_.clear();
  for (size_t i = 0; i < ids.size(); ++i) {
    const Lane lane = lane_of_[static_cast<size_t>(ids[i])];
    auto& pairs = lane == Lane::kHit      ? hit_pairs_
                  : lane == Lane::kUpload ? upload_pairs_
                                          : cpu_pairs_;
    pairs.push_back(static_cast<int32_t>(i));
  }
  return {.hit_pairs = hit_pairs_,
          .upload_pairs = upload_pairs_,
          .cpu_pairs = cpu_pairs_,
          .n_hits = static_cast<int32_t>(lookup.hits.size()),
          .n_uploads = static_cast<int32_t>(plan_.uploads.size()),
          .n_cpu = static_cast<int32_t>(plan_.cpu_experts.size())};
}

void DeviceCache::observe_other_time() {
  if (!learns()) return;
  const double now_us = device_.now_us();
  if (planned_at_us_ >= 0) {
    other_us_.observe(std::max(0.0, now_us - planned_at_us_ - planned_us_));
    lanes_->set_other_us(other_us_.mean());
  }
  planned_at_us_ = now_us;
}

Result<ServedLookup> DeviceCache::plan(int64_t layer, std::span<const int32_t> ids,
                                       int32_t n_tokens) {
  const auto k = static_cast<int32_t>(model_.spec().router.n_expert_used);
  observe_other_time();
  HOTSET_TRY(const Lookup lookup, cache_->classify(static_cast<int32_t>(layer), ids, n_tokens, k));
  size_t n_crossing = lookup.misses.size();
  if (is_prefill(n_tokens)) {
    HOTSET_TRY(plan_, cache_->commit_prefill(lookup, static_cast<int32_t>(n_crossing)));
  } else {
    HOTSET_TRY(const Decision decision, decide(lookup));
    HOTSET_TRY(plan_, cache_->commit(lookup, decision));
    n_crossing -= plan_.cpu_experts.size();
  }
  HOTSET_TRY(planned_us_, lanes_->commit(lookup, plan_, n_crossing));
  if (!plan_.uploads.empty()) banks_->map_changed(layer);
  for (const Eviction& eviction : plan_.evictions) banks_->map_changed(eviction.key.layer);
#ifdef HOTSET_SEEDED_BUG_EARLY_REUSE  // which a test must notice: the next victim's slot is taken
  if (!plan_.uploads.empty() && lookup.places.size() > plan_.uploads.size()) {
    HOTSET_RETURN_IF_ERROR(banks_->copy(layer, plan_.uploads[0].expert,
                                        lookup.places[plan_.uploads.size()].slot, 1, "too early"));
  }
#endif
  total_index_ = total_index(layer, batch_class(n_tokens));
  return list_pairs(ids, lookup);
}

void DeviceCache::routing_arrived() {
  banks_->done(waited_point_);
  for (const device::Event event : used_events_) free_events_.push_back(event);
  used_events_.clear();
}

std::span<const int32_t> DeviceCache::slots() const { return cache_->slot_map(plan_.layer); }

Status DeviceCache::queue_uploads() {
  const double start_us = device_.now_us();
  const std::span<const Upload> uploads = plan_.uploads;
  for (size_t i = 0; i < uploads.size();) {
    size_t n = 1;
    // Neighbours in the file that become neighbours in the bank are one copy.
    while (i + n < uploads.size() &&
           uploads[i + n].expert == uploads[i].expert + static_cast<int32_t>(n) &&
           uploads[i + n].slot == uploads[i].slot + static_cast<int32_t>(n)) {
      ++n;
    }
    HOTSET_RETURN_IF_ERROR(banks_->copy(plan_.layer, uploads[i].expert, uploads[i].slot,
                                        static_cast<int32_t>(n), "upload"));
    i += n;
  }
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

bool DeviceCache::wants_upload_time() {
  // A device tells no times: now and then the host waits for the uploads of a lookup, which it
  // would do a little later anyway.
  constexpr int64_t kLookupsPerSample = 16;
  if (!learns() || share_ || plan_.uploads.empty() || device_.info().virtual_clock) return false;
  return n_upload_lookups_++ % kLookupsPerSample == 0;
}

Status DeviceCache::learn_uploads(double us) {
  totals().upload_us += us;
  if (!learns() || !models_[static_cast<size_t>(plan_.group)]) return {};
  const auto use = plan_.cpu_experts.empty() ? plan::LaneUse::kSolo : plan::LaneUse::kConcurrent;
  HOTSET_RETURN_IF_ERROR(
      lane_model(plan_.group)
          .observe_upload(use, expert_bytes(plan_.layer) * std::ssize(plan_.uploads), us));
  lanes_learned(plan_.group);
  return {};
}

Status DeviceCache::learn(const ServedLookup& served, double cpu_us) {
  if (!learns() || served.n_cpu == 0 || !models_[static_cast<size_t>(plan_.group)]) return {};
  const auto use = served.n_uploads == 0 ? plan::LaneUse::kSolo : plan::LaneUse::kConcurrent;
  const double further = cpu_further_token_[static_cast<size_t>(plan_.group)];
  const auto n_further = static_cast<double>(std::ssize(served.cpu_pairs) - served.n_cpu);
  HOTSET_RETURN_IF_ERROR(
      lane_model(plan_.group).observe_cpu(use, served.n_cpu + further * n_further, cpu_us));
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
