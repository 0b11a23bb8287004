#include "hotset/engine/run/cpu_executor.h"

#include <algorithm>
#include <utility>

#include "hotset/engine/graph/graph_parts.h"

namespace hotset::engine {
namespace {

// Decode uses one shape per 256 positions, prefill two or three; more than this are rebuilt.
constexpr size_t kMaxKeptGraphs = 16;

}  // namespace

size_t max_graph_nodes(const model::ModelSpec& spec, int64_t n_layers) {
  const auto per_layer = static_cast<size_t>(128 + 2 * spec.router.n_expert_used);
  return 256 + per_layer * static_cast<size_t>(n_layers);
}

Bytes graph_reads(ggml_cgraph* graph) {
  int64_t n_bytes = 0;
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    const auto source_bytes = [&](int s) {
      return static_cast<int64_t>(ggml_nbytes(node->src[s]));
    };
    switch (node->op) {
      case GGML_OP_MUL_MAT:
        n_bytes += source_bytes(0);
        break;
      case GGML_OP_MUL_MAT_ID: {
        const int64_t n_experts = node->src[0]->ne[2];
        const int64_t n_pairs = ggml_nelements(node->src[2]);
        n_bytes += source_bytes(0) / n_experts * std::min(n_experts, n_pairs);
        break;
      }
      case GGML_OP_FLASH_ATTN_EXT:
        n_bytes += source_bytes(1) + source_bytes(2);
        break;
      default:
        break;
    }
  }
  return {n_bytes};
}

Status check_supported(ggml_cgraph* graph, const std::function<bool(const ggml_tensor*)>& supports,
                       std::string_view device_name) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    const ggml_tensor* node = ggml_graph_node(graph, i);
    if (!supports(node)) {
      const ggml_tensor* input = node->src[0] != nullptr ? node->src[0] : node;
      return make_error(ErrorCode::kUnsupported, "{} cannot compute {} ('{}', type {})",
                        device_name, ggml_op_desc(node), input->name, ggml_type_name(input->type));
    }
  }
  return {};
}

CpuExecutor::CpuExecutor(const LoadedModel& model, KvCache& kv, device::Backend& cpu,
                         const ExecutorOptions& options, int64_t n_layers)
    : model_(model),
      kv_(kv),
      cpu_(cpu),
      options_(options),
      n_layers_(n_layers),
      compute_(cpu.buffer_type()) {}

Result<std::unique_ptr<CpuExecutor>> CpuExecutor::create(const LoadedModel& model, KvCache& kv,
                                                         device::Backend& cpu,
                                                         const ExecutorOptions& options,
                                                         int64_t n_layers) {
  if (options.context.n_ubatch < 1 || options.context.n_outputs < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "ubatch: found {} tokens and {} outputs, expected at least 1",
                      options.context.n_ubatch, options.context.n_outputs);
  }
  std::unique_ptr<CpuExecutor> executor(new CpuExecutor(model, kv, cpu, options, n_layers));
  ExecutorOptions& o = executor->options_;
  o.context.n_ubatch = std::min(o.context.n_ubatch, kv.cells().n_cells());
  o.context.n_outputs = std::min(o.context.n_outputs, o.context.n_ubatch);
  HOTSET_RETURN_IF_ERROR(executor->reserve());
  return executor;
}

Status CpuExecutor::reserve() {
  // The need grows with each dimension, but not strictly: the allocator's packing differs. So the
  // largest of many sizes is measured, not assumed.
  KeptGraph largest;
  Bytes most;
  for (const int32_t n_tokens : measured_sizes(options_.context.n_ubatch)) {
    HOTSET_TRY(KeptGraph kept,
               build({.n_tokens = n_tokens,
                      .n_kv = kv_.cells().n_cells(),
                      .n_kv_window = kv_.max_n_kv_window(),
                      .n_outputs = std::min(options_.context.n_outputs, n_tokens)}));
    HOTSET_RETURN_IF_ERROR(check_supported(
        kept.graph, [&](const ggml_tensor* node) { return cpu_.supports(node); },
        "the CPU backend"));
    HOTSET_TRY(const Bytes needed, compute_.measure(kept.graph));
    if (needed > most) {
      most = needed;
      largest = std::move(kept);
    }
  }
  return compute_.reserve(largest.graph);
}

Result<CpuExecutor::KeptGraph> CpuExecutor::build(const GraphShape& shape) const {
  const model::ModelSpec& spec = model_.spec();
  const size_t n_nodes = max_graph_nodes(spec, n_layers_);
  KeptGraph kept;
  kept.shape = shape;
  HOTSET_TRY(kept.context, device::new_tensor_context(n_nodes, n_nodes));
  kept.graph = ggml_new_graph_custom(kept.context.get(), n_nodes, false);
  kept.inputs = make_inputs(kept.context.get(), spec, kv_, shape);
  GraphBuilder g(kept.context.get(), kept.graph, spec, model_.weights(), kv_, shape, kept.inputs);
  add_layers(g, kept);
  if (kept.result != nullptr) {
    ggml_set_output(kept.result);
    ggml_build_forward_expand(kept.graph, kept.result);
  }
  kept.reads = graph_reads(kept.graph);
  return kept;
}

