#include "hotset/engine/run/device_executor.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/engine/experts/lane_calibration.h"

namespace hotset::engine {

using device::QueueId;

DeviceExecutor::DeviceExecutor(const LoadedModel& model, KvCache& kv, device::Device& device,
                               device::Backend& cpu, ExecutorOptions options,
                               device::Profile* profile, CachedExperts* cache)
    : model_(model),
      kv_(kv),
      device_(device),
      cpu_(cpu),
      options_(std::move(options)),
      profile_(profile),
      is_chosen_(model.spec().router.n_expert),
      cache_(cache),
      observed_(model.spec().n_layer) {}

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::create(
    const LoadedModel& model, KvCache& kv, device::Device& device, device::Backend& cpu,
    const Placement& placement, ExecutorOptions options, device::Profile* profile,
    CachedExperts* cache) {
  if (options.context.n_ubatch < 1 || options.context.n_outputs < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "ubatch: found {} tokens and {} outputs, expected at least 1",
                      options.context.n_ubatch, options.context.n_outputs);
  }
  options.context.n_ubatch = std::min(options.context.n_ubatch, kv.cells().n_cells());
  options.context.n_outputs = std::min(options.context.n_outputs, options.context.n_ubatch);
  std::unique_ptr<DeviceExecutor> executor(
      new DeviceExecutor(model, kv, device, cpu, options, profile, cache));
  HOTSET_TRY(executor->front_,
             CpuExecutor::create(model, kv, cpu, options, placement.first_device_layer));
  HOTSET_TRY(executor->graphs_, DeviceGraphs::create(model, kv, device, cpu, placement, options,
                                                     cache == nullptr ? nullptr : &cache->banks()));
  HOTSET_TRY(executor->arrived_, device.new_event());
  HOTSET_RETURN_IF_ERROR(executor->calibrate());
  return executor;
}

Status DeviceExecutor::calibrate() {
  if (cache_ == nullptr) return {};
  n_queued_ = cache_->options().hit_order == HitOrder::kListed ? 0 : INT32_MAX;
  if (!cache_->learns()) return {};
  CalibrationSetup setup{.device = device_,
                         .cpu = cpu_,
                         .lane = lane_,
                         .graphs = *graphs_,
                         .cache = *cache_,
                         .experts_per_token = model_.spec().router.n_expert_used,
                         .layers = {}};
  for (size_t i = 0; i < graphs_->segments().size(); ++i) {
    const int64_t layer = graphs_->segments()[i].routes;
    if (layer < 0 || !cache_->serves(layer)) continue;
    const int32_t group = cache_->core().group_of(static_cast<int32_t>(layer));
    if (std::ranges::none_of(setup.layers, [&](const auto& at) {
          return cache_->core().group_of(static_cast<int32_t>(at.layer)) == group;
        })) {
      setup.layers.push_back({layer, i % 2});
    }
  }
  if (setup.layers.empty()) return {};
  HOTSET_TRY(const double idle_us, calibrate_lanes(setup));
  cache_->compare_with_cpu();
  device_.reset_counters();
  if (cache_->options().hit_order != HitOrder::kAuto) return {};
  // Queued hits read the pad slot for every miss, listed ones let the device wait for the host.
  constexpr double kTypicalMisses = 0.3;
  const lanes::ExpertCost& pairs =
      cache_->costs(cache_->core().group_of(static_cast<int32_t>(setup.layers.back().layer))).pairs;
  // Where copies do not overlap with graphs, listed hits share one graph with the uploads: every
  // other lookup saves one.
  const double saved_us = cache_->joins_uploads() ? -0.5 * pairs.turn_us : pairs.turn_us;
  // They also read an expert again for each token that selected it.
  const auto k = static_cast<double>(model_.spec().router.n_expert_used);
  const auto n_expert = static_cast<double>(model_.spec().router.n_expert);
  n_queued_ = 0;
  for (int32_t n = 1; n <= cache_->options().rules.most_in_batch(); n *= 2) {
    const double n_selected = n_expert * (1 - std::pow(1 - k / n_expert, n));
    const double n_wasted = n * k - (1 - kTypicalMisses) * n_selected;
    if (n_wasted * pairs.expert_us.at(1) > idle_us + saved_us) break;
    n_queued_ = n;
  }
  return {};
}

