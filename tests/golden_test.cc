// Logits, routing and greedy tokens against shared/golden/logits (its README says where they come
// from), and for each golden the proof that a bug would be seen: seeded mutations of the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "hotset/engine/architecture.h"
#include "hotset/engine/engine.h"
#include "tests/golden.h"
#include "tests/tolerances.h"

namespace hotset::test {
namespace {

using engine::GraphBuilder;
using engine::LayerWeights;
using engine::QueryKeyValue;
using engine::Routing;
using model::ModelSpec;

// An architecture with one part replaced.
class Mutant : public engine::Architecture {
 public:
  explicit Mutant(const engine::Architecture& original) : original_(original) {}
  std::string_view name() const override { return original_.name(); }
  Result<ModelSpec> read_spec(const model::GgufFile& file) const override {
    return original_.read_spec(file);
  }
  void declare_weights(const ModelSpec& spec, engine::ModelWeights& weights,
                       engine::WeightList& list) const override {
    original_.declare_weights(spec, weights, list);
  }
  QueryKeyValue position(GraphBuilder& g, const LayerWeights& w, QueryKeyValue qkv) const override {
    return original_.position(g, w, qkv);
  }
  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    return original_.route(g, layer, hidden);
  }

 private:
  const engine::Architecture& original_;
};

class NoMask final : public Mutant {
 public:
  using Mutant::Mutant;
  ggml_tensor* attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    const LayerWeights& w = g.layer(layer);
    const QueryKeyValue qkv = position(g, w, g.project(g.rms_norm(hidden, w.attn_norm), w));
    return g.add(g.attend(layer, qkv, nullptr, w.attn_output), hidden);
  }
};

class NoAttentionResidual final : public Mutant {
 public:
  using Mutant::Mutant;
  ggml_tensor* attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    const LayerWeights& w = g.layer(layer);
    const QueryKeyValue qkv = position(g, w, g.project(g.rms_norm(hidden, w.attn_norm), w));
    return g.attend(layer, qkv, g.inputs().mask, w.attn_output);
  }
};

class NoAttentionBias final : public Mutant {
 public:
  using Mutant::Mutant;
  ggml_tensor* attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    LayerWeights w = g.layer(layer);
    w.attn_q_bias = w.attn_k_bias = w.attn_v_bias = nullptr;
    const QueryKeyValue qkv = position(g, w, g.project(g.rms_norm(hidden, w.attn_norm), w));
    return g.add(g.attend(layer, qkv, g.inputs().mask, w.attn_output), hidden);
  }
};

class NoQueryKeyNorm final : public Mutant {
 public:
  using Mutant::Mutant;
  QueryKeyValue position(GraphBuilder& g, const LayerWeights&, QueryKeyValue qkv) const override {
    qkv.query = g.rope(qkv.query);
    qkv.key = g.rope(qkv.key);
    return qkv;
  }
};

class NoFeedForwardNorm final : public Mutant {
 public:
  using Mutant::Mutant;
  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    Routing routing = g.route(hidden, hidden, g.layer(layer).router);
    routing.shared = Mutant::route(g, layer, hidden).shared;
    return routing;
  }
};

class NoSharedExpert final : public Mutant {
 public:
  using Mutant::Mutant;
  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    Routing routing = Mutant::route(g, layer, hidden);
    routing.shared = nullptr;
    return routing;
  }
};

class UngatedSharedExpert final : public Mutant {
 public:
  using Mutant::Mutant;
  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    Routing routing = Mutant::route(g, layer, hidden);
    routing.shared = g.feed_forward(routing.x, g.layer(layer).shared);
    return routing;
  }
};

