#include "hotset/engine/executor.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace hotset::engine {
namespace {

// Decode uses one shape per 256 positions, prefill two or three; more than this are rebuilt.
constexpr size_t kMaxKeptGraphs = 16;

// An upper bound of the nodes and leaves of a whole-model graph.
size_t max_graph_nodes(const model::ModelSpec& spec) {
  const auto per_layer = static_cast<size_t>(96 + 2 * spec.router.n_expert_used);
  return 256 + per_layer * static_cast<size_t>(spec.n_layer);
}

}  // namespace

CpuExecutor::CpuExecutor(const LoadedModel& model, KvCache& kv, device::Backend& cpu,
                         Options options)
    : model_(model),
      kv_(kv),
      cpu_(cpu),
      options_(std::move(options)),
      compute_(cpu.buffer_type()) {}

Result<std::unique_ptr<CpuExecutor>> CpuExecutor::create(const LoadedModel& model, KvCache& kv,
                                                         device::Backend& cpu, Options options) {
  if (options.n_ubatch < 1 || options.n_outputs < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "ubatch: found {} tokens and {} outputs, expected at least 1",
                      options.n_ubatch, options.n_outputs);
  }
  options.n_ubatch = std::min(options.n_ubatch, kv.cells().n_cells());
  options.n_outputs = std::min(options.n_outputs, options.n_ubatch);
  std::unique_ptr<CpuExecutor> executor(new CpuExecutor(model, kv, cpu, std::move(options)));
  HOTSET_RETURN_IF_ERROR(executor->reserve());
  return executor;
}

Status CpuExecutor::reserve() {
  // The need grows with each dimension, but not strictly: the allocator's packing differs. So the
  // largest of all sizes is measured, not assumed.
  KeptGraph largest;
  Bytes most;
  for (int32_t n_tokens = options_.n_ubatch;; n_tokens /= 2) {
    KeptGraph kept = build({.n_tokens = n_tokens,
                            .n_kv = kv_.cells().n_cells(),
                            .n_outputs = std::min(options_.n_outputs, n_tokens)});
    HOTSET_RETURN_IF_ERROR(check_supported(kept.graph));
    const Bytes needed = compute_.measure(kept.graph);
    if (needed > most) {
      most = needed;
      largest = std::move(kept);
    }
    if (n_tokens == 1) break;
  }
  return compute_.reserve(largest.graph);
}

CpuExecutor::KeptGraph CpuExecutor::build(const GraphShape& shape) const {
  const model::ModelSpec& spec = model_.spec();
  const Architecture& architecture = model_.architecture();
  const size_t n_nodes = max_graph_nodes(spec);
  KeptGraph kept;
  kept.shape = shape;
  kept.context.reset(ggml_init(
      {.mem_size = ggml_tensor_overhead() * n_nodes + ggml_graph_overhead_custom(n_nodes, false),
       .mem_buffer = nullptr,
       .no_alloc = true}));
  kept.graph = ggml_new_graph_custom(kept.context.get(), n_nodes, false);
  kept.inputs = make_inputs(kept.context.get(), spec, kv_, shape);
  GraphBuilder g(kept.context.get(), kept.graph, spec, model_.weights(), kv_, shape, kept.inputs);
  ggml_tensor* hidden = g.embed();
  for (int64_t layer = 0; layer < spec.n_layer; ++layer) {
    const bool last = layer + 1 == spec.n_layer;
    hidden = architecture.attention(g, layer, hidden);
    if (last) {
      // Behind the last attention only the rows whose logits are wanted matter; without any, the
      // keys and values that are already in the graph are all there is to compute.
      if (shape.n_outputs == 0) break;
      hidden = g.select_outputs(hidden);
    }
    if (!spec.is_moe_layer(layer)) {
      hidden = architecture.dense_feed_forward(g, layer, hidden);
      continue;
    }
    Routing routing = architecture.route(g, layer, hidden);
    if (options_.observe_routing) {
      routing.ids = ggml_cont(kept.context.get(), routing.ids);
      ggml_set_output(routing.ids);
      kept.routing.push_back(routing.ids);
      kept.routing_layers.push_back(layer);
    }
    hidden = g.combine(routing, g.experts(routing, g.layer(layer).experts));
  }
  if (shape.n_outputs > 0) {
    kept.logits = g.head(hidden);
    ggml_set_output(kept.logits);
    ggml_build_forward_expand(kept.graph, kept.logits);
  }
  return kept;
}