Result<double> DeviceExecutor::finish_cpu_lane(const LaneJob& job, Bytes reads) {
  HOTSET_RETURN_IF_ERROR(lane_.finish());
  const auto modelled_us = device_.modelled_cpu_us(reads);
  if (modelled_us) device_.host_reaches(job.start_us + *modelled_us);
  const double us = modelled_us.value_or(lane_.job_us());
  if (profile_ != nullptr) {
    profile_->add(device::Track::kCpuLane, job.name, static_cast<int32_t>(job.layer), job.start_us,
                  us);
  }
  return us;
}

template <typename Job>
Result<double> DeviceExecutor::on_cpu_lane(const char* name, int64_t layer, Job&& job,
                                           const Bytes& reads) {
  const LaneJob started{.name = name, .layer = layer, .start_us = device_.now_us()};
  lane_.start(job);
  return finish_cpu_lane(started, reads);
}

Status DeviceExecutor::run(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
                           std::vector<float>& logits) {
  HOTSET_CHECK(!ubatch.empty());
  const GraphShape shape = UbatchInputs::shape_of(ubatch, kv_);
  HOTSET_CHECK(shape.n_tokens <= options_.context.n_ubatch &&
               shape.n_outputs <= options_.context.n_outputs);
  HOTSET_TRY(GraphSet* const set, graphs_->for_shape(shape));
  inputs_.fill(ubatch, cells, model_.spec(), kv_);
  HOTSET_RETURN_IF_ERROR(run_front(shape));
  HOTSET_RETURN_IF_ERROR(upload_inputs(shape));
  if (cache_ != nullptr) cache_->begin_step(shape.n_tokens);
  const double start_us = device_.now_us();
  size_t n_routed = 0;
  for (size_t i = 0; i < set->segments.size(); ++i) {
    const Segment& segment = graphs_->segments()[i];
    KeptGraph& kept = set->segments[i];
    const int32_t n_rows = segment.routes < 0 ? 0 : graphs_->n_rows(segment, shape);
    const bool is_cached = n_rows > 0 && cache_ != nullptr && cache_->serves(segment.routes);
    std::optional<AwaitedLookup> awaited;
    if (is_cached && cache_->bypasses_step()) {
      cache_->note_bypassed(segment.routes);
    } else if (is_cached) {
      HOTSET_TRY(awaited,
                 cache_->await(segment.routes, n_rows, queues_hits_of(segment.routes, n_rows)));
    }
    if (ggml_graph_n_nodes(kept.graph) > 0) {
      const device::Label label{segment.routes < 0 ? "head" : "attention",
                                static_cast<int32_t>(segment.first_layer)};
      HOTSET_RETURN_IF_ERROR(device_.compute(kept.graph, kept.reads, label));
    }
    if (segment.routes < 0) break;
    KeptGraph& experts = set->experts[n_routed++];
    if (n_rows == 0) continue;
    HOTSET_RETURN_IF_ERROR(fetch_routing(i, segment.routes, n_rows));
    HOTSET_RETURN_IF_ERROR(awaited ? serve(*std::move(awaited), segment.routes, i, experts, n_rows)
                                   : run_experts(segment.routes, experts, n_rows));
  }
  HOTSET_RETURN_IF_ERROR(queue_resident_ids(shape));
  HOTSET_RETURN_IF_ERROR(fetch_output(*set, logits));
  report_routing(shape);
  return cache_ == nullptr ? Status() : cache_->end_step(device_.now_us() - start_us);
}

