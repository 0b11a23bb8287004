#include "hotset/engine/run/device_graphs.h"

#include <algorithm>
#include <utility>

#include "hotset/engine/graph/graph_parts.h"
#include "hotset/engine/run/cpu_executor.h"

namespace hotset::engine {
namespace {

// A set holds the graphs of all layers. Decode uses one shape per 256 positions.
constexpr size_t kMaxKeptSets = 8;

}  // namespace

std::vector<Segment> cut_segments(const model::ModelSpec& spec, int64_t first_layer,
                                  const std::function<bool(int64_t layer)>& is_resident) {
  HOTSET_CHECK(first_layer >= 0 && first_layer < spec.n_layer);
  std::vector<Segment> segments;
  Segment segment{.first_layer = first_layer};
  for (int64_t layer = first_layer; layer < spec.n_layer; ++layer) {
    if (!spec.is_moe_layer(layer) || (is_resident && is_resident(layer))) continue;
    segment.end_layer = layer + 1;
    segment.routes = layer;
    segments.push_back(segment);
    segment = {.first_layer = layer + 1, .combines = layer};
  }
  segment.end_layer = spec.n_layer;
  segments.push_back(segment);
  return segments;
}

DeviceGraphs::DeviceGraphs(const LoadedModel& model, const KvCache& kv,
                           device::DeviceMemory& memory, device::Backend& cpu,
                           const Placement& placement, const ExecutorOptions& options,
                           const ExpertBanks* banks)
    : model_(model),
      kv_(kv),
      memory_(memory),
      cpu_(cpu),
      placement_(placement),
      options_(options),
      banks_(banks),
      segments_(cut_segments(model.spec(), placement.first_device_layer,
                             [this](int64_t layer) { return is_resident(layer); })),
      device_compute_(memory.buffer_type()),
      cpu_compute_(cpu.buffer_type()) {}

DeviceGraphs::~DeviceGraphs() {
  // Queued copies and graphs use the buffers below. A device that failed has nothing queued.
  if (memory_.device() != nullptr) (void)device().wait_idle();
}

Result<std::unique_ptr<DeviceGraphs>> DeviceGraphs::create(
    const LoadedModel& model, const KvCache& kv, device::DeviceMemory& memory, device::Backend& cpu,
    const Placement& placement, const ExecutorOptions& options, const ExpertBanks* banks) {
  std::unique_ptr<DeviceGraphs> graphs(
      new DeviceGraphs(model, kv, memory, cpu, placement, options, banks));
  HOTSET_RETURN_IF_ERROR(graphs->allocate_cross());
  HOTSET_RETURN_IF_ERROR(graphs->allocate_host());
  if (graphs->has_slots()) {
    graphs->lookups_.emplace(LookupGraphs::Parts{
        .model = model,
        .kv = kv,
        .memory = memory,
        .cpu = cpu,
        .banks = *banks,
        .cross = graphs->cross_,
        .host = graphs->host_,
        .device_compute = graphs->device_compute_,
        .cpu_compute = graphs->cpu_compute_,
        .n_ubatch = options.context.n_ubatch,
        .cache_batch = options.rules.most_in_batch(),
    });
  }
  HOTSET_RETURN_IF_ERROR(graphs->reserve());
  if (!graphs->has_slots() || memory.device() == nullptr) return graphs;
  HOTSET_RETURN_IF_ERROR(graphs->fill_pair_tokens());
  for (size_t i = 0; i < graphs->segments_.size(); ++i) {
    const int64_t layer = graphs->segments_[i].routes;
    if (layer < 0 || graphs->banked(layer) == nullptr) continue;
    HOTSET_RETURN_IF_ERROR(graphs->lookups_->build(layer, i % 2));
  }
  return graphs;
}

bool DeviceGraphs::has_slots() const {
  return std::ranges::any_of(
      segments_, [&](const Segment& s) { return s.routes >= 0 && banked(s.routes) != nullptr; });
}

void DeviceGraphs::declare_cache_tensors(ggml_context* c) {
  const model::ModelSpec& spec = model_.spec();
  const int64_t k = spec.router.n_expert_used;
  const int64_t n_pairs = options_.context.n_ubatch * k;
  if (options_.observe_routing) {
    cross_.resident_ids.resize(spec.n_layer);
    for (int64_t layer = placement_.first_device_layer; layer < spec.n_layer; ++layer) {
      if (!is_resident(layer)) continue;
      cross_.resident_ids[layer] =
          ggml_new_tensor_2d(c, GGML_TYPE_I32, k, options_.context.n_ubatch);
    }
  }
  if (!has_slots()) return;
  const int64_t max_listed = pair_bucket(n_pairs);
  cross_.pair_tokens = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_pairs);
  cross_.pair_list = ggml_new_tensor_1d(
      c, GGML_TYPE_I32, static_cast<int64_t>(kPairListParts) * pair_list_stride(max_listed));
  cross_.cpu_rows = ggml_new_tensor_2d(c, GGML_TYPE_F32, spec.n_embd, max_listed);
  cross_.row_list = ggml_new_tensor_1d(c, GGML_TYPE_I32, max_listed);
}

