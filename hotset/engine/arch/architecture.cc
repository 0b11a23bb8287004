#include "hotset/engine/arch/architecture.h"

#include <algorithm>
#include <array>

#include "hotset/base/printable.h"
#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

// Every architecture, in the order in which users see them.
const std::array kArchitectures = {
    &qwen3moe_architecture,   &qwen2moe_architecture,  &olmoe_architecture,
    &llama_architecture,      &gpt_oss_architecture,   &glm4moe_architecture,
    &granitemoe_architecture, &deepseek2_architecture, &dots1_architecture};

}  // namespace

void Architecture::add_typical_keys(const RandomModelOptions&, KeyWriter&) const {}

void Architecture::declare_weights(const model::ModelSpec& spec, ModelWeights& weights,
                                   WeightList& list) const {
  declare_decoder(spec, weights, list);
  for (int64_t layer = 0; layer < spec.n_layer; ++layer) {
    LayerWeights& w = weights.layers[layer];
    declare_attention_weights(spec, layer, w, list);
    list.add(&w.ffn_norm, layer_tensor(layer, ffn_norm_name()), WeightUse::kVector, {spec.n_embd});
    declare_special(spec, layer, w, list);
    if (!spec.is_moe_layer(layer)) {
      declare_feed_forward(spec, layer, spec.n_ff, "", w.dense, list);
      continue;
    }
    declare_experts(spec, layer, w, list);
    if (spec.n_ff_shared > 0) {
      declare_feed_forward(spec, layer, spec.n_ff_shared, "_shexp", w.shared, list);
    }
  }
}

void Architecture::declare_attention_weights(const model::ModelSpec& spec, int64_t layer,
                                             LayerWeights& weights, WeightList& list) const {
  declare_attention(spec, layer, weights, list);
}

void Architecture::declare_special(const model::ModelSpec&, int64_t, LayerWeights&,
                                   WeightList&) const {}

ggml_tensor* Architecture::attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const {
  const LayerWeights& w = g.layer(layer);
  const QueryKeyValue qkv = query_key_value(g, w, g.rms_norm(hidden, w.attn_norm));
  return g.add_residual(g.attend(layer, qkv, g.mask(layer), w), hidden);
}

QueryKeyValue Architecture::query_key_value(GraphBuilder& g, const LayerWeights& w,
                                            ggml_tensor* x) const {
  return position(g, w, g.project(x, w));
}

QueryKeyValue Architecture::position(GraphBuilder& g, const LayerWeights& w,
                                     QueryKeyValue qkv) const {
  const auto normed = [&](ggml_tensor* x, ggml_tensor* weight) {
    return weight == nullptr ? x : g.rms_norm(x, weight);
  };
  qkv.query = g.rope(normed(qkv.query, w.attn_q_norm), w.rope_factors);
  qkv.key = g.rope(normed(qkv.key, w.attn_k_norm), w.rope_factors);
  return qkv;
}

Routing Architecture::route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const {
  const LayerWeights& w = g.layer(layer);
  Routing routing = g.route(hidden, g.rms_norm(hidden, w.ffn_norm), w);
  if (w.shared.present()) routing.shared = g.feed_forward(routing.x, w.shared);
  return routing;
}

ggml_tensor* Architecture::dense_feed_forward(GraphBuilder& g, int64_t layer,
                                              ggml_tensor* hidden) const {
  const LayerWeights& w = g.layer(layer);
  ggml_tensor* x = g.rms_norm(hidden, w.ffn_norm);
  return g.add_residual(g.feed_forward(x, w.dense), hidden);
}

void add_typical_router_keys(const RandomModelOptions& options, int64_t max_groups,
                             KeyWriter& keys) {
  keys.set("leading_dense_block_count", int64_t{options.n_layer > 1 ? 1 : 0});
  keys.set("expert_shared_count", int64_t{1});
  keys.set("expert_gating_func", int64_t{2});
  keys.set("expert_weights_norm", true);
  keys.set("expert_weights_scale", 2.5F);
  const auto fits = [&](int64_t n_group) {
    return options.n_expert % n_group == 0 && options.n_expert / n_group >= 2 &&
           options.n_expert / n_group * (n_group / 2) >= options.n_expert_used;
  };
  while (max_groups > 1 && !fits(max_groups)) max_groups /= 2;
  keys.set("expert_group_count", max_groups);
  keys.set("expert_group_used_count", std::max<int64_t>(1, max_groups / 2));
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
                    printable(name), known);
}

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const auto& get : kArchitectures) names.push_back(get().name());
  return names;
}

}  // namespace hotset::engine