Status DeviceExecutor::warm_up() {
  const int32_t n_kv = kv_.cells().n_cells();
  for (const int32_t n_tokens : {options_.context.n_ubatch, 1}) {
    HOTSET_TRY(GraphSet* const set,
               graphs_->for_shape({.n_tokens = n_tokens,
                                   .n_kv = n_kv,
                                   .n_kv_window = kv_.max_n_kv_window(),
                                   .n_outputs = std::min(options_.context.n_outputs, n_tokens)}));
    for (KeptGraph& kept : set->segments) {
      if (ggml_graph_n_nodes(kept.graph) == 0) continue;
      HOTSET_RETURN_IF_ERROR(device_.compute(kept.graph, kept.reads, {"warm-up", -1}));
    }
  }
  return device_.wait_idle();
}

Status DeviceExecutor::queue_resident_ids(const GraphShape& shape) {
  if (!graphs_->fetches_resident_ids()) return {};
  for (size_t layer = 0; layer < graphs_->cross().resident_ids.size(); ++layer) {
    const ggml_tensor* ids = graphs_->cross().resident_ids[layer];
    const int32_t n_rows = graphs_->n_rows(static_cast<int64_t>(layer), shape);
    if (ids == nullptr || n_rows == 0) continue;
    HOTSET_RETURN_IF_ERROR(device_.download(
        QueueId::kCompute, ids, 0, graphs_->host().resident_ids[layer]->data,
        static_cast<size_t>(n_rows) * ids->nb[1], {"ids", static_cast<int32_t>(layer)}));
  }
  return {};
}

void DeviceExecutor::report_routing(const GraphShape& shape) {
  if (!options_.observe_routing) return;
  const int64_t k = model_.spec().router.n_expert_used;
  for (size_t layer = 0; layer < observed_.size(); ++layer) {
    std::vector<int32_t>& ids = observed_[layer];
    if (graphs_->fetches_resident_ids() && graphs_->cross().resident_ids[layer] != nullptr) {
      const auto* fetched = static_cast<const int32_t*>(graphs_->host().resident_ids[layer]->data);
      ids.assign(fetched, fetched + graphs_->n_rows(static_cast<int64_t>(layer), shape) * k);
    }
    if (ids.empty()) continue;
    options_.observe_routing(static_cast<int64_t>(layer), ids, std::ssize(ids) / k);
    ids.clear();
  }
}

Status DeviceExecutor::run_front(const GraphShape& shape) {
  Bytes reads;
  auto* hidden = static_cast<float*>(graphs_->host().hidden->data);
  auto job = [&]() -> Status {
    HOTSET_TRY(reads, front_->run_into(shape, inputs_, hidden));
    return {};
  };
  HOTSET_RETURN_IF_ERROR(on_cpu_lane("layers", -1, job, reads));
  const size_t n_bytes = sizeof(float) * static_cast<size_t>(shape.n_tokens) *
                         static_cast<size_t>(model_.spec().n_embd);
  return device_.upload(QueueId::kCompute, graphs_->cross().hidden, 0, hidden, n_bytes,
                        {"hidden", -1});
}

Status DeviceExecutor::upload_inputs(const GraphShape& shape) {
  const CrossTensors& cross = graphs_->cross();
  const HostTensors& host = graphs_->host();
  const auto upload = [&](ggml_tensor* to, ggml_tensor* staging, const auto& values) -> Status {
    const size_t n_bytes = values.size() * sizeof(values[0]);
    HOTSET_CHECK(n_bytes <= ggml_nbytes(staging));
    std::memcpy(staging->data, values.data(), n_bytes);
    return device_.upload(QueueId::kCompute, to, 0, staging->data, n_bytes, {"inputs", -1});
  };
  HOTSET_RETURN_IF_ERROR(upload(cross.positions, host.positions, inputs_.positions));
  HOTSET_RETURN_IF_ERROR(upload(cross.key_rows, host.key_rows, inputs_.key_rows));
  HOTSET_RETURN_IF_ERROR(upload(cross.value_rows, host.value_rows, inputs_.value_rows));
  HOTSET_RETURN_IF_ERROR(upload(cross.mask, host.mask, inputs_.mask));
  if (!shape.selects_outputs()) return {};
  return upload(cross.output_rows, host.output_rows, inputs_.output_rows);
}

