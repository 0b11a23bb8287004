// dots.llm1 (rednote-hilab, "dots.llm1 Technical Report", 2025): an RMS norm over each head of
// queries and keys, a dense first layer, and DeepSeek's router and shared experts.
#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

class Dots1 final : public Architecture {
 public:
  std::string_view name() const override { return "dots1"; }

  Result<model::ModelSpec> read_spec(const model::GgufFile& file) const override {
    HOTSET_TRY(model::ModelSpec spec, model::read_common_spec(file, name()));
    HOTSET_RETURN_IF_ERROR(model::require_experts(spec, file.name()));
    HOTSET_RETURN_IF_ERROR(model::read_router_keys(file, spec));
    return spec;
  }

  void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const override {
    add_typical_router_keys(options, 1, keys);
  }

  void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& w,
                       WeightList& list) const override {
    declare_head_norms(spec, layer, Presence::kRequired, w, list);
  }
};

}  // namespace

const Architecture& dots1_architecture() {
  static const Dots1 architecture;
  return architecture;
}

}  // namespace hotset::engine
