// gpt-oss (OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025): biases everywhere, a learned
// sink beside each head's scores, every other layer sees a window only, YaRN, a clamped SwiGLU,
// softmax over the chosen experts.
#include <algorithm>

#include "hotset/engine/arch/architectures.h"
#include "hotset/model/spec_reader.h"

namespace hotset::engine {
namespace {

class GptOss final : public Architecture {
 public:
  std::string_view name() const override { return "gpt-oss"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    model::SpecReader reader(file, name());
    spec.attention.window = reader.require("attention.sliding_window", 1, spec.n_ctx_train);
    spec.attention.window_period = 2;
    HOTSET_RETURN_IF_ERROR(reader.status());
    spec.activation = model::Activation::kClampedSwiGlu;
    spec.router.normalise_weights = true;
    return spec;
  }

  // As gpt-oss-20b has them.
  void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const override {
    keys.set("attention.sliding_window", std::min<int64_t>(128, options.n_ctx_train));
    keys.set("rope.freq_base", 150000.0F);
    keys.set("rope.scaling.type", "yarn");
    keys.set("rope.scaling.factor", 32.0F);
    keys.set("rope.scaling.original_context_length", int64_t{4096});
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    declare_attention_biases(spec, layer, Presence::kRequired, w, list);
    list.add(&w.attn_output_bias, layer_tensor(layer, "attn_output.bias"), WeightUse::kVector,
             {spec.n_embd});
    list.add(&w.attn_sinks, layer_tensor(layer, "attn_sinks.weight"), WeightUse::kVector,
             {spec.attention.n_head});
    declare_expert_biases(spec, layer, w, list);
  }

  std::string_view ffn_norm_name() const override { return "post_attention_norm.weight"; }
};

}  // namespace

const Architecture& gpt_oss_architecture() {
  static const GptOss architecture;
  return architecture;
}

}  // namespace hotset::engine
