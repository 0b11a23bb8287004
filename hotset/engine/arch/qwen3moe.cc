// Qwen3-MoE (Qwen team, "Qwen3 Technical Report", 2025): grouped-query attention with an RMS norm
// over each head of queries and keys before RoPE, softmax router, weights of the chosen experts
// normalised.
#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

class Qwen3Moe final : public Architecture {
 public:
  std::string_view name() const override { return "qwen3moe"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    spec.router.normalise_weights = true;
    return spec;
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    declare_head_norms(spec, layer, Presence::kRequired, w, list);
  }
};

}  // namespace

const Architecture& qwen3moe_architecture() {
  static const Qwen3Moe architecture;
  return architecture;
}

}  // namespace hotset::engine