Status DeviceGraphs::fill_pair_tokens() {
  auto* staged = static_cast<int32_t*>(host_.pair_list->data);
  const int64_t n_pairs = cross_.pair_tokens->ne[0];
  const int64_t k = model_.spec().router.n_expert_used;
  for (int64_t i = 0; i < n_pairs; ++i) staged[i] = static_cast<int32_t>(i / k);
  HOTSET_RETURN_IF_ERROR(device().upload(device::QueueId::kCompute, cross_.pair_tokens, 0, staged,
                                         ggml_nbytes(cross_.pair_tokens), {"pairs", -1}));
  return device().wait_idle();
}

Status DeviceGraphs::allocate_cross() {
  const model::ModelSpec& spec = model_.spec();
  const int64_t n_ubatch = options_.context.n_ubatch;
  const int64_t k = std::max<int64_t>(1, spec.router.n_expert_used);
  HOTSET_TRY(cross_context_, device::new_tensor_context(32 + static_cast<size_t>(spec.n_layer)));
  ggml_context* c = cross_context_.get();
  const auto floats = [&](int64_t ne0, int64_t ne1) {
    return ggml_new_tensor_2d(c, GGML_TYPE_F32, ne0, ne1);
  };
  cross_.positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_ubatch);
  cross_.key_rows = ggml_new_tensor_1d(c, GGML_TYPE_I64, n_ubatch * kv_.n_cell_kinds());
  cross_.value_rows = ggml_new_tensor_1d(c, GGML_TYPE_I64, n_value_rows(spec, kv_, n_ubatch));
  cross_.mask = ggml_new_tensor_1d(c, GGML_TYPE_F16,
                                   n_ubatch * (kv_.cells().n_cells() + kv_.max_n_kv_window()));
  cross_.output_rows = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_ubatch);
  cross_.hidden = floats(spec.n_embd, n_ubatch);
  // One token's sorted experts, of which ids are the first, fit as they are.
  const int64_t n_id_rows = std::max(n_ubatch, (spec.router.n_expert + k - 1) / k);
  for (CrossTensors::Routed& routed : cross_.routed) {
    routed.residual = floats(spec.n_embd, n_ubatch);
    routed.x = floats(spec.n_embd, n_ubatch);
    routed.ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, k, n_id_rows);
    routed.weights = floats(k, n_ubatch);
    routed.shared = floats(spec.n_embd, n_ubatch);
  }
  cross_.results = floats(spec.n_embd, n_ubatch * k + 1);
  const auto padded = [](int64_t n) { return (n + 63) / 64 * 64; };  // devices want alignment
  const int64_t n_out = placement_.head_on_device ? spec.n_vocab : spec.n_embd;
  const int64_t behind_at = padded(n_ubatch);
  const int64_t out_at = behind_at + padded(options_.context.n_outputs);
  cross_.output = floats(out_at + n_out * options_.context.n_outputs, 1);
  declare_cache_tensors(c);
  // Rows that no lane has written yet are zero, and so not NaN.
  HOTSET_TRY(cross_buffer_, memory_.allocate(c, "pair buffers and inputs"));
  const auto part = [&](int64_t ne0, int64_t ne1, int64_t at) {
    return part_of(c, cross_.output, ne0, ne1, 1, static_cast<size_t>(at) * sizeof(float));
  };
  cross_.sums_before = part(1, n_ubatch, 0);
  cross_.sums_behind = part(1, options_.context.n_outputs, behind_at);
  cross_.out = part(n_out, options_.context.n_outputs, out_at);
  return {};
}

