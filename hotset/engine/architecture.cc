#include "hotset/engine/architecture.h"

#include <array>

#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

// Every architecture, in the order in which users see them.
const std::array kArchitectures = {&qwen3moe_architecture, &qwen2moe_architecture,
                                   &olmoe_architecture, &llama_architecture};

}  // namespace

void Architecture::declare_weights(const model::ModelSpec& spec, ModelWeights& weights,
                                   WeightList& list) const {
  declare_decoder(spec, weights, list);
  for (int64_t layer = 0; layer < spec.n_layer; ++layer) {
    LayerWeights& w = weights.layers[static_cast<size_t>(layer)];
    declare_attention(spec, layer, w, list);
    declare_special(spec, layer, w, list);
    declare_experts(spec, layer, w, list);
  }
}

void Architecture::declare_special(const model::ModelSpec&, int64_t, LayerWeights&,
                                   WeightList&) const {}

ggml_tensor* Architecture::attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const {
  const LayerWeights& w = g.layer(layer);
  const QueryKeyValue qkv = position(g, w, g.project(g.rms_norm(hidden, w.attn_norm), w));
  return g.add(g.attend(layer, qkv, g.inputs().mask, w.attn_output), hidden);
}

QueryKeyValue Architecture::position(GraphBuilder& g, const LayerWeights& w,
                                     QueryKeyValue qkv) const {
  qkv.query = g.rope(qkv.query, w.rope_factors);
  qkv.key = g.rope(qkv.key, w.rope_factors);
  return qkv;
}

Routing Architecture::route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const {
  const LayerWeights& w = g.layer(layer);
  return g.route(hidden, g.rms_norm(hidden, w.ffn_norm), w.router);
}

ggml_tensor* Architecture::dense_feed_forward(GraphBuilder& g, int64_t layer,
                                              ggml_tensor* hidden) const {
  const LayerWeights& w = g.layer(layer);
  ggml_tensor* x = g.rms_norm(hidden, w.ffn_norm);
  return g.add(g.feed_forward(x, w.dense), hidden);
}

const Architecture* find_architecture(std::string_view name) {
  for (const auto& get : kArchitectures) {
    if (get().name() == name) return &get();
  }
  return nullptr;
}

Result<const Architecture*> architecture_of(const model::GgufFile& file) {
  HOTSET_TRY(const std::string name, model::read_architecture(file));
  if (const Architecture* found = find_architecture(name)) return found;
  std::string known;
  for (const std::string_view each : architecture_names()) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", each);
  }
  return make_error(ErrorCode::kUnsupported,
                    "{}: key 'general.architecture': found '{}', expected one of: {}", file.name(),
                    name, known);
}

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const auto& get : kArchitectures) names.push_back(get().name());
  return names;
}

}  // namespace hotset::engine
