#include "hotset/engine/weights/weights.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_set>
#include <utility>

#include "hotset/base/ranges_text.h"

namespace hotset::engine {
namespace {

// The N of "blk.N.REST"; -1 for other names.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  int64_t layer = -1;
  if (name.starts_with(kPrefix)) {
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

std::string shape_text(const std::array<int64_t, 4>& ne) {
  model::TensorInfo tensor;
  tensor.ne = ne;
  const std::string text = describe(tensor);
  return text.substr(0, text.find(']') + 1);
}

}  // namespace

// I8 .. I64 and F64 are for other purposes than weights.
bool is_weight_type(ggml_type type) {
  switch (type) {
    case GGML_TYPE_I8:
    case GGML_TYPE_I16:
    case GGML_TYPE_I32:
    case GGML_TYPE_I64:
    case GGML_TYPE_F64:
    case GGML_TYPE_Q8_1:  // of activations only
    case GGML_TYPE_Q8_K:
      return false;
    default:
      return true;
  }
}

void WeightList::add(ggml_tensor** slot, std::string name, WeightUse use,
                     std::initializer_list<int64_t> shape, Presence presence) {
  HOTSET_CHECK(shape.size() >= 1 && shape.size() <= 4);
  WeightDeclaration declaration{
      .name = std::move(name), .use = use, .presence = presence, .slot = slot};
  declaration.layer = layer_of(declaration.name);
  std::ranges::reverse_copy(shape, declaration.ne.begin());
  declarations_.push_back(std::move(declaration));
}

std::string layer_tensor(int64_t layer, std::string_view name) {
  return fmt::format("blk.{}.{}", layer, name);
}

void declare_decoder(const model::ModelSpec& spec, ModelWeights& weights, WeightList& list) {
  weights.layers.resize(spec.n_layer);
  list.add(&weights.token_embedding, "token_embd.weight", WeightUse::kEmbedding,
           {spec.n_vocab, spec.n_embd});
  list.add(&weights.output_norm, "output_norm.weight", WeightUse::kVector, {spec.n_embd});
  list.add(&weights.output, "output.weight", WeightUse::kMatrix, {spec.n_vocab, spec.n_embd},
           Presence::kOptional);
  list.fall_back_to("token_embd.weight");
}

void declare_attention(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                       WeightList& list) {
  const model::AttentionSpec& a = spec.attention;
  const auto name = [&](std::string_view n) { return layer_tensor(layer, n); };
  list.add(&weights.attn_norm, name("attn_norm.weight"), WeightUse::kVector, {spec.n_embd});
  list.add(&weights.attn_q, name("attn_q.weight"), WeightUse::kMatrix,
           {a.n_head * a.head_dim_k, spec.n_embd});
  list.add(&weights.attn_k, name("attn_k.weight"), WeightUse::kMatrix,
           {a.n_head_kv * a.head_dim_k, spec.n_embd});
  list.add(&weights.attn_v, name("attn_v.weight"), WeightUse::kMatrix,
           {a.n_head_kv * a.head_dim_v, spec.n_embd});
  list.add(&weights.attn_output, name("attn_output.weight"), WeightUse::kMatrix,
           {spec.n_embd, a.n_head * a.head_dim_v});
}

void declare_latent_attention(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                              WeightList& list) {
  const int64_t n_head = spec.attention.n_head;
  const model::LatentSpec& latent = spec.attention.latent;
  const int64_t n_rotated = spec.rope.n_dims;
  const int64_t n_plain = latent.head_dim_k - n_rotated;
  const auto matrix = [&](ggml_tensor** slot, std::string_view name,
                          std::initializer_list<int64_t> shape) {
    list.add(slot, layer_tensor(layer, name), WeightUse::kMatrix, shape);
  };
  const auto vector = [&](ggml_tensor** slot, std::string_view name, int64_t n) {
    list.add(slot, layer_tensor(layer, name), WeightUse::kVector, {n});
  };
  vector(&weights.attn_norm, "attn_norm.weight", spec.n_embd);
  if (latent.n_query_latent > 0) {
    matrix(&weights.attn_q_a, "attn_q_a.weight", {latent.n_query_latent, spec.n_embd});
    vector(&weights.attn_q_a_norm, "attn_q_a_norm.weight", latent.n_query_latent);
    matrix(&weights.attn_q_b, "attn_q_b.weight",
           {n_head * latent.head_dim_k, latent.n_query_latent});
  } else {
    matrix(&weights.attn_q, "attn_q.weight", {n_head * latent.head_dim_k, spec.n_embd});
  }
  matrix(&weights.attn_kv_a, "attn_kv_a_mqa.weight", {latent.n_latent + n_rotated, spec.n_embd});
  vector(&weights.attn_kv_a_norm, "attn_kv_a_norm.weight", latent.n_latent);
  if (spec.attention.values_in_keys) {
    list.add(&weights.attn_k_b, layer_tensor(layer, "attn_k_b.weight"), WeightUse::kHeadMatrices,
             {n_head, latent.n_latent, n_plain});
    list.add(&weights.attn_v_b, layer_tensor(layer, "attn_v_b.weight"), WeightUse::kHeadMatrices,
             {n_head, latent.head_dim_v, latent.n_latent});
  } else {
    matrix(&weights.attn_kv_b, "attn_kv_b.weight",
           {n_head * (n_plain + latent.head_dim_v), latent.n_latent});
  }
  matrix(&weights.attn_output, "attn_output.weight", {spec.n_embd, n_head * latent.head_dim_v});
}

void declare_attention_biases(const model::ModelSpec& spec, int64_t layer, Presence presence,
                              LayerWeights& weights, WeightList& list) {
  const model::AttentionSpec& a = spec.attention;
  list.add(&weights.attn_q_bias, layer_tensor(layer, "attn_q.bias"), WeightUse::kVector,
           {a.n_head * a.head_dim_k}, presence);
  list.add(&weights.attn_k_bias, layer_tensor(layer, "attn_k.bias"), WeightUse::kVector,
           {a.n_head_kv * a.head_dim_k}, presence);
  list.add(&weights.attn_v_bias, layer_tensor(layer, "attn_v.bias"), WeightUse::kVector,
           {a.n_head_kv * a.head_dim_v}, presence);
}

void declare_head_norms(const model::ModelSpec& spec, int64_t layer, Presence presence,
                        LayerWeights& weights, WeightList& list) {
  const int64_t head_dim = spec.attention.head_dim_k;
  list.add(&weights.attn_q_norm, layer_tensor(layer, "attn_q_norm.weight"), WeightUse::kVector,
           {head_dim}, presence);
  list.add(&weights.attn_k_norm, layer_tensor(layer, "attn_k_norm.weight"), WeightUse::kVector,
           {head_dim}, presence);
}

void declare_feed_forward(const model::ModelSpec& spec, int64_t layer, int64_t n_ff,
                          std::string_view suffix, FeedForwardWeights& weights, WeightList& list) {
  const auto name = [&](std::string_view part) {
    return layer_tensor(layer, fmt::format("ffn_{}{}.weight", part, suffix));
  };
  list.add(&weights.gate, name("gate"), WeightUse::kMatrix, {n_ff, spec.n_embd});
  list.add(&weights.up, name("up"), WeightUse::kMatrix, {n_ff, spec.n_embd});
  list.add(&weights.down, name("down"), WeightUse::kMatrix, {spec.n_embd, n_ff});
}

void declare_experts(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                     WeightList& list) {
  const int64_t n_expert = spec.router.n_expert;
  list.add(&weights.router, layer_tensor(layer, "ffn_gate_inp.weight"), WeightUse::kMatrix,
           {n_expert, spec.n_embd});
  if (spec.router.selection_bias) {
    list.add(&weights.selection_bias, layer_tensor(layer, "exp_probs_b.bias"), WeightUse::kVector,
             {n_expert});
  }
  const auto matrix = [&](ggml_tensor** slot, std::string_view part, int64_t n_out, int64_t n_in) {
    list.add(slot, layer_tensor(layer, fmt::format("ffn_{}_exps.weight", part)),
             WeightUse::kExperts, {n_expert, n_out, n_in});
  };
  const auto scale = [&](ggml_tensor** slot, std::string_view part) {
    list.add(slot, layer_tensor(layer, fmt::format("ffn_{}_exps.scale", part)),
             WeightUse::kExpertVectors, {n_expert}, Presence::kOptional);
  };
  FeedForwardWeights& experts = weights.experts;
  if (spec.merged_gate_up) {
    matrix(&experts.gate_up, "gate_up", 2 * spec.n_ff_expert, spec.n_embd);
  } else {
    matrix(&experts.gate, "gate", spec.n_ff_expert, spec.n_embd);
    matrix(&experts.up, "up", spec.n_ff_expert, spec.n_embd);
    scale(&experts.gate_scale, "gate");
    scale(&experts.up_scale, "up");
  }
  matrix(&experts.down, "down", spec.n_embd, spec.n_ff_expert);
  scale(&experts.down_scale, "down");
}

void declare_expert_biases(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                           WeightList& list) {
  const int64_t n_expert = spec.router.n_expert;
  list.add(&weights.router_bias, layer_tensor(layer, "ffn_gate_inp.bias"), WeightUse::kVector,
           {n_expert});
  const auto bias = [&](ggml_tensor** slot, std::string_view part, int64_t n_out) {
    list.add(slot, layer_tensor(layer, fmt::format("ffn_{}_exps.bias", part)),
             WeightUse::kExpertVectors, {n_expert, n_out});
  };
  bias(&weights.experts.gate_bias, "gate", spec.n_ff_expert);
  bias(&weights.experts.up_bias, "up", spec.n_ff_expert);
  bias(&weights.experts.down_bias, "down", spec.n_embd);
}

Result<const model::TensorInfo*> find_weight(const model::GgufFile& file,
                                             const WeightDeclaration& declaration) {
  const model::TensorInfo* tensor = file.find_tensor(declaration.name);
  if (tensor == nullptr && !declaration.fallback.empty()) {
    tensor = file.find_tensor(declaration.fallback);
  }
  if (tensor == nullptr) {
    if (declaration.presence != Presence::kRequired && declaration.fallback.empty()) return nullptr;
    return make_error(ErrorCode::kCorrupt, "{}: tensor '{}': found nothing, expected {}",
                      file.name(), declaration.name, shape_text(declaration.ne));
  }
  if (tensor->ne != declaration.ne) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor '{}': found {}, expected {}", file.name(),
                      tensor->name, describe(*tensor), shape_text(declaration.ne));
  }
  if (!is_weight_type(tensor->type)) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: tensor '{}': found type {}, expected a type for weights", file.name(),
                      tensor->name, ggml_type_name(tensor->type));
  }
  const bool is_vector =
      declaration.use == WeightUse::kVector || declaration.use == WeightUse::kExpertVectors;
  if (is_vector && tensor->type != GGML_TYPE_F32) {
    return make_error(ErrorCode::kUnsupported, "{}: tensor '{}': found type {}, expected f32",
                      file.name(), tensor->name, ggml_type_name(tensor->type));
  }
  return tensor;
}

