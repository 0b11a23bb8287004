#include "hotset/engine/device_graphs.h"

#include <algorithm>
#include <utility>

#include "hotset/engine/cpu_executor.h"

namespace hotset::engine {
namespace {

// A set holds the graphs of all layers. Decode uses one shape per 256 positions.
constexpr size_t kMaxKeptSets = 8;

ggml_context_ptr new_context(size_t n_tensors, size_t n_graph_nodes) {
  const size_t graph_bytes =
      n_graph_nodes > 0 ? ggml_graph_overhead_custom(n_graph_nodes, false) : 0;
  return ggml_context_ptr(ggml_init({.mem_size = ggml_tensor_overhead() * n_tensors + graph_bytes,
                                     .mem_buffer = nullptr,
                                     .no_alloc = true}));
}

// A tensor of the given shape at the start of `where`'s memory.
ggml_tensor* part_of(ggml_context* context, ggml_tensor* where, int64_t ne0, int64_t ne1 = 1,
                     int64_t ne2 = 1) {
  ggml_tensor* part = ggml_new_tensor_3d(context, where->type, ne0, ne1, ne2);
  HOTSET_CHECK(ggml_nbytes(part) <= ggml_nbytes(where));
  HOTSET_CHECK(ggml_backend_tensor_alloc(where->buffer, part, where->data) == GGML_STATUS_SUCCESS);
  return part;
}

// Lets `result` be computed right into `where`. A result that only reshapes another tensor is
// placed by placing that one; what already lies elsewhere, or is a part of something, is copied.
void place(GraphBuilder& g, ggml_tensor* result, ggml_tensor* where) {
  ggml_tensor* root = result;
  while (root->view_src != nullptr && root->view_offs == 0 &&
         ggml_nbytes(root) == ggml_nbytes(root->view_src) && ggml_is_contiguous(root)) {
    root = root->view_src;
  }
  if (root->view_src != nullptr || root->buffer != nullptr || root->op == GGML_OP_NONE) {
    root = ggml_cont(g.context(), result);
    result = root;
  }
  HOTSET_CHECK(root->type == where->type && ggml_nbytes(root) <= ggml_nbytes(where));
  HOTSET_CHECK(ggml_backend_tensor_alloc(where->buffer, root, where->data) == GGML_STATUS_SUCCESS);
  ggml_build_forward_expand(g.graph(), result);
}

}  // namespace

std::vector<Segment> cut_segments(const model::ModelSpec& spec, int64_t first_layer) {
  HOTSET_CHECK(first_layer >= 0 && first_layer < spec.n_layer);
  std::vector<Segment> segments;
  Segment segment{.first_layer = first_layer};
  for (int64_t layer = first_layer; layer < spec.n_layer; ++layer) {
    if (!spec.is_moe_layer(layer)) continue;
    segment.end_layer = layer + 1;
    segment.routes = layer;
    segments.push_back(segment);
    segment = {.first_layer = layer + 1, .combines = layer};
  }
  segment.end_layer = spec.n_layer;
  segments.push_back(segment);
  return segments;
}

DeviceGraphs::DeviceGraphs(const LoadedModel& model, const KvCache& kv, device::Device& device,
                           device::Backend& cpu, const Placement& placement,
                           const ExecutorOptions& options)
    : model_(model),
      kv_(kv),
      device_(device),
      cpu_(cpu),
      placement_(placement),
      options_(options),
      segments_(cut_segments(model.spec(), placement.first_device_layer)),
      device_compute_(device.buffer_type()),
      cpu_compute_(cpu.buffer_type()) {}

DeviceGraphs::~DeviceGraphs() {
  // Queued copies and graphs use the buffers below. A device that failed has nothing queued.
  (void)device_.wait_idle();
}

Result<std::unique_ptr<DeviceGraphs>> DeviceGraphs::create(
    const LoadedModel& model, const KvCache& kv, device::Device& device, device::Backend& cpu,
    const Placement& placement, const ExecutorOptions& options) {
  std::unique_ptr<DeviceGraphs> graphs(
      new DeviceGraphs(model, kv, device, cpu, placement, options));
  HOTSET_RETURN_IF_ERROR(graphs->allocate_cross());
  HOTSET_RETURN_IF_ERROR(graphs->allocate_host());
  HOTSET_RETURN_IF_ERROR(graphs->reserve());
  return graphs;
}

Status DeviceGraphs::allocate_cross() {
  const model::ModelSpec& spec = model_.spec();
  const int64_t n_ubatch = options_.n_ubatch;
  const int64_t k = std::max<int64_t>(1, spec.router.n_expert_used);
  cross_context_ = new_context(32, 0);
  ggml_context* c = cross_context_.get();
  const auto floats = [&](int64_t ne0, int64_t ne1) {
    return ggml_new_tensor_2d(c, GGML_TYPE_F32, ne0, ne1);
  };
  cross_.positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_ubatch);
  cross_.key_rows = ggml_new_tensor_1d(c, GGML_TYPE_I64, n_ubatch);
  cross_.value_rows = ggml_new_tensor_1d(c, GGML_TYPE_I64, n_value_rows(spec, kv_, n_ubatch));
  cross_.mask =
      ggml_new_tensor_1d(c, GGML_TYPE_F16, n_masks(spec) * n_ubatch * kv_.cells().n_cells());
  cross_.output_rows = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_ubatch);
  cross_.hidden = floats(spec.n_embd, n_ubatch);
  for (CrossTensors::Routed& routed : cross_.routed) {
    routed.residual = floats(spec.n_embd, n_ubatch);
    routed.x = floats(spec.n_embd, n_ubatch);
    routed.ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, k, n_ubatch);
    routed.weights = floats(k, n_ubatch);
    routed.shared = floats(spec.n_embd, n_ubatch);
  }
  cross_.results = floats(spec.n_embd, n_ubatch * k);
  cross_.out = floats(placement_.head_on_device ? spec.n_vocab : spec.n_embd, options_.n_outputs);
  HOTSET_TRY(cross_buffer_, device_.allocate(c, "pair buffers and inputs"));
  // Rows that no lane has written yet must not be NaN.
  ggml_backend_buffer_clear(cross_buffer_.get(), 0);
  return {};
}