Status DeviceGraphs::allocate_host() {
  HOTSET_TRY(host_context_, device::new_tensor_context(24 + cross_.resident_ids.size()));
  ggml_context* c = host_context_.get();
  const auto like = [&](const ggml_tensor* tensor) { return ggml_dup_tensor(c, tensor); };
  host_.positions = like(cross_.positions);
  host_.key_rows = like(cross_.key_rows);
  host_.value_rows = like(cross_.value_rows);
  host_.mask = like(cross_.mask);
  host_.output_rows = like(cross_.output_rows);
  host_.hidden = like(cross_.hidden);
  host_.x = like(cross_.routed[0].x);
  host_.ids = like(cross_.routed[0].ids);
  host_.results = like(cross_.results);
  host_.output = like(cross_.output);
  if (cross_.pair_list != nullptr) {
    host_.pair_list = ggml_new_tensor_1d(
        c, GGML_TYPE_I32,
        max_list_numbers(cross_.pair_tokens->ne[0], model_.spec().router.n_expert));
    host_.row_list = like(cross_.row_list);
    host_.cpu_rows = like(cross_.cpu_rows);
    host_.cpu_tokens = like(cross_.pair_tokens);
    host_.cpu_ids = like(cross_.pair_tokens);
  }
  for (const ggml_tensor* ids : cross_.resident_ids) {
    host_.resident_ids.push_back(ids == nullptr ? nullptr : like(ids));
  }
  // Each tensor at a multiple of this, for the CPU's vector loads.
  constexpr int64_t kAlignment = 64;
  Bytes total;
  for (ggml_tensor* t = ggml_get_first_tensor(c); t != nullptr; t = ggml_get_next_tensor(c, t)) {
    total += align_up({static_cast<int64_t>(ggml_nbytes(t))}, kAlignment);
  }
  HOTSET_TRY(host_buffer_, memory_.allocate_pinned(total + Bytes{kAlignment},
                                                   "host side of the "
                                                   "pair buffers"));
  uint8_t* base = host_buffer_.data();
  base += (kAlignment - reinterpret_cast<intptr_t>(base) % kAlignment) % kAlignment;
  for (ggml_tensor* t = ggml_get_first_tensor(c); t != nullptr; t = ggml_get_next_tensor(c, t)) {
    HOTSET_CHECK(ggml_backend_tensor_alloc(host_buffer_.get(), t, base) == GGML_STATUS_SUCCESS);
    base += align_up({static_cast<int64_t>(ggml_nbytes(t))}, kAlignment).count;
  }
  host_.out = part_of(c, host_.output, cross_.out->ne[0], cross_.out->ne[1], 1,
                      offset_in_output(cross_.out));
  return {};
}

