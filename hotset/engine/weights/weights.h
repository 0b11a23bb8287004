// The weights of a model as an architecture declares them: which tensors it needs, of which shape,
// for which use. From the same declarations files are checked and loaded, random models written and
// sizes shown.
// Thread-compatible.
#ifndef HOTSET_ENGINE_WEIGHTS_WEIGHTS_H_
#define HOTSET_ENGINE_WEIGHTS_WEIGHTS_H_

#include <ggml.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/model/gguf_file.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

// What a graph does with a weight; decides which types and memory layouts it may have.
enum class WeightUse {
  kEmbedding,     // rows are looked up
  kMatrix,        // multiplies activations
  kHeadMatrices,  // multiplies each head's part of activations by a matrix of its own
  kExperts,       // multiplies activations by expert id
  kVector,        // added or multiplied element by element; F32
  // As kVector, a row for each expert. Looked up by expert id, never by slot of a cache.
  kExpertVectors,
};

enum class Presence {
  kRequired,
  kOptional,
  kUsual,  // optional, but random models have it
};

struct WeightDeclaration {
  std::string name;
  std::array<int64_t, 4> ne = {1, 1, 1, 1};  // innermost first
  WeightUse use = WeightUse::kMatrix;
  Presence presence = Presence::kRequired;
  ggml_tensor** slot = nullptr;  // where the architecture wants the tensor; null if absent
  std::string fallback = {};     // used in its place where `name` is absent; may be empty

  // The layer that uses the tensor, by its name; -1 for those of the whole model.
  int64_t layer = -1;
};

// Weights of a dense feed-forward network, or with n_expert in front of every shape of all experts
// of a layer. Null what the model does not have.
struct FeedForwardWeights {
  ggml_tensor* gate = nullptr;       // [n_ff, n_embd]
  ggml_tensor* up = nullptr;         // [n_ff, n_embd]
  ggml_tensor* down = nullptr;       // [n_embd, n_ff]
  ggml_tensor* gate_up = nullptr;    // [2 * n_ff, n_embd] in place of gate and up
  ggml_tensor* gate_bias = nullptr;  // [n_ff]; biases and scales of experts only
  ggml_tensor* up_bias = nullptr;    // [n_ff]
  ggml_tensor* down_bias = nullptr;  // [n_embd]
  // Of types whose blocks have scales of too small a range (NVFP4): a factor for each expert.
  ggml_tensor* gate_scale = nullptr;
  ggml_tensor* up_scale = nullptr;
  ggml_tensor* down_scale = nullptr;

  bool present() const { return down != nullptr; }
  std::array<ggml_tensor*, 4> matrices() const { return {gate, up, down, gate_up}; }
};

// Weights of one layer; null what its architecture does not have.
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;    // [n_embd]
  ggml_tensor* attn_q = nullptr;       // [n_head * head_dim_k, n_embd]
  ggml_tensor* attn_k = nullptr;       // [n_head_kv * head_dim_k, n_embd]
  ggml_tensor* attn_v = nullptr;       // [n_head_kv * head_dim_v, n_embd]
  ggml_tensor* attn_output = nullptr;  // [n_embd, n_head * head_dim_v]
  ggml_tensor* attn_q_bias = nullptr;  // as long as the rows of attn_q
  ggml_tensor* attn_k_bias = nullptr;
  ggml_tensor* attn_v_bias = nullptr;
  ggml_tensor* attn_output_bias = nullptr;  // [n_embd]
  ggml_tensor* attn_sinks = nullptr;        // [n_head], a score that takes weight and gives nothing
  ggml_tensor* attn_q_norm = nullptr;       // [head_dim_k], or over all heads
  ggml_tensor* attn_k_norm = nullptr;
  ggml_tensor* rope_factors = nullptr;  // [rope dimensions / 2], divisors of the frequencies
  // Latent attention; R the rotated dimensions of a head.
  ggml_tensor* attn_q_a = nullptr;        // [n_query_latent, n_embd]
  ggml_tensor* attn_q_a_norm = nullptr;   // [n_query_latent]
  ggml_tensor* attn_q_b = nullptr;        // [n_head * latent.head_dim_k, n_query_latent]
  ggml_tensor* attn_kv_a = nullptr;       // [n_latent + R, n_embd]
  ggml_tensor* attn_kv_a_norm = nullptr;  // [n_latent]
  ggml_tensor* attn_kv_b = nullptr;       // [n_head * (head_dim_k - R + head_dim_v), n_latent]
  ggml_tensor* attn_k_b = nullptr;        // [n_head, n_latent, head_dim_k - R]
  ggml_tensor* attn_v_b = nullptr;        // [n_head, head_dim_v, n_latent]
  ggml_tensor* ffn_norm = nullptr;        // [n_embd]
  FeedForwardWeights dense;
  ggml_tensor* router = nullptr;          // [n_expert, n_embd]
  ggml_tensor* router_bias = nullptr;     // [n_expert], added to the scores
  ggml_tensor* selection_bias = nullptr;  // [n_expert], added where experts are chosen
  FeedForwardWeights experts;             // each with n_expert in front
  FeedForwardWeights shared;              // of the shared expert
  ggml_tensor* shared_gate = nullptr;     // [n_embd], how much of the shared expert a token gets
};