void CpuExecutor::add_layers(GraphBuilder& g, KeptGraph& kept) const {
  const Architecture& architecture = model_.architecture();
  const GraphShape& shape = kept.shape;
  const auto sums_of = [&](ggml_tensor* x) {
    ggml_tensor* sums = g.row_sums(x);
    ggml_set_output(sums);
    ggml_build_forward_expand(kept.graph, sums);
    return sums;
  };
  ggml_tensor* hidden = g.embed();
  for (int64_t layer = 0; layer < n_layers_; ++layer) {
    if (layer + 1 == g.spec().n_layer && shape.n_sums_before() > 0) {
      kept.sums_before = sums_of(hidden);
    }
    hidden = architecture.attention(g, layer, hidden);
    if (layer + 1 == g.spec().n_layer) {
      // Behind the last attention only the rows whose logits are wanted matter; without any, the
      // keys and values that are already in the graph are all there is to compute.
      if (shape.n_outputs == 0) return;
      hidden = g.select_outputs(hidden);
    }
    if (!g.spec().is_moe_layer(layer)) {
      hidden = architecture.dense_feed_forward(g, layer, hidden);
      continue;
    }
    Routing routing = architecture.route(g, layer, hidden);
    if (options_.observe_routing) {
      routing.ids = ggml_cont(g.context(), routing.ids);
      ggml_set_output(routing.ids);
      kept.routing.push_back(routing.ids);
      kept.routing_layers.push_back(layer);
    }
    hidden = g.combine(routing, g.experts(routing, g.layer(layer).experts));
  }
  kept.result = hidden;
  if (!is_whole_model()) return;
  kept.sums_behind = sums_of(hidden);
  kept.result = g.head(hidden);
}

Result<CpuExecutor::KeptGraph*> CpuExecutor::graph_for(const GraphShape& shape) {
  for (const auto& kept : kept_) {
    if (kept->shape == shape) return kept.get();
  }
  HOTSET_TRY(KeptGraph graph, build(shape));
  auto built = std::make_unique<KeptGraph>(std::move(graph));
  HOTSET_RETURN_IF_ERROR(compute_.allocate(built->graph));
  ++n_graphs_built_;
  if (kept_.size() < kMaxKeptGraphs) {
    kept_.push_back(std::move(built));
    return kept_.back().get();
  }
  auto& oldest = *std::ranges::min_element(kept_, {}, [](const auto& k) { return k->last_use; });
  oldest = std::move(built);
  return oldest.get();
}

Status CpuExecutor::run(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
                        std::vector<float>& logits) {
  HOTSET_CHECK(!ubatch.empty());
  const GraphShape shape = UbatchInputs::shape_of(ubatch, kv_);
  inputs_.fill(ubatch, cells, model_.spec(), kv_);
  const size_t n_before = logits.size();
  logits.resize(n_before + static_cast<size_t>(shape.n_outputs * model_.spec().n_vocab));
  HOTSET_RETURN_IF_ERROR(run_into(shape, inputs_, logits.data() + n_before));
  return {};
}

namespace {

// Inputs that nothing in a graph reads have no memory.
template <typename T>
void set_tensor(ggml_tensor* tensor, const std::vector<T>& values) {
  if (tensor == nullptr || tensor->buffer == nullptr) return;
  HOTSET_CHECK(values.size() * sizeof(T) == ggml_nbytes(tensor));
  ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

}  // namespace

Result<Bytes> CpuExecutor::run_into(const GraphShape& shape, const UbatchInputs& inputs,
                                    float* out) {
  HOTSET_CHECK(shape.n_tokens <= options_.context.n_ubatch &&
               shape.n_outputs <= options_.context.n_outputs);
  HOTSET_TRY(KeptGraph* const kept, graph_for(shape));
  kept->last_use = ++n_runs_;
  set_tensor(kept->inputs.tokens, inputs.tokens);
  set_tensor(kept->inputs.positions, inputs.positions);
  set_tensor(kept->inputs.key_rows, inputs.key_rows);
  set_tensor(kept->inputs.value_rows, inputs.value_rows);
  set_tensor(kept->inputs.mask, inputs.mask);
  set_tensor(kept->inputs.output_rows, inputs.output_rows);
  HOTSET_RETURN_IF_ERROR(cpu_.compute(kept->graph));
  if (kept->result != nullptr) {
    ggml_backend_tensor_get(kept->result, out, 0, ggml_nbytes(kept->result));
  }
  hidden_sums_.clear();
  for (const ggml_tensor* sums : {kept->sums_before, kept->sums_behind}) {
    if (sums == nullptr) continue;
    const size_t n_before = hidden_sums_.size();
    hidden_sums_.resize(n_before + static_cast<size_t>(ggml_nelements(sums)));
    ggml_backend_tensor_get(sums, hidden_sums_.data() + n_before, 0, ggml_nbytes(sums));
  }
  report_routing(*kept);
  return kept->reads;
}

void CpuExecutor::report_routing(const KeptGraph& kept) {
  for (size_t i = 0; i < kept.routing.size(); ++i) {
    const ggml_tensor* ids = kept.routing[i];
    routed_ids_.resize(ggml_nelements(ids));
    ggml_backend_tensor_get(ids, routed_ids_.data(), 0, ggml_nbytes(ids));
    options_.observe_routing(kept.routing_layers[i], routed_ids_, ids->ne[1]);
  }
}

}  // namespace hotset::engine
