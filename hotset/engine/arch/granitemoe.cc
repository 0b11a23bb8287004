// Granite MoE (IBM, "Granite 3.0 Language Models", 2024): a Llama whose embeddings, attention
// scores, residuals and logits are scaled by constants; later ones have a shared expert.
#include "hotset/engine/arch/architectures.h"
#include "hotset/model/spec_reader.h"

namespace hotset::engine {
namespace {

class GraniteMoe final : public Architecture {
 public:
  std::string_view name() const override { return "granitemoe"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    // Files have the experts' width in the key of the dense one, some in both.
    if (spec.n_ff_expert == 0) spec.n_ff_expert = spec.n_ff;
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    HOTSET_RETURN_IF_ERROR(model::read_shared_width(file, spec));
    model::SpecReader reader(file, name());
    spec.embedding_scale = reader.find("embedding_scale", 1.0F);
    spec.residual_scale = reader.find("residual_scale", 1.0F);
    spec.attention.scale = reader.find("attention.scale", spec.attention.scale);
    // What the logits are divided by.
    spec.logit_scale = 1.0F / reader.find("logit_scale", 1.0F);
    if (!reader.find("rope.scaling.finetuned", true)) {
      reader.fail(make_error(ErrorCode::kUnsupported,
                             "{}: key '{}': found false (no positions), expected true or nothing",
                             file.name(), reader.key_name("rope.scaling.finetuned")));
    }
    HOTSET_RETURN_IF_ERROR(reader.status());
    HOTSET_RETURN_IF_ERROR(model::check_spec(spec, file.name()));
    spec.rope.interleaved = true;
    spec.router.normalise_weights = true;
    return spec;
  }

  // As Granite-3.0-1B-A400M has them.
  void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const override {
    keys.set("feed_forward_length", options.n_ff_expert);
    keys.set("embedding_scale", 12.0F);
    keys.set("residual_scale", 0.22F);
    keys.set("attention.scale", 1.0F / 64.0F);
    keys.set("logit_scale", 6.0F);
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    list.add(&w.attn_output_bias, layer_tensor(layer, "attn_output.bias"), WeightUse::kVector,
             {spec.n_embd}, Presence::kOptional);
  }
};

}  // namespace

const Architecture& granitemoe_architecture() {
  static const GraniteMoe architecture;
  return architecture;
}

}  // namespace hotset::engine