struct ModelWeights {
  ggml_tensor* token_embedding = nullptr;  // [n_vocab, n_embd]
  ggml_tensor* output_norm = nullptr;      // [n_embd]
  ggml_tensor* output = nullptr;           // [n_vocab, n_embd]
  std::vector<LayerWeights> layers;
};

// The list an architecture fills. Shapes are given outermost dimension first.
class WeightList {
 public:
  void add(ggml_tensor** slot, std::string name, WeightUse use,
           std::initializer_list<int64_t> shape, Presence presence = Presence::kRequired);
  void add(WeightDeclaration declaration) { declarations_.push_back(std::move(declaration)); }
  // The last added weight belongs to `layer`, though its name does not say so.
  void belongs_to(int64_t layer) { declarations_.back().layer = layer; }
  // The last added weight is taken from `name` where its own is absent.
  void fall_back_to(std::string name) { declarations_.back().fallback = std::move(name); }

  const std::vector<WeightDeclaration>& declarations() const { return declarations_; }

 private:
  std::vector<WeightDeclaration> declarations_;
};

// Declares what every decoder here has: token embedding, output norm, output matrix (the embedding
// again where the file has none).
void declare_decoder(const model::ModelSpec& spec, ModelWeights& weights, WeightList& list);
// Declares norm, projections and output of attention in layer `layer`.
void declare_attention(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                       WeightList& list);
// Declares the same of latent attention, in the form that the file has.
void declare_latent_attention(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                              WeightList& list);
// Declares biases of the projections.
void declare_attention_biases(const model::ModelSpec& spec, int64_t layer, Presence presence,
                              LayerWeights& weights, WeightList& list);
// Declares an RMS norm over each head of queries and of keys.
void declare_head_norms(const model::ModelSpec& spec, int64_t layer, Presence presence,
                        LayerWeights& weights, WeightList& list);
// Declares a dense feed-forward network of width `n_ff` under "ffn_gate" + suffix and so on.
void declare_feed_forward(const model::ModelSpec& spec, int64_t layer, int64_t n_ff,
                          std::string_view suffix, FeedForwardWeights& weights, WeightList& list);
// Declares router and experts of layer `layer`.
void declare_experts(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                     WeightList& list);
// Declares biases of router and experts.
void declare_expert_biases(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                           WeightList& list);

// "blk.3.attn_q.weight" for layer 3, "attn_q.weight".
std::string layer_tensor(int64_t layer, std::string_view name);

// Whether models may have weights of this type; some types are for activations and indices only.
bool is_weight_type(ggml_type type);

// The tensor of the file that serves a declaration, checked: shape, and a type fit for the use.
// Null if it is optional and absent. Errors: kCorrupt, kUnsupported; the message names file,
// tensor, found and expected.
Result<const model::TensorInfo*> find_weight(const model::GgufFile& file,
                                             const WeightDeclaration& declaration);

// Fails if an optional tensor of a layer is in some layers of its kind only: those without it would
// compute something else. Layers are of one kind where the same was declared for them; of a factor
// for experts (".scale"), which comes with a type, where their experts also have the same type.
// Errors: kCorrupt, naming file, tensor and layers.
Status check_all_or_none(const model::GgufFile& file, const WeightList& list);

// Names of tensors in the file that no declaration uses.
std::vector<std::string> unused_tensors(const model::GgufFile& file, const WeightList& list);

// Fails if a tensor that no declaration uses belongs to one that is used, as its scale or its bias:
// without it every result would be wrong. Errors: kUnsupported, naming file and tensor.
Status check_unused(const model::GgufFile& file, const WeightList& list);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_WEIGHTS_H_
