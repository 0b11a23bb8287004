// Llama (Touvron et al., 2023) and, with experts, Mixtral (Jiang et al., "Mixtral of Experts",
// 2024): interleaved RoPE, softmax router, weights of the chosen experts normalised.
#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

class Llama final : public Architecture {
 public:
  std::string_view name() const override { return "llama"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    // Files have the experts' width in the key of the dense one.
    if (spec.n_ff_expert == 0) spec.n_ff_expert = spec.n_ff;
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    spec.rope.interleaved = true;
    spec.router.normalise_weights = true;
    return spec;
  }

  void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const override {
    keys.set("feed_forward_length", options.n_ff_expert);
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    declare_attention_biases(spec, layer, Presence::kOptional, w, list);
    list.add(&w.rope_factors, "rope_freqs.weight", WeightUse::kVector, {spec.rope.n_dims / 2},
             Presence::kOptional);
    list.belongs_to(layer);
  }
};

}  // namespace

const Architecture& llama_architecture() {
  static const Llama architecture;
  return architecture;
}

}  // namespace hotset::engine
