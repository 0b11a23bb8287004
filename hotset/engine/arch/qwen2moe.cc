// Qwen2-MoE and Qwen1.5-MoE (Qwen team, "Qwen2 Technical Report", 2024): biases on queries, keys
// and values; a shared expert of its own width whose result each token weights by a sigmoid gate;
// routing weights as the softmax over all experts gave them.
#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

class Qwen2Moe final : public Architecture {
 public:
  std::string_view name() const override { return "qwen2moe"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    HOTSET_RETURN_IF_ERROR(model::read_shared_width(file, spec));
    // Files without the key have a shared expert of the dense width.
    if (spec.n_ff_shared == 0) spec.n_ff_shared = spec.n_ff;
    if (spec.n_ff_shared == 0) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: key '{}.expert_shared_feed_forward_length': found nothing, expected "
                        "the width of the shared expert",
                        file.name(), name());
    }
    return spec;
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    declare_attention_biases(spec, layer, Presence::kRequired, w, list);
    list.add(&w.shared_gate, layer_tensor(layer, "ffn_gate_inp_shexp.weight"), WeightUse::kMatrix,
             {spec.n_embd});
  }

  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    Routing routing = Architecture::route(g, layer, hidden);
    routing.shared = g.gate_shared(routing, g.layer(layer));
    return routing;
  }
};

}  // namespace

const Architecture& qwen2moe_architecture() {
  static const Qwen2Moe architecture;
  return architecture;
}

}  // namespace hotset::engine