Status DeviceExecutor::wait_for_arrival(int64_t layer) {
  const double start_us = device_.now_us();
  HOTSET_RETURN_IF_ERROR(device_.wait(arrived_));
  if (profile_ != nullptr) {
    profile_->add(device::Track::kHost, "wait", static_cast<int32_t>(layer), start_us,
                  device_.now_us() - start_us);
  }
  return {};
}

Status DeviceExecutor::fetch_routing(size_t index, int64_t layer, int64_t n_rows) {
  const CrossTensors::Routed& routed = graphs_->cross().routed[index % 2];
  const HostTensors& host = graphs_->host();
  const auto label_layer = static_cast<int32_t>(layer);
  const auto rows = static_cast<size_t>(n_rows);
  HOTSET_RETURN_IF_ERROR(device_.download(QueueId::kCompute, routed.ids, 0, host.ids->data,
                                          rows * host.ids->nb[1], {"ids", label_layer}));
  HOTSET_RETURN_IF_ERROR(device_.download(QueueId::kCompute, routed.x, 0, host.x->data,
                                          rows * host.x->nb[1], {"x", label_layer}));
  return device_.record(arrived_, QueueId::kCompute);
}

std::span<const int32_t> DeviceExecutor::routed_ids(int64_t n_rows) const {
  return {static_cast<const int32_t*>(graphs_->host().ids->data),
          static_cast<size_t>(n_rows * model_.spec().router.n_expert_used)};
}

Status DeviceExecutor::wait_for_routing(int64_t layer, int64_t n_rows) {
  HOTSET_RETURN_IF_ERROR(wait_for_arrival(layer));
  if (options_.observe_routing) {
    const std::span<const int32_t> ids = routed_ids(n_rows);
    observed_[layer].assign(ids.begin(), ids.end());
  }
  return {};
}

Result<Bytes> DeviceExecutor::chosen_bytes(int64_t layer, int64_t n_rows) {
  const auto* ids = static_cast<const int32_t*>(graphs_->host().ids->data);
  const model::RouterSpec& router = model_.spec().router;
  std::ranges::fill(is_chosen_, uint8_t{0});
  for (int64_t i = 0; i < n_rows * router.n_expert_used; ++i) {
    // ggml's kernels abort on an id that is out of range.
    if (ids[i] < 0 || ids[i] >= router.n_expert) {
      return make_error(ErrorCode::kDevice, "{}: layer {} routed to expert {}, expected 0 to {}",
                        device_.info().name, layer, ids[i], router.n_expert - 1);
    }
    is_chosen_[ids[i]] = 1;
  }
  return graphs_->expert_bytes(layer) * std::ranges::count(is_chosen_, uint8_t{1});
}

Status DeviceExecutor::run_experts(int64_t layer, KeptGraph& experts, int64_t n_rows) {
  HOTSET_RETURN_IF_ERROR(wait_for_routing(layer, n_rows));
  HOTSET_TRY([[maybe_unused]] const double us, compute_all_on_cpu(layer, experts, n_rows));
  return {};
}

Result<double> DeviceExecutor::compute_all_on_cpu(int64_t layer, KeptGraph& experts,
                                                  int64_t n_rows) {
  HOTSET_TRY(const Bytes reads, chosen_bytes(layer, n_rows));
  const HostTensors& host = graphs_->host();
  auto job = [&] { return cpu_.compute(experts.graph); };
  HOTSET_TRY(const double us, on_cpu_lane("experts", layer, job, reads));
  const size_t n_bytes =
      static_cast<size_t>(n_rows * model_.spec().router.n_expert_used) * host.results->nb[1];
  HOTSET_RETURN_IF_ERROR(device_.upload(QueueId::kCompute, graphs_->cross().results, 0,
                                        host.results->data, n_bytes,
                                        {"results", static_cast<int32_t>(layer)}));
  return us;
}

