#include "hotset/engine/architecture.h"

#include <array>

#include "hotset/engine/arch/architectures.h"

namespace hotset::engine {
namespace {

// Every architecture, in the order in which users see them.
const std::array kArchitectures = {&qwen3moe_architecture};

}  // namespace

ggml_tensor* Architecture::dense_feed_forward(GraphBuilder& g, int64_t layer,
                                              ggml_tensor* hidden) const {
  const LayerWeights& w = g.layer(layer);
  ggml_tensor* x = g.rms_norm(hidden, w.ffn_norm);
  return g.add(g.feed_forward(x, w.dense), hidden);
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
                    name, known);
}

std::vector<std::string_view> architecture_names() {
  std::vector<std::string_view> names;
  for (const auto& get : kArchitectures) names.push_back(get().name());
  return names;
}

}  // namespace hotset::engine