Status DeviceGraphs::allocate_host() {
  host_context_ = new_context(16, 0);
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
  host_.out = like(cross_.out);
  // Each tensor at a multiple of this, for the CPU's vector loads.
  constexpr int64_t kAlignment = 64;
  Bytes total;
  for (ggml_tensor* t = ggml_get_first_tensor(c); t != nullptr; t = ggml_get_next_tensor(c, t)) {
    total += align_up({static_cast<int64_t>(ggml_nbytes(t))}, kAlignment);
  }
  HOTSET_TRY(host_buffer_, device_.allocate_pinned(total + Bytes{kAlignment},
                                                   "host side of the "
                                                   "pair buffers"));
  uint8_t* base = host_buffer_.data();
  base += (kAlignment - reinterpret_cast<intptr_t>(base) % kAlignment) % kAlignment;
  for (ggml_tensor* t = ggml_get_first_tensor(c); t != nullptr; t = ggml_get_next_tensor(c, t)) {
    HOTSET_CHECK(ggml_backend_tensor_alloc(host_buffer_.get(), t, base) == GGML_STATUS_SUCCESS);
    base += align_up({static_cast<int64_t>(ggml_nbytes(t))}, kAlignment).count;
  }
  return {};
}

Status DeviceGraphs::reserve() {
  // As for the CPU's graphs, the largest need is measured over all sizes.
  GraphSet largest_on_device;
  GraphSet largest_on_cpu;
  ggml_cgraph* device_graph = nullptr;
  ggml_cgraph* cpu_graph = nullptr;
  Bytes device_most;
  Bytes cpu_most;
  std::vector<GraphSet> sets;
  for (int32_t n_tokens = options_.n_ubatch;; n_tokens /= 2) {
    sets.push_back(build({.n_tokens = n_tokens,
                          .n_kv = kv_.cells().n_cells(),
                          .n_outputs = std::min(options_.n_outputs, n_tokens)}));
    HOTSET_RETURN_IF_ERROR(check(sets.back()));
    if (n_tokens == 1) break;
  }
  const auto take_larger = [](const device::ComputeBuffer& buffer, const KeptGraph& kept,
                              Bytes& most, ggml_cgraph*& graph) {
    if (kept.graph == nullptr || ggml_graph_n_nodes(kept.graph) == 0) return;
    const Bytes needed = buffer.measure(kept.graph);
    if (graph == nullptr || needed > most) {
      most = needed;
      graph = kept.graph;
    }
  };
  for (const GraphSet& set : sets) {
    for (const KeptGraph& kept : set.segments) {
      take_larger(device_compute_, kept, device_most, device_graph);
    }
    for (const KeptGraph& kept : set.experts) take_larger(cpu_compute_, kept, cpu_most, cpu_graph);
    take_larger(cpu_compute_, set.head, cpu_most, cpu_graph);
  }
  HOTSET_TRY(compute_claim_, device_.claim(device_most, "compute buffer"));
  HOTSET_RETURN_IF_ERROR(device_compute_.reserve(device_graph));
  if (cpu_graph != nullptr) HOTSET_RETURN_IF_ERROR(cpu_compute_.reserve(cpu_graph));
  return {};
}

int32_t DeviceGraphs::n_rows(const Segment& segment, const GraphShape& shape) const {
  return segment.routes + 1 == model_.spec().n_layer ? shape.n_outputs : shape.n_tokens;
}

Bytes DeviceGraphs::expert_bytes(int64_t layer) const {
  const FeedForwardWeights& w = model_.weights().layers[static_cast<size_t>(layer)].experts;
  Bytes total;
  for (const ggml_tensor* tensor : w.matrices()) {
    if (tensor != nullptr) total += {static_cast<int64_t>(tensor->nb[2])};
  }
  return total;
}