Status DeviceExecutor::serve(AwaitedLookup awaited, int64_t layer, size_t index, KeptGraph& experts,
                             int32_t n_rows) {
  const size_t parity = index % 2;
  const auto label_layer = static_cast<int32_t>(layer);
  const bool hits_queued = queues_hits_of(layer, n_rows);
  if (hits_queued) {
    HOTSET_TRY(KeptGraph* const hits, graphs_->lookups().all_pairs(layer, parity, n_rows));
    HOTSET_RETURN_IF_ERROR(device_.compute(hits->graph, hits->reads, {"hits", label_layer}));
  }
  HOTSET_RETURN_IF_ERROR(awaited.prefetch());
  const double wait_start_us = device_.now_us();
  HOTSET_RETURN_IF_ERROR(wait_for_routing(layer, n_rows));
  const double plan_start_us = device_.now_us();
  HOTSET_TRY(ServedLookup lookup, std::move(awaited).plan(routed_ids(n_rows)));
  const double start_us = device_.now_us();
  if (profile_ != nullptr) {
    profile_->add(device::Track::kHost, lanes::split_label(lookup.plan().split), label_layer,
                  plan_start_us, start_us - plan_start_us);
  }
  lookup.account().wait_us += plan_start_us - wait_start_us;
  n_listed_ = 0;
  if (lookup.plan().all_on_cpu) {
    HOTSET_RETURN_IF_ERROR(lookup.queue_fills());
    HOTSET_TRY(const double us, compute_all_on_cpu(layer, experts, n_rows));
    return std::move(lookup).finish(us);
  }

  // The CPU lane first: what follows only queues.
  const std::span<const int32_t> cpu_pairs = lookup.pairs().cpu();
  auto compute = [this, layer, n_rows, n = std::ssize(cpu_pairs)] {
    return cpu_.compute(graphs_->lookups().cpu_pairs(layer, n_rows == 1, n));
  };
  if (!cpu_pairs.empty()) {
    list_cpu_pairs(cpu_pairs);
    lane_.start(compute);
  }
  const Status queued = catching_refusal(
      "the expert cache", [&] { return queue_lookup(lookup, parity, hits_queued, start_us); });
  if (cpu_pairs.empty()) return queued;
  // The lane works on memory of this lookup, so it must end even after an error.
  const LaneJob job{.name = "experts", .layer = layer, .start_us = start_us};
  const Bytes reads = cache_->expert_bytes(layer) * std::ssize(lookup.plan().cpu);
  HOTSET_TRY(const double cpu_us, finish_cpu_lane(job, reads));
  HOTSET_RETURN_IF_ERROR(queued);
  HOTSET_RETURN_IF_ERROR(std::move(lookup).finish(cpu_us));
  return upload_cpu_rows(layer, cpu_pairs);
}

Status DeviceExecutor::queue_lookup(ServedLookup& lookup, size_t parity, bool hits_queued,
                                    double start_us) {
  const lanes::PlannedLookup& plan = lookup.plan();
  const LookupPairs& pairs = lookup.pairs();
  HOTSET_TRY(QueuedUploads uploads, lookup.queue_uploads());
  const bool joined = !hits_queued && cache_->joins_uploads() && !uploads.empty();
  if (!hits_queued && !joined) {
    HOTSET_RETURN_IF_ERROR(compute_listed("hits", lookup, parity, pairs.hits(), plan.hits.size()));
  }
  if (!uploads.empty()) {
    HOTSET_RETURN_IF_ERROR(uploads.arrive());
    HOTSET_RETURN_IF_ERROR(
        joined ? compute_listed("experts", lookup, parity, pairs.device(),
                                plan.hits.size() + lookup.n_uploads())
               : compute_listed("uploaded", lookup, parity, pairs.uploads(), lookup.n_uploads()));
  }
  StagedChunks chunks = lookup.stage();
  while (true) {
    HOTSET_TRY(const StagedChunks::Chunk* const chunk, chunks.next());
    if (chunk == nullptr) break;
    HOTSET_RETURN_IF_ERROR(
        compute_listed("streamed", lookup, parity, chunk->pairs, chunk->n_experts));
  }
  HOTSET_RETURN_IF_ERROR(lookup.queue_fills());
  return uploads.sample_time(start_us);
}

