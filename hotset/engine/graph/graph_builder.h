// The building blocks of model graphs. An architecture composes them; each adds nodes to one ggml
// graph and returns the tensor of its result.
//
// Shapes are outermost dimension first; T is the number of tokens of the ubatch, k the experts per
// token. A GraphBuilder owns nothing: context, graph, weights and KV memory are the caller's.
// Thread-compatible.
#ifndef HOTSET_ENGINE_GRAPH_GRAPH_BUILDER_H_
#define HOTSET_ENGINE_GRAPH_GRAPH_BUILDER_H_

#include <ggml.h>

#include <array>
#include <cstdint>

#include "hotset/engine/kv/kv_cache.h"
#include "hotset/engine/weights/weights.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

// What a graph's fixed size depends on: graphs of equal shape are interchangeable.
struct GraphShape {
  int32_t n_tokens = 1;
  int32_t n_kv = kCellBucket;  // cells that attention reads
  int32_t n_kv_window = 0;     // cells that it reads in windowed layers; 0 if there are none
  int32_t n_outputs = 1;       // tokens whose logits are computed; 0 to n_tokens

  // Whether fewer tokens than all want logits, so that rows must be selected.
  bool selects_outputs() const { return n_outputs > 0 && n_outputs < n_tokens; }
  // How many of Executor::hidden_sums() are of what enters the last layer.
  int32_t n_sums_before() const { return n_outputs < n_tokens ? n_tokens : 0; }
  bool operator==(const GraphShape&) const = default;
};

// Tensors that are set before each run of a graph. Those that a graph does not need stay null.
struct GraphInputs {
  ggml_tensor* tokens = nullptr;     // [T] I32
  ggml_tensor* positions = nullptr;  // [T] I32
  // [T] I64, the cell of each token; where windowed layers have their own, [2 * T], theirs last.
  ggml_tensor* key_rows = nullptr;
  ggml_tensor* value_rows = nullptr;  // as key_rows, or for transposed values R_v for each token
  // F16, 0 or -infinity: [T, n_kv], and behind it, where there are windowed layers, [T,
  // n_kv_window] of these.
  ggml_tensor* mask = nullptr;
  ggml_tensor* output_rows = nullptr;  // [n_outputs] I32, indices into the ubatch
};

// How many numbers the mask has.
int64_t n_mask_values(const GraphShape& shape);
// A description of the mask's tensor: width and rows.
std::array<int64_t, 2> mask_size(const GraphShape& shape);

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
  const LayerWeights& layer(int64_t layer) const { return weights_.layers[layer]; }
  ggml_context* context() const { return context_; }
  ggml_cgraph* graph() const { return graph_; }

  // Token embeddings [T, n_embd].
  ggml_tensor* embed();
  ggml_tensor* add(ggml_tensor* a, ggml_tensor* b) { return ggml_add(context_, a, b); }
  // residual + residual_scale * y.
  ggml_tensor* add_residual(ggml_tensor* y, ggml_tensor* residual);
  // [T, n_kv] or [T, n_kv_window], what the tokens may see in `layer`.
  ggml_tensor* mask(int64_t layer);
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
  // store(), then softmax(scale * q k^T + mask) v over the KV memory, times w.attn_output, with
  // sinks and bias where `w` has them: [T, n_embd]. Values are decompressed by w.attn_v_b where it
  // is there. `mask` as from mask(); null lets every token see every cell.
  ggml_tensor* attend(int64_t layer, const QueryKeyValue& qkv, ggml_tensor* mask,
                      const LayerWeights& w);
  // Queries, keys and values of latent attention for x [T, n_embd], rotated: compressed (one head,
  // the latent vector as key and value) where `w` has attn_k_b, else of all heads.
  QueryKeyValue project_latent(ggml_tensor* x, const LayerWeights& w);
  // down(activation(gate x, up x)) (Shazeer, "GLU variants improve transformer", 2020).
  ggml_tensor* feed_forward(ggml_tensor* x, const FeedForwardWeights& w);
  // routing.shared times sigmoid(shared_gate x): [T, n_embd].
  ggml_tensor* gate_shared(const Routing& routing, const LayerWeights& w);
  // Router scores of x, the k best and their weights, as the model's RouterSpec has it.
  Routing route(ggml_tensor* residual, ggml_tensor* x, const LayerWeights& w);
  // The chosen experts' results before weighting: [T, k, n_embd] for x [T, n_embd], ids and slots
  // [T, k]. The matrices of `w` are indexed by `slots`, biases and scales by `ids`; both are the
  // same but where the matrices are the banks of a cache.
  ggml_tensor* experts(ggml_tensor* x, ggml_tensor* ids, ggml_tensor* slots,
                       const FeedForwardWeights& w);
  ggml_tensor* experts(const Routing& routing, const FeedForwardWeights& w) {
    return experts(routing.x, routing.ids, routing.ids, w);
  }
  // residual + residual_scale * (shared + sum over the k experts, in routing order, of weight *
  // result): [T, n_embd].
  ggml_tensor* combine(const Routing& routing, ggml_tensor* results);
  // The sum of each row of x [T, n_embd]: [T]. Not finite where a number of the row is not.
  ggml_tensor* row_sums(ggml_tensor* x) { return ggml_sum_rows(context_, x); }
  // The rows of x [T, n_embd] whose logits are wanted: [n_outputs, n_embd].
  ggml_tensor* select_outputs(ggml_tensor* x);
  // Logits [rows, n_vocab] of hidden [rows, n_embd].
  ggml_tensor* head(ggml_tensor* hidden);

 private:
  // Whether the layer has windowed layers' cells.
  bool is_windowed(int64_t layer) const { return spec_.attention.is_windowed(layer); }
  int32_t n_kv(int64_t layer) const {
    return is_windowed(layer) ? shape_.n_kv_window : shape_.n_kv;
  }
  // The part of `rows` (key_rows or value_rows) for the cells of `layer`.
  ggml_tensor* rows_of(int64_t layer, ggml_tensor* rows);
  ggml_tensor* scaled(ggml_tensor* x, float factor);
  ggml_tensor* stored_keys(int64_t layer);
  // The values of a layer, [n_head_kv, n_kv, head_dim_v], or with `transposed` [n_head_kv,
  // head_dim_v, n_kv].
  ggml_tensor* stored_values(int64_t layer, bool transposed);
  // Softmax attention over the KV memory: [n_head, T, head_dim_v].
  ggml_tensor* flash_attention(int64_t layer, ggml_tensor* query, ggml_tensor* mask,
                               ggml_tensor* sinks);
  ggml_tensor* plain_attention(int64_t layer, ggml_tensor* query, ggml_tensor* mask,
                               ggml_tensor* sinks);
  ggml_tensor* activate(ggml_tensor* gate, ggml_tensor* up);
  // y [T, k, n] of the experts `ids`, times their scales, plus their biases; both may be null.
  ggml_tensor* finish_pairs(ggml_tensor* y, ggml_tensor* scale, ggml_tensor* bias,
                            ggml_tensor* ids);
  // Scores [T, n_expert] with -infinity for the experts outside the best groups.
  ggml_tensor* limit_to_groups(ggml_tensor* scores);

  ggml_context* context_;
  ggml_cgraph* graph_;
  const model::ModelSpec& spec_;
  const ModelWeights& weights_;
  const KvCache& kv_;
  GraphShape shape_;
  GraphInputs inputs_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_GRAPH_GRAPH_BUILDER_H_
