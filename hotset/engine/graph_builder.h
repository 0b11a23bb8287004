// The building blocks of model graphs. An architecture composes them; each adds nodes to one ggml
// graph and returns the tensor of its result.
//
// Shapes are outermost dimension first; T is the number of tokens of the ubatch, k the experts per
// token. A GraphBuilder owns nothing: context, graph, weights and KV memory are the caller's.
// Thread-compatible.
#ifndef HOTSET_ENGINE_GRAPH_BUILDER_H_
#define HOTSET_ENGINE_GRAPH_BUILDER_H_

#include <ggml.h>

#include <cstdint>

#include "hotset/engine/kv_cache.h"
#include "hotset/engine/weights.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

// What a graph's fixed size depends on: graphs of equal shape are interchangeable.
struct GraphShape {
  int32_t n_tokens = 1;
  int32_t n_kv = kCellBucket;  // cells that attention reads
  int32_t n_outputs = 1;       // tokens whose logits are computed; 0 to n_tokens

  // Whether fewer tokens than all want logits, so that rows must be selected.
  bool selects_outputs() const { return n_outputs > 0 && n_outputs < n_tokens; }
  bool operator==(const GraphShape&) const = default;
};

// Tensors that are set before each run of a graph. Those that a graph does not need stay null.
struct GraphInputs {
  ggml_tensor* tokens = nullptr;       // [T] I32
  ggml_tensor* positions = nullptr;    // [T] I32
  ggml_tensor* key_rows = nullptr;     // [T] I64, the cell of each token
  ggml_tensor* value_rows = nullptr;   // as key_rows, or for transposed values [T * R_v] I64
  ggml_tensor* mask = nullptr;         // [T, n_kv] F16, 0 or -infinity
  ggml_tensor* output_rows = nullptr;  // [n_outputs] I32, indices into the ubatch
};

// How many numbers value_rows has for a ubatch of `n_tokens`.
int64_t n_value_rows(const model::ModelSpec& spec, const KvCache& kv, int64_t n_tokens);

// Inputs that live in the compute buffer of the graph they are made for.
GraphInputs make_inputs(ggml_context* context, const model::ModelSpec& spec, const KvCache& kv,
                        const GraphShape& shape);

struct QueryKeyValue {
  ggml_tensor* query = nullptr;  // [T, n_head, head_dim_k]
  ggml_tensor* key = nullptr;    // [T, n_head_kv, head_dim_k]
  ggml_tensor* value = nullptr;  // [T, n_head_kv, head_dim_v]
};

// What the router of a MoE layer decided, and what the experts need.
struct Routing {
  ggml_tensor* residual = nullptr;  // [T, n_embd], added to the experts' sum
  ggml_tensor* x = nullptr;         // [T, n_embd], input of the experts
  ggml_tensor* ids = nullptr;       // [T, k] I32, best expert first
  ggml_tensor* weights = nullptr;   // [T, k, 1]
  ggml_tensor* shared = nullptr;    // [T, n_embd], result of the shared expert; null without one
};

class GraphBuilder {
 public:
  GraphBuilder(ggml_context* context, ggml_cgraph* graph, const model::ModelSpec& spec,
               const ModelWeights& weights, const KvCache& kv, const GraphShape& shape,
               const GraphInputs& inputs);

  const model::ModelSpec& spec() const { return spec_; }
  const GraphShape& shape() const { return shape_; }
  const GraphInputs& inputs() const { return inputs_; }
  const LayerWeights& layer(int64_t layer) const {
    return weights_.layers[static_cast<size_t>(layer)];
  }
  ggml_context* context() const { return context_; }
  ggml_cgraph* graph() const { return graph_; }

  // Token embeddings [T, n_embd].
  ggml_tensor* embed();
  ggml_tensor* add(ggml_tensor* a, ggml_tensor* b) { return ggml_add(context_, a, b); }
  // x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich, 2019).
  ggml_tensor* rms_norm(ggml_tensor* x, ggml_tensor* weight);
  // rms_norm() over all heads together of x [T, n_head, head_dim]; `weight` [n_head * head_dim].
  ggml_tensor* rms_norm_heads(ggml_tensor* x, ggml_tensor* weight);
  // Queries, keys and values of x [T, n_embd], with biases where the layer has some.
  QueryKeyValue project(ggml_tensor* x, const LayerWeights& w);
  // Rotary position embedding of x [T, n_head, head_dim] at the ubatch's positions.
  // `factors` divide the frequencies; may be null.
  ggml_tensor* rope(ggml_tensor* x, ggml_tensor* factors = nullptr);
  // Writes keys and values of the ubatch into the KV memory.
  void store(int64_t layer, const QueryKeyValue& qkv);
  // store(), then softmax(q k^T / sqrt(head_dim_k) + mask) v over the KV memory, times
  // `output` [n_embd, n_head * head_dim_v]: [T, n_embd]. `mask` is one of inputs().
  ggml_tensor* attend(int64_t layer, const QueryKeyValue& qkv, ggml_tensor* mask,
                      ggml_tensor* output);
  // down(silu(gate x) * (up x)) (Shazeer, "GLU variants improve transformer", 2020).
  ggml_tensor* feed_forward(ggml_tensor* x, const FeedForwardWeights& w);
  // feed_forward() of the shared expert times sigmoid(shared_gate x): [T, n_embd].
  ggml_tensor* gated_shared_expert(ggml_tensor* x, const LayerWeights& w);
  // Router scores of x, the k best and their weights, as the model's RouterSpec has it.
  Routing route(ggml_tensor* residual, ggml_tensor* x, ggml_tensor* router);
  // The chosen experts' results before weighting, in routing order: [T, k, n_embd].
  ggml_tensor* experts(const Routing& routing, const FeedForwardWeights& w);
  // residual + shared + sum over the k experts, in routing order, of weight * result:
  // [T, n_embd].
  ggml_tensor* combine(const Routing& routing, ggml_tensor* results);
  // The rows of x [T, n_embd] whose logits are wanted: [n_outputs, n_embd].
  ggml_tensor* select_outputs(ggml_tensor* x);
  // Logits [rows, n_vocab] of hidden [rows, n_embd].
  ggml_tensor* head(ggml_tensor* hidden);

 private:
  ggml_context* context_;
  ggml_cgraph* graph_;
  const model::ModelSpec& spec_;
  const ModelWeights& weights_;
  const KvCache& kv_;
  GraphShape shape_;
  GraphInputs inputs_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_GRAPH_BUILDER_H_