Status DeviceExecutor::compute_listed(const char* name, const ServedLookup& lookup, size_t parity,
                                      std::span<const int32_t> pairs, size_t n_experts) {
  if (pairs.empty()) return {};
  const int64_t layer = lookup.plan().layer;
  const bool one_token = lookup.plan().n_tokens == 1;
  const auto k = static_cast<int32_t>(model_.spec().router.n_expert_used);
  const std::span<const int32_t> ids{static_cast<const int32_t*>(graphs_->host().ids->data),
                                     static_cast<size_t>(graphs_->host().ids->ne[1] * k)};
  if (std::ssize(pairs) > kMaxPairsPerCall) {
    // All pairs of an expert stay in one call.
    sorted_pairs_.assign(pairs.begin(), pairs.end());
    std::ranges::stable_sort(sorted_pairs_, {}, [&](int32_t pair) { return ids[pair]; });
    pairs = sorted_pairs_;
  }
  const CrossTensors& cross = graphs_->cross();
  const auto dump_row = static_cast<int32_t>(cross.results->ne[1] - 1);
  auto* const host_list = static_cast<int32_t*>(graphs_->host().pair_list->data);
  while (!pairs.empty()) {
    size_t n = std::min(pairs.size(), static_cast<size_t>(kMaxPairsPerCall));
    const auto expert_at = [&](size_t i) { return ids[pairs[i]]; };
    while (n < pairs.size() && n > 1 && expert_at(n) == expert_at(n - 1)) --n;
    const PairList list{.base = host_list + n_listed_, .n = pair_bucket(static_cast<int64_t>(n))};
    n_listed_ += list.size();
    HOTSET_CHECK(n_listed_ <= graphs_->host().pair_list->ne[0]);
    for (size_t i = 0; std::cmp_less(i, list.n); ++i) {
      const bool is_pair = i < n;
      const int32_t expert = is_pair ? expert_at(i) : 0;
      list.part(kPairTokens)[i] = is_pair ? pairs[i] / k : 0;
      list.part(kPairExperts)[i] = expert;
      list.part(kPairSlots)[i] =
          is_pair ? lookup.pairs().slot(expert) : cache_->banks().layer(layer)->pad_slot;
      list.part(kPairRows)[i] = is_pair ? pairs[i] : dump_row;
    }
    // Counted once: a further call reads other experts.
    const Bytes reads =
        cache_->expert_bytes(layer) * static_cast<int64_t>(std::exchange(n_experts, 0));
    HOTSET_RETURN_IF_ERROR(
        graphs_->lookups().compute_listed(list, name, layer, parity, one_token, reads));
    pairs = pairs.subspan(n);
  }
  return {};
}

void DeviceExecutor::list_cpu_pairs(std::span<const int32_t> pairs) {
  const HostTensors& host = graphs_->host();
  const auto k = static_cast<int32_t>(model_.spec().router.n_expert_used);
  const auto* ids = static_cast<const int32_t*>(host.ids->data);
  auto* tokens = static_cast<int32_t*>(host.cpu_tokens->data);
  auto* experts = static_cast<int32_t*>(host.cpu_ids->data);
  for (const int32_t pair : pairs) {
    *tokens++ = pair / k;
    *experts++ = ids[pair];
  }
}