Status DeviceGraphs::reserve() {
  // As for the CPU's graphs, the largest need is measured over many sizes.
  struct Largest {
    KeptGraph kept;
    Bytes needs;

    Status consider(device::ComputeBuffer& buffer, KeptGraph candidate) {
      if (candidate.graph == nullptr || ggml_graph_n_nodes(candidate.graph) == 0) return {};
      HOTSET_TRY(const Bytes needed, buffer.measure(candidate.graph));
      if (kept.graph != nullptr && needed <= needs) return {};
      needs = needed;
      kept = std::move(candidate);
      return {};
    }
  };
  Largest on_device;
  Largest on_cpu;
  for (const int32_t n_tokens : measured_sizes(options_.context.n_ubatch)) {
    HOTSET_TRY(GraphSet set, build({.n_tokens = n_tokens,
                                    .n_kv = kv_.cells().n_cells(),
                                    .n_kv_window = kv_.max_n_kv_window(),
                                    .n_outputs = std::min(options_.context.n_outputs, n_tokens)}));
    HOTSET_RETURN_IF_ERROR(check(set));
    for (KeptGraph& kept : set.segments) {
      HOTSET_RETURN_IF_ERROR(on_device.consider(device_compute_, std::move(kept)));
    }
    for (KeptGraph& kept : set.experts) {
      HOTSET_RETURN_IF_ERROR(on_cpu.consider(cpu_compute_, std::move(kept)));
    }
    HOTSET_RETURN_IF_ERROR(on_cpu.consider(cpu_compute_, std::move(set.head)));
  }
  if (lookups_) {
    HOTSET_RETURN_IF_ERROR(lookups_->visit_largest([&](KeptGraph kept, bool is_cpu) {
      return (is_cpu ? on_cpu : on_device)
          .consider(is_cpu ? cpu_compute_ : device_compute_, std::move(kept));
    }));
  }
  HOTSET_TRY(compute_claim_,
             memory_.claim(device::ComputeBuffer::with_margin(on_device.needs), "compute buffer"));
  if (memory_.device() == nullptr) return {};
  HOTSET_RETURN_IF_ERROR(device_compute_.reserve(on_device.kept.graph));
  if (on_cpu.kept.graph == nullptr) return {};
  return cpu_compute_.reserve(on_cpu.kept.graph);
}

int32_t DeviceGraphs::n_rows(int64_t layer, const GraphShape& shape) const {
  return layer + 1 == model_.spec().n_layer ? shape.n_outputs : shape.n_tokens;
}

Bytes DeviceGraphs::expert_bytes(int64_t layer) const {
  const FeedForwardWeights& w = model_.weights().layers[layer].experts;
  Bytes total;
  for (const ggml_tensor* tensor : w.matrices()) {
    if (tensor != nullptr) total += {static_cast<int64_t>(tensor->nb[2])};
  }
  return total;
}

GraphInputs DeviceGraphs::device_inputs(ggml_context* context, const GraphShape& shape) const {
  GraphInputs inputs;
  inputs.positions = part_of(context, cross_.positions, shape.n_tokens);
  inputs.key_rows = part_of(context, cross_.key_rows, shape.n_tokens * kv_.n_cell_kinds());
  inputs.value_rows =
      part_of(context, cross_.value_rows, n_value_rows(model_.spec(), kv_, shape.n_tokens));
  const auto [mask_width, n_mask_rows] = mask_size(shape);
  inputs.mask = part_of(context, cross_.mask, mask_width, n_mask_rows);
  if (shape.selects_outputs()) {
    inputs.output_rows = part_of(context, cross_.output_rows, shape.n_outputs);
  }
  return inputs;
}

