// Logits, routing and greedy tokens against shared/golden/logits (its README says where they come
// from), and for each golden the proof that a bug would be seen: seeded mutations of the model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "hotset/engine/architecture.h"
#include "hotset/engine/engine.h"
#include "hotset/engine/sampler.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"
#include "tests/tolerances.h"

namespace hotset::test {
namespace {

using engine::GraphBuilder;
using engine::LayerWeights;
using engine::QueryKeyValue;
using engine::Routing;
using model::ModelSpec;

struct Golden {
  std::vector<int32_t> prompt;
  std::vector<int32_t> greedy;
  std::map<std::string, std::vector<int32_t>> routing;
  std::vector<float> logits;
};

Golden read_golden(const std::filesystem::path& folder, const std::string& name) {
  std::ifstream in(folder / (name + ".json"));
  const auto json = nlohmann::json::parse(in);
  Golden golden{.prompt = json["prompt"],
                .greedy = json["greedy"],
                .routing = json["routing"].get<std::map<std::string, std::vector<int32_t>>>(),
                .logits = {}};
  std::ifstream rows(folder / (name + ".logits.f32"), std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(rows)), std::istreambuf_iterator<char>());
  golden.logits.resize(bytes.size() / sizeof(float));
  std::memcpy(golden.logits.data(), bytes.data(), bytes.size());
  return golden;
}

struct GoldenRun {
  std::vector<float> logits;
  std::vector<int32_t> greedy;
  std::map<std::string, std::vector<int32_t>> routing;
};

// What the golden's README describes: the prompt, then greedy tokens, a row after each.
GoldenRun run_golden(engine::ModelDescription description, const Golden& golden,
                     const std::string& device = "") {
  GoldenRun run;
  const engine::EngineOptions options{
      .n_threads = 1,
      .n_ctx = 256,
      .n_outputs = 512,
      .flash_attention = engine::FlashAttention::kOff,
      .key_type = GGML_TYPE_F32,
      .value_type = GGML_TYPE_F32,
      .load = {.repack = false},
      .device = device,
      .observe_routing =
          [&run](int64_t layer, std::span<const int32_t> ids, int64_t) {
            auto& all = run.routing[std::to_string(layer)];
            all.insert(all.end(), ids.begin(), ids.end());
          },
  };
  const auto engine = make_engine(std::move(description), options);
  if (engine == nullptr) return run;
  std::vector<float> rows = decode(*engine, as_batch(golden.prompt, true));
  const auto n_vocab = static_cast<size_t>(engine->spec().n_vocab);
  for (size_t i = 0;; ++i) {
    run.logits.insert(run.logits.end(), rows.begin(), rows.end());
    if (i == golden.greedy.size() || rows.empty()) break;
    const int32_t id = engine::argmax(std::span(rows).last(n_vocab));
    run.greedy.push_back(id);
    // The golden's own token, so that a mutation is compared on the same text.
    rows = decode(*engine, as_batch({&golden.greedy[i], 1}, true, engine->next_position(0)));
  }
  return run;
}

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

class LogitsGolden : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    folder_ = shared_dir("golden/logits");
    if (folder_.empty()) GTEST_SKIP() << "HOTSET_SHARED_DIR has no golden/logits";
    golden_ = read_golden(folder_, GetParam());
  }
  engine::ModelDescription description() const {
    return describe(folder_ / (GetParam() + ".gguf"));
  }

  std::filesystem::path folder_;
  Golden golden_;
};

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

// Share of positions that chose other experts, whatever their order.
double routing_difference(const GoldenRun& run, const Golden& golden, size_t k) {
  size_t n_positions = 0;
  size_t n_different = 0;
  const auto chosen = [&](const std::vector<int32_t>& ids, size_t i) {
    const auto begin = ids.begin() + static_cast<ptrdiff_t>(i);
    return std::set<int32_t>(begin, begin + static_cast<ptrdiff_t>(k));
  };
  for (const auto& [layer, expected] : golden.routing) {
    const auto found = run.routing.find(layer);
    if (found == run.routing.end() || found->second.size() != expected.size()) return 1;
    for (size_t i = 0; i < expected.size(); i += k, ++n_positions) {
      if (chosen(expected, i) != chosen(found->second, i)) ++n_different;
    }
  }
  return static_cast<double>(n_different) / static_cast<double>(n_positions);
}

TEST_P(LogitsGolden, LogitsAndRoutingOnVulkan) {
  const auto devices = device::list_devices();
  ASSERT_TRUE(devices) << devices.error().message;
  if (std::ranges::find(*devices, "Vulkan0", &device::DeviceInfo::name) == devices->end()) {
    GTEST_SKIP() << "there is no Vulkan0 (llvmpipe shows with GGML_VK_VISIBLE_DEVICES=0)";
  }
  const engine::ModelDescription original = description();
  const auto k = static_cast<size_t>(original.spec.router.n_expert_used);
  const GoldenRun run = run_golden(description(), golden_, "Vulkan0");
  EXPECT_LT(nmse(run.logits, golden_.logits), kVulkanLogitsNmse);
  EXPECT_LE(routing_difference(run, golden_, k), kVulkanRoutingDifference);
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

INSTANTIATE_TEST_SUITE_P(Architectures, LogitsGolden,
                         testing::Values("qwen3moe", "qwen2moe", "olmoe", "llama"),
                         [](const auto& architecture) { return architecture.param; });

}  // namespace
}  // namespace hotset::test