namespace {

// Layers of one kind, by whether they have an optional tensor.
struct Occurrence {
  std::vector<int64_t> with;
  std::vector<int64_t> without;
};

// What the weight of a scale is stored as; nothing for other tensors.
std::string scaled_type(const model::GgufFile& file, std::string_view name) {
  constexpr std::string_view kEnding = ".scale";
  if (!name.ends_with(kEnding)) return "";
  name.remove_suffix(kEnding.size());
  const model::TensorInfo* weight = file.find_tensor(fmt::format("{}.weight", name));
  return weight == nullptr ? "" : ggml_type_name(weight->type);
}

}  // namespace

Status check_all_or_none(const model::GgufFile& file, const WeightList& list) {
  // By the name within a layer and the type of what a scale belongs to.
  std::map<std::pair<std::string, std::string>, Occurrence> kinds;
  for (const WeightDeclaration& declaration : list.declarations()) {
    const std::string prefix = layer_tensor(declaration.layer, "");
    if (declaration.presence == Presence::kRequired || !declaration.name.starts_with(prefix)) {
      continue;
    }
    Occurrence& kind =
        kinds[{declaration.name.substr(prefix.size()), scaled_type(file, declaration.name)}];
    const bool is_there = file.find_tensor(declaration.name) != nullptr;
    (is_there ? kind.with : kind.without).push_back(declaration.layer);
  }
  for (const auto& [name_and_type, kind] : kinds) {
    if (kind.with.empty() || kind.without.empty()) continue;
    const auto& [name, type] = name_and_type;
    return make_error(ErrorCode::kCorrupt,
                      "{}: tensor 'blk.N.{}': found in layers {}, but not in {}; expected in all{} "
                      "or in none",
                      file.name(), name, ranges_text<int64_t>(kind.with),
                      ranges_text<int64_t>(kind.without),
                      type.empty() ? "" : fmt::format(" whose experts are {}", type));
  }
  return {};
}

