// Logits, routing and greedy tokens against shared/golden/logits (its README says where they come
// from), and for each golden the proof that a bug would be seen: seeded mutations of the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "hotset/engine/arch/architecture.h"
#include "hotset/engine/run/engine.h"
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
  QueryKeyValue query_key_value(GraphBuilder& g, const LayerWeights& w,
                                ggml_tensor* x) const override {
    return original_.query_key_value(g, w, x);
  }
  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    return original_.route(g, layer, hidden);
  }
  ggml_tensor* dense_feed_forward(GraphBuilder& g, int64_t layer,
                                  ggml_tensor* hidden) const override {
    return original_.dense_feed_forward(g, layer, hidden);
  }

 private:
  const engine::Architecture& original_;
};

// Does not know of the weights whose name contains `part`; what they do is left out.
class Without final : public Mutant {
 public:
  Without(const engine::Architecture& original, std::string part)
      : Mutant(original), part_(std::move(part)) {}
  void declare_weights(const ModelSpec& spec, engine::ModelWeights& weights,
                       engine::WeightList& list) const override {
    engine::WeightList all;
    Mutant::declare_weights(spec, weights, all);
    for (const engine::WeightDeclaration& w : all.declarations()) {
      if (!w.name.contains(part_)) list.add(w);
    }
  }

 private:
  std::string part_;
};

class NoMask final : public Mutant {
 public:
  using Mutant::Mutant;
  ggml_tensor* attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    const LayerWeights& w = g.layer(layer);
    const QueryKeyValue qkv = query_key_value(g, w, g.rms_norm(hidden, w.attn_norm));
    return g.add_residual(g.attend(layer, qkv, nullptr, w), hidden);
  }
};

class NoAttentionResidual final : public Mutant {
 public:
  using Mutant::Mutant;
  ggml_tensor* attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    const LayerWeights& w = g.layer(layer);
    const QueryKeyValue qkv = query_key_value(g, w, g.rms_norm(hidden, w.attn_norm));
    return g.attend(layer, qkv, g.mask(layer), w);
  }
};

class NoQueryKeyNorm final : public Mutant {
 public:
  using Mutant::Mutant;
  QueryKeyValue query_key_value(GraphBuilder& g, const LayerWeights& w,
                                ggml_tensor* x) const override {
    QueryKeyValue qkv = g.project(x, w);
    qkv.query = g.rope(qkv.query);
    qkv.key = g.rope(qkv.key);
    return qkv;
  }
};

class NoFeedForwardNorm final : public Mutant {
 public:
  using Mutant::Mutant;
  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    Routing routing = g.route(hidden, hidden, g.layer(layer));
    routing.shared = Mutant::route(g, layer, hidden).shared;
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

class NoSharedExpert final : public Mutant {
 public:
  using Mutant::Mutant;
  Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const override {
    Routing routing = Mutant::route(g, layer, hidden);
    routing.shared = nullptr;
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
    return std::ranges::any_of(list.declarations(), [&](const auto& w) {
      return w.presence != engine::Presence::kOptional && w.name.contains(part);
    });
  };
  std::map<std::string, std::unique_ptr<Mutant>> mutants;
  mutants["no mask"] = std::make_unique<NoMask>(original);
  mutants["no residual"] = std::make_unique<NoAttentionResidual>(original);
  mutants["no FFN norm"] = std::make_unique<NoFeedForwardNorm>(original);
  if (has("attn_q_norm.weight")) mutants["no QK norm"] = std::make_unique<NoQueryKeyNorm>(original);
  if (has("shexp.weight")) {
    mutants["no shared expert"] = std::make_unique<NoSharedExpert>(original);
  }
  if (has("ffn_gate_inp_shexp.weight")) {
    mutants["ungated shared expert"] = std::make_unique<UngatedSharedExpert>(original);
  }
  for (const std::string part :
       {"attn_q.bias", "attn_v.bias", "attn_output.bias", "attn_sinks", "ffn_gate_inp.bias",
        "ffn_gate_exps.bias", "ffn_up_exps.bias", "ffn_down_exps.bias", "exp_probs_b"}) {
    if (has(part)) mutants["without " + part] = std::make_unique<Without>(original, part);
  }
  return mutants;
}

TEST_P(LogitsGolden, LogitsRoutingAndGreedyTokensOnTheCpu) {
  const GoldenRun run = run_golden(description(), golden_);
  const double error = nmse(run.logits, golden_.logits);
  RecordProperty("nmse", fmt::format("{:.1e}", error));
  EXPECT_LT(error, cpu_logits_nmse());
  EXPECT_EQ(run.greedy, golden_.greedy);
  EXPECT_EQ(run.routing, golden_.routing);
}

TEST_P(LogitsGolden, LogitsRoutingAndGreedyTokensOnTheEmulatedDevice) {
  const GoldenRun run = run_golden(description(), golden_, "emu:clock=virtual");
  EXPECT_LT(nmse(run.logits, golden_.logits), cpu_logits_nmse());
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
      {"other YaRN",
       [](ModelSpec& s) {
         s.rope.scaling = model::RopeScaling::kYarn;
         s.rope.factor = 4.0F;
         s.rope.n_ctx_original = 16;
       }},
      {"experts times zero", [](ModelSpec& s) { s.router.weights_scale = 0.0F; }},
      {"weights scaled", [](ModelSpec& s) { s.router.weights_scale *= 1.5F; }},
      {"weights not normalised",
       [](ModelSpec& s) { s.router.normalise_weights = !s.router.normalise_weights; }},
      {"another gate",
       [](ModelSpec& s) {
         s.router.gating = s.router.gating == model::Gating::kSigmoid ? model::Gating::kSoftmax
                                                                      : model::Gating::kSigmoid;
       }},
      {"one expert fewer", [](ModelSpec& s) { --s.router.n_expert_used; }},
      {"another epsilon", [](ModelSpec& s) { s.norm_eps = 0.1F; }},
      {"another attention scale", [](ModelSpec& s) { s.attention.scale *= 1.2F; }},
      {"another activation",
       [](ModelSpec& s) {
         s.activation = s.activation == model::Activation::kSwiGlu
                            ? model::Activation::kClampedSwiGlu
                            : model::Activation::kSwiGlu;
       }},
      {"another embedding scale", [](ModelSpec& s) { s.embedding_scale *= 1.5F; }},
      {"another residual scale", [](ModelSpec& s) { s.residual_scale *= 1.2F; }},
      {"another logit scale", [](ModelSpec& s) { s.logit_scale *= 1.1F; }},
  };
  return mutations;
}

