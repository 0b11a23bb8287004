// GLM-4.5 to 4.7 (Zhipu AI, "GLM-4.5: Agentic, Reasoning, and Coding Foundation Models", 2025):
// RoPE over a part of each head, in larger models an RMS norm over each head, a dense first layer,
// sigmoid router whose choice a bias corrects, a shared expert.
#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

class Glm4Moe final : public Architecture {
 public:
  std::string_view name() const override { return "glm4moe"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    HOTSET_RETURN_IF_ERROR(model::read_router_keys(file, spec));
    return spec;
  }

  // As GLM-4.5 has them.
  void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const override {
    keys.set("rope.dimension_count", options.head_dim / 4 * 2);
    add_typical_router_keys(options, 1, keys);
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    declare_attention_biases(spec, layer, Presence::kUsual, w, list);
    declare_head_norms(spec, layer, Presence::kUsual, w, list);
  }

  std::string_view ffn_norm_name() const override { return "post_attention_norm.weight"; }
};

}  // namespace

const Architecture& glm4moe_architecture() {
  static const Glm4Moe architecture;
  return architecture;
}

}  // namespace hotset::engine