Status CpuExecutor::check_supported(const ggml_cgraph* graph) const {
  auto* nodes = const_cast<ggml_cgraph*>(graph);
  for (int i = 0; i < ggml_graph_n_nodes(nodes); ++i) {
    const ggml_tensor* node = ggml_graph_node(nodes, i);
    if (!cpu_.supports(node)) {
      return make_error(ErrorCode::kUnsupported,
                        "the CPU backend cannot compute {} ('{}', type {})", ggml_op_desc(node),
                        node->name, ggml_type_name(node->src[0] ? node->src[0]->type : node->type));
    }
  }
  return {};
}

Result<CpuExecutor::KeptGraph*> CpuExecutor::graph_for(const GraphShape& shape) {
  for (const auto& kept : kept_) {
    if (kept->shape == shape) return kept.get();
  }
  auto built = std::make_unique<KeptGraph>(build(shape));
  HOTSET_RETURN_IF_ERROR(check_supported(built->graph));
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
  HOTSET_CHECK(!ubatch.empty() && ubatch.size() == cells.size());
  HOTSET_CHECK(std::cmp_less_equal(ubatch.size(), options_.n_ubatch));
  const auto n_outputs = std::ranges::count_if(ubatch, &BatchToken::want_logits);
  HOTSET_CHECK(n_outputs <= options_.n_outputs);
  HOTSET_TRY(KeptGraph* const kept, graph_for({.n_tokens = static_cast<int32_t>(ubatch.size()),
                                               .n_kv = kv_.n_kv(),
                                               .n_outputs = static_cast<int32_t>(n_outputs)}));
  kept->last_use = ++n_runs_;
  set_inputs(*kept, ubatch, cells);
  HOTSET_RETURN_IF_ERROR(cpu_.compute(kept->graph));
  if (kept->logits != nullptr) {
    const size_t n_before = logits.size();
    logits.resize(n_before + static_cast<size_t>(ggml_nelements(kept->logits)));
    ggml_backend_tensor_get(kept->logits, logits.data() + n_before, 0, ggml_nbytes(kept->logits));
  }
  report_routing(*kept);
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

void CpuExecutor::set_inputs(const KeptGraph& kept, std::span<const BatchToken> ubatch,
                             std::span<const int32_t> cells) {
  const auto gather = [&](auto field) {
    int32s_.clear();
    for (const BatchToken& token : ubatch) int32s_.push_back(token.*field);
  };
  gather(&BatchToken::token);
  set_tensor(kept.inputs.tokens, int32s_);
  gather(&BatchToken::position);
  set_tensor(kept.inputs.positions, int32s_);
  if (kept.inputs.output_rows != nullptr) {
    int32s_.clear();
    for (size_t i = 0; i < ubatch.size(); ++i) {
      if (ubatch[i].want_logits) int32s_.push_back(static_cast<int32_t>(i));
    }
    set_tensor(kept.inputs.output_rows, int32s_);
  }

  int64s_.assign(cells.begin(), cells.end());
  set_tensor(kept.inputs.key_rows, int64s_);
  if (!kv_.options().flash_attention) {
    const model::AttentionSpec& a = model_.spec().attention;
    int64s_.clear();
    for (const int32_t cell : cells) {
      for (int64_t i = 0; i < a.n_head_kv * a.head_dim_v; ++i) {
        int64s_.push_back(i * kv_.cells().n_cells() + cell);
      }
    }
  }
  set_tensor(kept.inputs.value_rows, int64s_);

  const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0F);
  const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
  const int32_t n_kv = kept.shape.n_kv;
  mask_.resize(ubatch.size() * static_cast<size_t>(n_kv));
  ggml_fp16_t* out = mask_.data();
  for (const BatchToken& token : ubatch) {
    for (int32_t cell = 0; cell < n_kv; ++cell) {
      *out++ = kv_.cells().visible(cell, token.sequence, token.position) ? visible : hidden;
    }
  }
  set_tensor(kept.inputs.mask, mask_);
}

void CpuExecutor::report_routing(const KeptGraph& kept) {
  for (size_t i = 0; i < kept.routing.size(); ++i) {
    const ggml_tensor* ids = kept.routing[i];
    int32s_.resize(static_cast<size_t>(ggml_nelements(ids)));
    ggml_backend_tensor_get(ids, int32s_.data(), 0, ggml_nbytes(ids));
    options_.observe_routing(kept.routing_layers[i], int32s_, ids->ne[1]);
  }
}

}  // namespace hotset::engine