Result<KeptGraph> DeviceGraphs::build_segment(size_t index, const GraphShape& shape) const {
  const model::ModelSpec& spec = model_.spec();
  const Architecture& architecture = model_.architecture();
  const Segment& segment = segments_[index];
  const size_t n_nodes = max_graph_nodes(spec, segment.end_layer - segment.first_layer + 1);
  HOTSET_TRY(KeptGraph kept, new_kept_graph(n_nodes));
  ggml_context* c = kept.context.get();
  GraphBuilder g(c, kept.graph, spec, model_.weights(), kv_, shape, device_inputs(c, shape));

  ggml_tensor* hidden = nullptr;
  if (segment.combines >= 0) {
    const Segment& before = segments_[index - 1];
    const CrossTensors::Routed& routed = cross_.routed[(index - 1) % 2];
    const int64_t rows = n_rows(before, shape);
    const int64_t k = spec.router.n_expert_used;
    if (rows == 0) return kept;  // nobody wants logits of this ubatch
    Routing routing{.residual = part_of(c, routed.residual, spec.n_embd, rows),
                    .weights = part_of(c, routed.weights, 1, k, rows)};
    if (spec.n_ff_shared > 0) {
      routing.shared = part_of(c, routed.shared, spec.n_embd, rows);
    }
    hidden = g.combine(routing, part_of(c, cross_.results, spec.n_embd, k, rows));
  } else {
    hidden = part_of(c, cross_.hidden, spec.n_embd, shape.n_tokens);
  }
  for (int64_t layer = segment.first_layer; layer < segment.end_layer; ++layer) {
    if (layer + 1 == spec.n_layer && shape.n_sums_before() > 0) {
      place(g, g.row_sums(hidden), cross_.sums_before);
    }
    hidden = architecture.attention(g, layer, hidden);
    if (layer + 1 == spec.n_layer) {
      if (shape.n_outputs == 0) {
        kept.reads = graph_reads(kept.graph);
        return kept;
      }
      hidden = g.select_outputs(hidden);
    }
    if (is_resident(layer)) {
      hidden = resident_experts(g, layer, hidden);
    } else if (layer == segment.routes) {
      const Routing routing = architecture.route(g, layer, hidden);
      const CrossTensors::Routed& routed = cross_.routed[index % 2];
      place(g, routing.residual, routed.residual);
      place(g, routing.x, routed.x);
      place(g, routing.ids, routed.ids);
      place(g, routing.weights, routed.weights);
      if (routing.shared != nullptr) place(g, routing.shared, routed.shared);
    } else {
      hidden = architecture.dense_feed_forward(g, layer, hidden);
    }
  }
  if (segment.routes < 0) {
    place(g, g.row_sums(hidden), cross_.sums_behind);
    place(g, placement_.head_on_device ? g.head(hidden) : hidden, cross_.out);
  }
  kept.reads = graph_reads(kept.graph);
  return kept;
}

ggml_tensor* DeviceGraphs::resident_experts(GraphBuilder& g, int64_t layer,
                                            ggml_tensor* hidden) const {
  Routing routing = model_.architecture().route(g, layer, hidden);
  if (!cross_.resident_ids.empty()) {
    routing.ids = ggml_cont(g.context(), routing.ids);
    place(g, routing.ids, cross_.resident_ids[layer]);
  }
  const BankedLayer& at = *banked(layer);
  const auto own = [&](ggml_tensor* bank) -> ggml_tensor* {
    if (bank == nullptr) return nullptr;
    return ggml_view_3d(g.context(), bank, bank->ne[0], bank->ne[1], model_.spec().router.n_expert,
                        bank->nb[1], bank->nb[2], static_cast<size_t>(at.first_slot) * bank->nb[2]);
  };
  FeedForwardWeights experts = at.banks;
  for (ggml_tensor** matrix : {&experts.gate, &experts.up, &experts.down, &experts.gate_up}) {
    *matrix = own(*matrix);
  }
  return g.combine(routing, g.experts(routing, experts));
}

Result<KeptGraph> DeviceGraphs::build_experts(const Segment& segment,
                                              const GraphShape& shape) const {
  const int64_t rows = n_rows(segment, shape);
  if (rows == 0) return KeptGraph();
  const model::ModelSpec& spec = model_.spec();
  const size_t n_nodes = 64;
  HOTSET_TRY(KeptGraph kept, new_kept_graph(n_nodes));
  ggml_context* c = kept.context.get();
  GraphBuilder g(c, kept.graph, spec, model_.weights(), kv_, shape, {});
  const Routing routing{.x = part_of(c, host_.x, spec.n_embd, rows),
                        .ids = part_of(c, host_.ids, spec.router.n_expert_used, rows)};
  place(g, g.experts(routing, g.layer(segment.routes).experts), host_.results);
  return kept;
}