Status DeviceExecutor::upload_cpu_rows(int64_t layer, std::span<const int32_t> pairs) {
  const HostTensors& host = graphs_->host();
  const CrossTensors& cross = graphs_->cross();
  const device::Label label{"results", static_cast<int32_t>(layer)};
  const size_t row_bytes = cross.results->nb[1];
  const auto n = std::ssize(pairs);
  int64_t n_runs = 1;
  for (size_t i = 1; i < pairs.size(); ++i) n_runs += pairs[i] != pairs[i - 1] + 1 ? 1 : 0;
  const auto* rows = static_cast<const uint8_t*>(host.cpu_rows->data);
  // Above this many, two copies and a graph take less.
  constexpr int64_t kMaxRuns = 3;
  if (n_runs <= kMaxRuns) {
    for (size_t i = 0; i < pairs.size();) {
      size_t end = i + 1;
      while (end < pairs.size() && pairs[end] == pairs[end - 1] + 1) ++end;
      HOTSET_RETURN_IF_ERROR(device_.upload(QueueId::kCompute, cross.results,
                                            static_cast<size_t>(pairs[i]) * row_bytes,
                                            rows + i * row_bytes, (end - i) * row_bytes, label));
      i = end;
    }
    return {};
  }
  const auto n_listed = static_cast<size_t>(pair_bucket(n));
  auto* places = static_cast<int32_t*>(host.row_list->data);
  for (size_t i = 0; i < n_listed; ++i) {
    places[i] = i < pairs.size() ? pairs[i] : static_cast<int32_t>(cross.results->ne[1] - 1);
  }
  HOTSET_RETURN_IF_ERROR(device_.upload(QueueId::kCompute, cross.row_list, 0, places,
                                        n_listed * sizeof(int32_t), {"list", label.layer}));
  HOTSET_RETURN_IF_ERROR(
      device_.upload(QueueId::kCompute, cross.cpu_rows, 0, rows, pairs.size() * row_bytes, label));
  HOTSET_TRY(KeptGraph* const graph, graphs_->lookups().scatter(n));
  return device_.compute(graph->graph, graph->reads, {"rows", label.layer});
}

Status DeviceExecutor::fetch_output(GraphSet& set, std::vector<float>& logits) {
  const HostTensors& host = graphs_->host();
  const CrossTensors& cross = graphs_->cross();
  const auto n_outputs = static_cast<size_t>(set.shape.n_outputs);
  const auto n_sums_before = static_cast<size_t>(set.shape.n_sums_before());
  const auto offset_of = [this](const ggml_tensor* part) {
    return graphs_->offset_in_output(part);
  };
  const size_t begin = offset_of(n_sums_before > 0 ? cross.sums_before : cross.sums_behind);
  const size_t end = n_outputs > 0 ? offset_of(cross.out) + n_outputs * cross.out->nb[1]
                                   : begin + n_sums_before * sizeof(float);
  auto* const output = static_cast<uint8_t*>(host.output->data);
  HOTSET_RETURN_IF_ERROR(device_.download(QueueId::kCompute, cross.output, begin, output + begin,
                                          end - begin, {"output", -1}));
  HOTSET_RETURN_IF_ERROR(device_.record(arrived_, QueueId::kCompute));
  HOTSET_RETURN_IF_ERROR(wait_for_arrival(-1));
  hidden_sums_.resize(n_sums_before + n_outputs);
  std::memcpy(hidden_sums_.data(), output + offset_of(cross.sums_before),
              n_sums_before * sizeof(float));
  std::memcpy(hidden_sums_.data() + n_sums_before, output + offset_of(cross.sums_behind),
              n_outputs * sizeof(float));
  if (n_outputs == 0) return {};
  const auto n_logits = n_outputs * static_cast<size_t>(model_.spec().n_vocab);
  const size_t n_before = logits.size();
  logits.resize(n_before + n_logits);
  if (set.head.graph == nullptr) {
    std::memcpy(logits.data() + n_before, host.out->data, n_logits * sizeof(float));
    return {};
  }
  auto job = [&] { return cpu_.compute(set.head.graph); };
  HOTSET_RETURN_IF_ERROR(on_cpu_lane("head", -1, job, set.head.reads));
  ggml_backend_tensor_get(ggml_graph_node(set.head.graph, -1), logits.data() + n_before, 0,
                          n_logits * sizeof(float));
  return {};
}

}  // namespace hotset::engine