// The mutants of parts that the architecture has.
std::map<std::string, std::unique_ptr<Mutant>> mutants_of(const engine::Architecture& original,
                                                          const ModelSpec& spec) {
  engine::ModelWeights weights;
  engine::WeightList list;
  original.declare_weights(spec, weights, list);
  const auto has = [&](std::string_view part) {
    return std::ranges::any_of(list.declarations(),
                               [&](const auto& w) { return w.name.ends_with(part); });
  };
  std::map<std::string, std::unique_ptr<Mutant>> mutants;
  mutants["no mask"] = std::make_unique<NoMask>(original);
  mutants["no residual"] = std::make_unique<NoAttentionResidual>(original);
  mutants["no FFN norm"] = std::make_unique<NoFeedForwardNorm>(original);
  if (has("attn_q_norm.weight")) mutants["no QK norm"] = std::make_unique<NoQueryKeyNorm>(original);
  if (spec.architecture == "qwen2moe") {
    mutants["no biases"] = std::make_unique<NoAttentionBias>(original);
  }
  if (has("shexp.weight")) {
    mutants["no shared expert"] = std::make_unique<NoSharedExpert>(original);
  }
  if (has("ffn_gate_inp_shexp.weight")) {
    mutants["ungated shared expert"] = std::make_unique<UngatedSharedExpert>(original);
  }
  return mutants;
}

TEST_P(LogitsGolden, LogitsRoutingAndGreedyTokensOnTheCpu) {
  const GoldenRun run = run_golden(description(), golden_);
  const double error = nmse(run.logits, golden_.logits);
  RecordProperty("nmse", std::to_string(error));
  EXPECT_LT(error, kCpuLogitsNmse);
  EXPECT_EQ(run.greedy, golden_.greedy);
  EXPECT_EQ(run.routing, golden_.routing);
}

TEST_P(LogitsGolden, LogitsRoutingAndGreedyTokensOnTheEmulatedDevice) {
  const GoldenRun run = run_golden(description(), golden_, "emu:clock=virtual");
  EXPECT_LT(nmse(run.logits, golden_.logits), kCpuLogitsNmse);
  EXPECT_EQ(run.greedy, golden_.greedy);
  EXPECT_EQ(run.routing, golden_.routing);
}

using Mutation = std::function<void(ModelSpec&)>;

const std::map<std::string, Mutation>& spec_mutations() {
  static const std::map<std::string, Mutation> mutations = {
      {"another RoPE base", [](ModelSpec& s) { s.rope.freq_base *= 0.5F; }},
      {"no RoPE",
       [](ModelSpec& s) {
         s.rope.scaling = model::RopeScaling::kLinear;
         s.rope.factor = 1e9F;
       }},
      {"RoPE in the other pairing", [](ModelSpec& s) { s.rope.interleaved = !s.rope.interleaved; }},
      {"partial RoPE", [](ModelSpec& s) { s.rope.n_dims /= 2; }},
      {"YaRN",
       [](ModelSpec& s) {
         s.rope.scaling = model::RopeScaling::kYarn;
         s.rope.factor = 4.0F;
         s.rope.n_ctx_original = 16;
       }},
      {"experts times zero", [](ModelSpec& s) { s.router.weights_scale = 0.0F; }},
      {"weights scaled", [](ModelSpec& s) { s.router.weights_scale = 1.5F; }},
      {"weights not normalised",
       [](ModelSpec& s) { s.router.normalise_weights = !s.router.normalise_weights; }},
      {"another gate", [](ModelSpec& s) { s.router.gating = model::Gating::kSigmoid; }},
      {"one expert fewer", [](ModelSpec& s) { --s.router.n_expert_used; }},
      {"another epsilon", [](ModelSpec& s) { s.norm_eps = 0.1F; }},
  };
  return mutations;
}

TEST_P(LogitsGolden, SeededBugsAreSeen) {
  for (const auto& [what, mutate] : spec_mutations()) {
    engine::ModelDescription mutated = description();
    mutate(mutated.spec);
    EXPECT_GT(nmse(run_golden(std::move(mutated), golden_).logits, golden_.logits), kMutationNmse)
        << what;
  }
  const engine::ModelDescription original = description();
  for (const auto& [what, mutant] : mutants_of(*original.architecture, original.spec)) {
    engine::ModelDescription mutated = description();
    mutated.architecture = mutant.get();
    EXPECT_GT(nmse(run_golden(std::move(mutated), golden_).logits, golden_.logits), kMutationNmse)
        << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, LogitsGolden, golden_architectures(),
                         [](const auto& architecture) { return architecture.param; });

}  // namespace
}  // namespace hotset::test
