// OLMoE (Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models", 2024): an RMS norm
// over all heads of queries and of keys together, routing weights as the softmax over all experts
// gave them.
#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

class Olmoe final : public Architecture {
 public:
  std::string_view name() const override { return "olmoe"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    // Files have the experts' width in the key of the dense one.
    if (spec.n_ff_expert == 0) spec.n_ff_expert = spec.n_ff;
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    return spec;
  }

  void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const override {
    keys.set("feed_forward_length", options.n_ff_expert);
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    const model::AttentionSpec& a = spec.attention;
    list.add(&w.attn_q_norm, layer_tensor(layer, "attn_q_norm.weight"), WeightUse::kVector,
             {a.n_head * a.head_dim_k});
    list.add(&w.attn_k_norm, layer_tensor(layer, "attn_k_norm.weight"), WeightUse::kVector,
             {a.n_head_kv * a.head_dim_k});
  }

  QueryKeyValue position(GraphBuilder& g, const LayerWeights& w, QueryKeyValue qkv) const override {
    qkv.query = g.rope(g.rms_norm_heads(qkv.query, w.attn_q_norm));
    qkv.key = g.rope(g.rms_norm_heads(qkv.key, w.attn_k_norm));
    return qkv;
  }
};

}  // namespace

const Architecture& olmoe_architecture() {
  static const Olmoe architecture;
  return architecture;
}

}  // namespace hotset::engine
