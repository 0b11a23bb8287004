// DeepSeek-V2 and V3 (DeepSeek-AI, "DeepSeek-V2" and "DeepSeek-V3 Technical Report", 2024), and
// with the same parts Kimi-K2 and GLM-4.7-Flash: latent attention with interleaved RoPE, dense
// first layers, a choice of experts limited to the best groups, shared experts.
//
// Files have one of two forms. In the newer one the matrices that decompress keys and values are
// apart (attn_k_b, attn_v_b) and the KV memory holds the latent vectors; in the older one they are
// one matrix (attn_kv_b) and it holds keys and values of all heads.
#include <cmath>

#include "hotset/engine/arch/architectures.h"
#include "hotset/model/spec_reader.h"

namespace hotset::engine {
namespace {

// YaRN scales the rotated dimensions by 1 + 0.1 ln(factor). These models scale all scores instead,
// by the square of 1 + m ln(factor), where files give m, "yarn_log_multiplier".
void apply_log_multiplier(float multiplier, model::ModelSpec& spec) {
  const float log_factor = std::log(spec.rope.factor);
  if (spec.rope.scaling != model::RopeScaling::kYarn || multiplier == 0.0F) return;
  if (log_factor <= 0.0F) return;
  spec.rope.attn_factor /= 1.0F + 0.1F * log_factor;
  const float all_scale = 1.0F + multiplier * log_factor;
  spec.attention.scale *= all_scale * all_scale;
}

class DeepSeek2 final : public Architecture {
 public:
  std::string_view name() const override { return "deepseek2"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    HOTSET_RETURN_IF_ERROR(model::read_router_keys(file, spec));
    HOTSET_RETURN_IF_ERROR(model::read_latent_keys(file, spec));
    model::SpecReader reader(file, name());
    if (reader.find("attention.temperature_scale", 0.0F) != 0.0F) {
      reader.fail(make_error(ErrorCode::kUnsupported,
                             "{}: key '{}': found a scale by position, expected none", file.name(),
                             reader.key_name("attention.temperature_scale")));
    }
    spec.rope.interleaved = true;
    apply_log_multiplier(reader.find("rope.scaling.yarn_log_multiplier", 0.0F), spec);
    HOTSET_RETURN_IF_ERROR(reader.status());
    HOTSET_RETURN_IF_ERROR(model::check_spec(spec, file.name()));
    return spec;
  }

  // In the proportions of DeepSeek-V3, by the width of a head without its rotated part.
  void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const override {
    const int64_t n_rotated = options.head_dim / 4 * 2;
    const int64_t n_latent = 4 * options.head_dim;
    keys.set("attention.q_lora_rank", 12 * options.head_dim);
    keys.set("attention.kv_lora_rank", n_latent);
    keys.set("attention.head_count_kv", int64_t{1});
    keys.set("attention.key_length", n_latent + n_rotated);
    keys.set("attention.value_length", n_latent);
    keys.set("attention.key_length_mla", options.head_dim + n_rotated);
    keys.set("attention.value_length_mla", options.head_dim);
    keys.set("rope.dimension_count", n_rotated);
    keys.set("rope.freq_base", 10000.0F);
    keys.set("rope.scaling.type", "yarn");
    keys.set("rope.scaling.factor", 40.0F);
    keys.set("rope.scaling.original_context_length", int64_t{4096});
    keys.set("rope.scaling.yarn_log_multiplier", 0.1F);
    add_typical_router_keys(options, 8, keys);
  }

  void declare_attention_weights(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                                 WeightList& list) const override {
    declare_latent_attention(spec, layer, w, list);
  }

  QueryKeyValue query_key_value(GraphBuilder& g, const LayerWeights& w,
                                ggml_tensor* x) const override {
    return g.project_latent(x, w);
  }
};

}  // namespace

const Architecture& deepseek2_architecture() {
  static const DeepSeek2 architecture;
  return architecture;
}

}  // namespace hotset::engine