Result<KeptGraph> DeviceGraphs::build_head(const GraphShape& shape) const {
  if (placement_.head_on_device || shape.n_outputs == 0) return KeptGraph();
  const model::ModelSpec& spec = model_.spec();
  const size_t n_nodes = 16;
  HOTSET_TRY(KeptGraph kept, new_kept_graph(n_nodes));
  ggml_context* c = kept.context.get();
  GraphBuilder g(c, kept.graph, spec, model_.weights(), kv_, shape, {});
  ggml_tensor* logits = g.head(part_of(c, host_.out, spec.n_embd, shape.n_outputs));
  ggml_set_output(logits);
  ggml_build_forward_expand(kept.graph, logits);
  kept.reads = graph_reads(kept.graph);
  return kept;
}

Result<GraphSet> DeviceGraphs::build(const GraphShape& shape) const {
  GraphSet set;
  set.shape = shape;
  for (size_t i = 0; i < segments_.size(); ++i) {
    HOTSET_TRY(set.segments.emplace_back(), build_segment(i, shape));
    if (segments_[i].routes < 0) continue;
    HOTSET_TRY(set.experts.emplace_back(), build_experts(segments_[i], shape));
  }
  HOTSET_TRY(set.head, build_head(shape));
  return set;
}

Status DeviceGraphs::check(GraphSet& set) const {
  const auto on_device = [&](const ggml_tensor* node) { return memory_.supports(node); };
  const auto on_cpu = [&](const ggml_tensor* node) { return cpu_.supports(node); };
  for (KeptGraph& kept : set.segments) {
    HOTSET_RETURN_IF_ERROR(check_supported(kept.graph, on_device, memory_.info().name));
  }
  for (KeptGraph& kept : set.experts) {
    if (kept.graph == nullptr) continue;
    HOTSET_RETURN_IF_ERROR(check_supported(kept.graph, on_cpu, "the CPU backend"));
  }
  if (set.head.graph == nullptr) return {};
  return check_supported(set.head.graph, on_cpu, "the CPU backend");
}

Result<GraphSet*> DeviceGraphs::for_shape(const GraphShape& shape) {
  for (const auto& kept : kept_) {
    if (kept->shape == shape) {
      kept->last_use = ++n_uses_;
      return kept.get();
    }
  }
  HOTSET_TRY(GraphSet set, build(shape));
  auto built = std::make_unique<GraphSet>(std::move(set));
  built->last_use = ++n_uses_;
  HOTSET_RETURN_IF_ERROR(check(*built));
  const auto allocate = [&](device::ComputeBuffer& buffer, KeptGraph& kept) -> Status {
    if (kept.graph == nullptr || ggml_graph_n_nodes(kept.graph) == 0) return {};
    ++n_graphs_built_;
    return buffer.allocate(kept.graph);
  };
  for (KeptGraph& kept : built->segments) {
    HOTSET_RETURN_IF_ERROR(allocate(device_compute_, kept));
  }
  for (KeptGraph& kept : built->experts) HOTSET_RETURN_IF_ERROR(allocate(cpu_compute_, kept));
  HOTSET_RETURN_IF_ERROR(allocate(cpu_compute_, built->head));
  if (kept_.size() < kMaxKeptSets) {
    kept_.push_back(std::move(built));
    return kept_.back().get();
  }
  // A graph may go only once the device no longer looks at it.
  HOTSET_RETURN_IF_ERROR(device().wait_idle());
  auto& oldest = *std::ranges::min_element(kept_, {}, [](const auto& k) { return k->last_use; });
  oldest = std::move(built);
  return oldest.get();
}

}  // namespace hotset::engine