std::vector<std::string> unused_tensors(const model::GgufFile& file, const WeightList& list) {
  std::unordered_set<std::string_view> used;
  for (const WeightDeclaration& declaration : list.declarations()) {
    used.insert(declaration.name);
    if (file.find_tensor(declaration.name) == nullptr) used.insert(declaration.fallback);
  }
  std::vector<std::string> unused;
  for (const model::TensorInfo& tensor : file.tensors()) {
    if (!used.contains(tensor.name)) unused.push_back(tensor.name);
  }
  return unused;
}

Status check_unused(const model::GgufFile& file, const WeightList& list) {
  std::unordered_set<std::string_view> used;
  for (const WeightDeclaration& declaration : list.declarations()) used.insert(declaration.name);
  for (const std::string& name : unused_tensors(file, list)) {
    for (const std::string_view ending : {".bias", ".scale"}) {
      if (!name.ends_with(ending)) continue;
      const std::string weight = name.substr(0, name.size() - ending.size()) + ".weight";
      if (!used.contains(weight)) continue;
      return make_error(ErrorCode::kUnsupported,
                        "{}: tensor '{}': found one, which this architecture's '{}' is not known "
                        "to have; expected none",
                        file.name(), name, weight);
    }
  }
  return {};
}

}  // namespace hotset::engine