// Of features that only some models have: applied where `applies`.
struct SpecialMutation {
  std::function<bool(const ModelSpec&)> applies;
  Mutation mutate;
};

const std::map<std::string, SpecialMutation>& special_mutations() {
  const auto has_window = [](const ModelSpec& s) { return s.attention.window > 0; };
  const auto has_yarn = [](const ModelSpec& s) {
    return s.rope.scaling == model::RopeScaling::kYarn;
  };
  const auto has_groups = [](const ModelSpec& s) { return s.router.limits_groups(); };
  // Of latent attention the rotated dimensions are a part of their own.
  const auto is_latent = [](const ModelSpec& s) { return s.attention.latent.n_latent > 0; };
  const auto is_whole = [=](const ModelSpec& s) { return !is_latent(s); };
  const auto is_partial = [=](const ModelSpec& s) {
    return !is_latent(s) && s.rope.n_dims < s.attention.head_dim_k;
  };
  static const std::map<std::string, SpecialMutation> mutations = {
      {"partial RoPE", {is_whole, [](ModelSpec& s) { s.rope.n_dims /= 2; }}},
      {"RoPE over whole heads",
       {is_partial, [](ModelSpec& s) { s.rope.n_dims = s.attention.head_dim_k; }}},
      {"no window", {has_window, [](ModelSpec& s) { s.attention.window = 0; }}},
      {"a window one longer", {has_window, [](ModelSpec& s) { ++s.attention.window; }}},
      {"windows in the other layers",
       {has_window, [](ModelSpec& s) { s.attention.window_period = 1 << 20; }}},
      {"no YaRN",
       {has_yarn,
        [](ModelSpec& s) {
          s.rope.scaling = model::RopeScaling::kNone;
          s.rope.factor = 1.0F;
        }}},
      {"another YaRN attention factor",
       {has_yarn, [](ModelSpec& s) { s.rope.attn_factor *= 1.2F; }}},
      {"no groups", {has_groups, [](ModelSpec& s) { s.router.n_group_used = s.router.n_group; }}},
      {"groups by their best expert",
       {has_groups, [](ModelSpec& s) { s.router.n_group_best = 1; }}},
  };
  return mutations;
}

TEST_P(LogitsGolden, SeededBugsAreSeen) {
  const engine::ModelDescription original = description();
  std::map<std::string, Mutation> mutations = spec_mutations();
  for (const auto& [what, special] : special_mutations()) {
    if (special.applies(original.spec)) mutations[what] = special.mutate;
  }
  for (const auto& [what, mutate] : mutations) {
    engine::ModelDescription mutated = description();
    mutate(mutated.spec);
    EXPECT_GT(nmse(run_golden(std::move(mutated), golden_).logits, golden_.logits), kMutationNmse)
        << what;
  }
  for (const auto& [what, mutant] : mutants_of(*original.architecture, original.spec)) {
    engine::ModelDescription mutated = description();
    mutated.architecture = mutant.get();
    EXPECT_GT(nmse(run_golden(std::move(mutated), golden_).logits, golden_.logits), kMutationNmse)
        << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, LogitsGolden, golden_architectures(), golden_test_name);

}  // namespace
}  // namespace hotset::test