GraphInputs DeviceGraphs::device_inputs(ggml_context* context, const GraphShape& shape) const {
  GraphInputs inputs;
  inputs.positions = part_of(context, cross_.positions, shape.n_tokens);
  inputs.key_rows = part_of(context, cross_.key_rows, shape.n_tokens);
  inputs.value_rows =
      part_of(context, cross_.value_rows, n_value_rows(model_.spec(), kv_, shape.n_tokens));
  inputs.mask = part_of(context, cross_.mask, shape.n_kv, n_masks(model_.spec()) * shape.n_tokens);
  if (shape.selects_outputs()) {
    inputs.output_rows = part_of(context, cross_.output_rows, shape.n_outputs);
  }
  return inputs;
}

KeptGraph DeviceGraphs::build_segment(size_t index, const GraphShape& shape) const {
  const model::ModelSpec& spec = model_.spec();
  const Architecture& architecture = model_.architecture();
  const Segment& segment = segments_[index];
  const size_t n_nodes = max_graph_nodes(spec, segment.end_layer - segment.first_layer + 1);
  KeptGraph kept;
  kept.context = new_context(n_nodes, n_nodes);
  ggml_context* c = kept.context.get();
  kept.graph = ggml_new_graph_custom(c, n_nodes, false);
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
    hidden = architecture.attention(g, layer, hidden);
    if (layer + 1 == spec.n_layer) {
      if (shape.n_outputs == 0) {
        kept.reads = graph_reads(kept.graph);
        return kept;
      }
      hidden = g.select_outputs(hidden);
    }
    if (layer == segment.routes) {
      const Routing routing = architecture.route(g, layer, hidden);
      const CrossTensors::Routed& routed = cross_.routed[index % 2];
      place(g, routing.residual, routed.residual);
      place(g, routing.x, routed.x);
      place(g, ggml_cont(c, routing.ids), routed.ids);
      place(g, routing.weights, routed.weights);
      if (routing.shared != nullptr) place(g, routing.shared, routed.shared);
    } else {
      hidden = architecture.dense_feed_forward(g, layer, hidden);
    }
  }
  if (segment.routes < 0) place(g, placement_.head_on_device ? g.head(hidden) : hidden, cross_.out);
  kept.reads = graph_reads(kept.graph);
  return kept;
}

KeptGraph DeviceGraphs::build_experts(const Segment& segment, const GraphShape& shape) const {
  KeptGraph kept;
  const int64_t rows = n_rows(segment, shape);
  if (rows == 0) return kept;
  const model::ModelSpec& spec = model_.spec();
  const size_t n_nodes = 64;
  kept.context = new_context(n_nodes, n_nodes);
  ggml_context* c = kept.context.get();
  kept.graph = ggml_new_graph_custom(c, n_nodes, false);
  GraphBuilder g(c, kept.graph, spec, model_.weights(), kv_, shape, {});
  const Routing routing{.x = part_of(c, host_.x, spec.n_embd, rows),
                        .ids = part_of(c, host_.ids, spec.router.n_expert_used, rows)};
  place(g, g.experts(routing, g.layer(segment.routes).experts), host_.results);
  return kept;
}

KeptGraph DeviceGraphs::build_head(const GraphShape& shape) const {
  KeptGraph kept;
  if (placement_.head_on_device || shape.n_outputs == 0) return kept;
  const model::ModelSpec& spec = model_.spec();
  const size_t n_nodes = 16;
  kept.context = new_context(n_nodes, n_nodes);
  ggml_context* c = kept.context.get();
  kept.graph = ggml_new_graph_custom(c, n_nodes, false);
  GraphBuilder g(c, kept.graph, spec, model_.weights(), kv_, shape, {});
  ggml_tensor* logits = g.head(part_of(c, host_.out, spec.n_embd, shape.n_outputs));
  ggml_set_output(logits);
  ggml_build_forward_expand(kept.graph, logits);
  kept.reads = graph_reads(kept.graph);
  return kept;
}

GraphSet DeviceGraphs::build(const GraphShape& shape) const {
  GraphSet set;
  set.shape = shape;
  for (size_t i = 0; i < segments_.size(); ++i) {
    set.segments.push_back(build_segment(i, shape));
    if (segments_[i].routes >= 0) set.experts.push_back(build_experts(segments_[i], shape));
  }
  set.head = build_head(shape);
  return set;
}

Status DeviceGraphs::check(GraphSet& set) const {
  const auto on_device = [&](const ggml_tensor* node) { return device_.supports(node); };
  const auto on_cpu = [&](const ggml_tensor* node) { return cpu_.supports(node); };
  for (KeptGraph& kept : set.segments) {
    HOTSET_RETURN_IF_ERROR(check_supported(kept.graph, on_device, device_.info().name));
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
  auto built = std::make_unique<GraphSet>(build(shape));
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
  HOTSET_RETURN_IF_ERROR(device_.wait_idle());
  auto& oldest = *std::ranges::min_element(kept_, {}, [](const auto& k) { return k->last_use; });
  oldest = std::move(built);
  return oldest.get();
}

}  // namespace hotset::engine
