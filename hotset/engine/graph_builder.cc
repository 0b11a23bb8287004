#include "hotset/engine/graph_builder.h"

#include <cmath>

#include "hotset/base/error.h"

namespace hotset::engine {

namespace {

ggml_tensor* new_input(ggml_context* context, ggml_type type, int64_t ne0, int64_t ne1,
                       const char* name) {
  ggml_tensor* tensor = ggml_new_tensor_2d(context, type, ne0, ne1);
  ggml_set_name(tensor, name);
  ggml_set_input(tensor);
  return tensor;
}

}  // namespace

int64_t n_value_rows(const model::ModelSpec& spec, const KvCache& kv, int64_t n_tokens) {
  if (kv.options().flash_attention) return n_tokens;
  return n_tokens * spec.attention.n_head_kv * spec.attention.head_dim_v;
}

GraphInputs make_inputs(ggml_context* context, const model::ModelSpec& spec, const KvCache& kv,
                        const GraphShape& shape) {
  const int64_t n_tokens = shape.n_tokens;
  GraphInputs inputs;
  inputs.tokens = new_input(context, GGML_TYPE_I32, n_tokens, 1, "tokens");
  inputs.positions = new_input(context, GGML_TYPE_I32, n_tokens, 1, "positions");
  inputs.key_rows = new_input(context, GGML_TYPE_I64, n_tokens, 1, "key_rows");
  inputs.value_rows =
      new_input(context, GGML_TYPE_I64, n_value_rows(spec, kv, n_tokens), 1, "value_rows");
  inputs.mask = new_input(context, GGML_TYPE_F16, shape.n_kv, n_tokens, "mask");
  if (shape.selects_outputs()) {
    inputs.output_rows = new_input(context, GGML_TYPE_I32, shape.n_outputs, 1, "output_rows");
  }
  return inputs;
}

GraphBuilder::GraphBuilder(ggml_context* context, ggml_cgraph* graph, const model::ModelSpec& spec,
                           const ModelWeights& weights, const KvCache& kv, const GraphShape& shape,
                           const GraphInputs& inputs)
    : context_(context),
      graph_(graph),
      spec_(spec),
      weights_(weights),
      kv_(kv),
      shape_(shape),
      inputs_(inputs) {}

ggml_tensor* GraphBuilder::embed() {
  return ggml_get_rows(context_, weights_.token_embedding, inputs_.tokens);
}

ggml_tensor* GraphBuilder::rms_norm(ggml_tensor* x, ggml_tensor* weight) {
  return ggml_mul(context_, ggml_rms_norm(context_, x, spec_.norm_eps), weight);
}

ggml_tensor* GraphBuilder::rms_norm_heads(ggml_tensor* x, ggml_tensor* weight) {
  ggml_tensor* rows = ggml_reshape_2d(context_, x, x->ne[0] * x->ne[1], x->ne[2]);
  return ggml_reshape_3d(context_, rms_norm(rows, weight), x->ne[0], x->ne[1], x->ne[2]);
}

QueryKeyValue GraphBuilder::project(ggml_tensor* x, const LayerWeights& w) {
  const model::AttentionSpec& a = spec_.attention;
  const auto heads = [&](ggml_tensor* weight, ggml_tensor* bias, int64_t head_dim, int64_t n_head) {
    ggml_tensor* y = ggml_mul_mat(context_, weight, x);
    if (bias != nullptr) y = ggml_add(context_, y, bias);
    return ggml_reshape_3d(context_, y, head_dim, n_head, shape_.n_tokens);
  };
  return {.query = heads(w.attn_q, w.attn_q_bias, a.head_dim_k, a.n_head),
          .key = heads(w.attn_k, w.attn_k_bias, a.head_dim_k, a.n_head_kv),
          .value = heads(w.attn_v, w.attn_v_bias, a.head_dim_v, a.n_head_kv)};
}

ggml_tensor* GraphBuilder::rope(ggml_tensor* x, ggml_tensor* factors) {
  const model::RopeSpec& r = spec_.rope;
  const int mode = r.interleaved ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX;
  // ext_factor mixes interpolated and original angles by frequency: all or nothing here.
  const float ext_factor = r.scaling == model::RopeScaling::kYarn ? 1.0F : 0.0F;
  return ggml_rope_ext(context_, x, inputs_.positions, factors, static_cast<int>(r.n_dims), mode,
                       static_cast<int>(r.n_ctx_original), r.freq_base, 1.0F / r.factor, ext_factor,
                       r.attn_factor, r.beta_fast, r.beta_slow);
}

void GraphBuilder::store(int64_t layer, const QueryKeyValue& qkv) {
  const model::AttentionSpec& a = spec_.attention;
  ggml_tensor* key =
      ggml_reshape_2d(context_, qkv.key, a.n_head_kv * a.head_dim_k, shape_.n_tokens);
  ggml_build_forward_expand(graph_,
                            ggml_set_rows(context_, kv_.keys(layer), key, inputs_.key_rows));
  const int64_t value_row = a.n_head_kv * a.head_dim_v;
  ggml_tensor* values = kv_.values(layer);
  ggml_tensor* value = nullptr;
  if (kv_.options().flash_attention) {
    value = ggml_reshape_2d(context_, qkv.value, value_row, shape_.n_tokens);
  } else {
    // Transposed values: every number is a row of one element.
    values = ggml_reshape_2d(context_, values, 1, ggml_nelements(values));
    value = ggml_reshape_2d(context_, qkv.value, 1, value_row * shape_.n_tokens);
  }
  ggml_build_forward_expand(graph_, ggml_set_rows(context_, values, value, inputs_.value_rows));
}

ggml_tensor* GraphBuilder::attend(int64_t layer, const QueryKeyValue& qkv, ggml_tensor* mask,
                                  ggml_tensor* output) {
  store(layer, qkv);
  const model::AttentionSpec& a = spec_.attention;
  const float scale = 1.0F / std::sqrt(static_cast<float>(a.head_dim_k));
  const int64_t n_kv = shape_.n_kv;
  ggml_tensor* query = ggml_permute(context_, qkv.query, 0, 2, 1, 3);  // [n_head, T, head_dim_k]
  ggml_tensor* all_keys = kv_.keys(layer);
  ggml_tensor* all_values = kv_.values(layer);
  ggml_tensor* keys =  // [n_head_kv, n_kv, head_dim_k]
      ggml_view_3d(context_, all_keys, a.head_dim_k, n_kv, a.n_head_kv, all_keys->nb[1],
                   ggml_row_size(all_keys->type, a.head_dim_k), 0);
  ggml_tensor* result = nullptr;
  if (kv_.options().flash_attention) {
    ggml_tensor* values =  // [n_head_kv, n_kv, head_dim_v]
        ggml_view_3d(context_, all_values, a.head_dim_v, n_kv, a.n_head_kv, all_values->nb[1],
                     ggml_row_size(all_values->type, a.head_dim_v), 0);
    result =  // [T, n_head, head_dim_v]
        ggml_flash_attn_ext(context_, query, keys, values, mask, scale, 0.0F, 0.0F);
    ggml_prec_set_acc(result, GGML_PREC_F32);
    result = ggml_reshape_2d(context_, result, a.n_head * a.head_dim_v, shape_.n_tokens);
  } else {
    ggml_tensor* values =  // [n_head_kv, head_dim_v, n_kv]
        ggml_view_3d(context_, all_values, n_kv, a.head_dim_v, a.n_head_kv, all_values->nb[1],
                     all_values->nb[1] * static_cast<size_t>(a.head_dim_v), 0);
    ggml_tensor* scores = ggml_mul_mat(context_, keys, query);  // [n_head, T, n_kv]
    ggml_prec_set_acc(scores, GGML_PREC_F32);
    ggml_tensor* attention = ggml_soft_max_ext(context_, scores, mask, scale, 0.0F);
    result = ggml_mul_mat(context_, values, attention);  // [n_head, T, head_dim_v]
    result = ggml_cont_2d(context_, ggml_permute(context_, result, 0, 2, 1, 3),
                          a.n_head * a.head_dim_v, shape_.n_tokens);
  }
  return ggml_mul_mat(context_, output, result);
}

ggml_tensor* GraphBuilder::feed_forward(ggml_tensor* x, const FeedForwardWeights& w) {
  ggml_tensor* up = ggml_mul_mat(context_, w.up, x);
  ggml_tensor* gate = ggml_mul_mat(context_, w.gate, x);
  return ggml_mul_mat(context_, w.down, ggml_swiglu_split(context_, gate, up));
}

ggml_tensor* GraphBuilder::gated_shared_expert(ggml_tensor* x, const LayerWeights& w) {
  ggml_tensor* gate = ggml_sigmoid(context_, ggml_mul_mat(context_, w.shared_gate, x));  // [T, 1]
  return ggml_mul(context_, feed_forward(x, w.shared), gate);
}

Routing GraphBuilder::route(ggml_tensor* residual, ggml_tensor* x, ggml_tensor* router) {
  const model::RouterSpec& r = spec_.router;
  const int64_t n_rows = x->ne[1];
  ggml_tensor* scores = ggml_mul_mat(context_, router, x);  // [T, n_expert]
  // Softmax keeps the order, and over the chosen scores alone it gives their normalised weights.
  const bool late_softmax = r.gating == model::Gating::kSoftmax && r.normalise_weights;
  if (!late_softmax) {
    scores = r.gating == model::Gating::kSoftmax ? ggml_soft_max(context_, scores)
                                                 : ggml_sigmoid(context_, scores);
  }
  ggml_tensor* ids = ggml_argsort_top_k(context_, scores, static_cast<int>(r.n_expert_used));
  ggml_tensor* weights = ggml_get_rows(
      context_, ggml_reshape_3d(context_, scores, 1, r.n_expert, n_rows), ids);  // [T, k, 1]
  weights = ggml_reshape_2d(context_, weights, r.n_expert_used, n_rows);
  if (late_softmax) {
    weights = ggml_soft_max(context_, weights);
  } else if (r.normalise_weights) {
    weights = ggml_div(context_, weights, ggml_sum_rows(context_, weights));
  }
  if (r.weights_scale != 1.0F) weights = ggml_scale(context_, weights, r.weights_scale);
  return {.residual = residual,
          .x = x,
          .ids = ids,
          .weights = ggml_reshape_3d(context_, weights, 1, r.n_expert_used, n_rows)};
}

ggml_tensor* GraphBuilder::experts(const Routing& routing, const FeedForwardWeights& w) {
  ggml_tensor* x = routing.x;
  x = ggml_reshape_3d(context_, x, x->ne[0], 1, x->ne[1]);  // [T, 1, n_embd]
  ggml_tensor* up = ggml_mul_mat_id(context_, w.up, x, routing.ids);
  ggml_tensor* gate = ggml_mul_mat_id(context_, w.gate, x, routing.ids);
  return ggml_mul_mat_id(context_, w.down, ggml_swiglu_split(context_, gate, up), routing.ids);
}

ggml_tensor* GraphBuilder::combine(const Routing& routing, ggml_tensor* results) {
  ggml_tensor* weighted = ggml_mul(context_, results, routing.weights);
  ggml_tensor* sum = nullptr;
  for (int64_t i = 0; i < weighted->ne[1]; ++i) {
    ggml_tensor* row = ggml_view_2d(context_, weighted, weighted->ne[0], weighted->ne[2],
                                    weighted->nb[2], static_cast<size_t>(i) * weighted->nb[1]);
    sum = sum == nullptr ? row : ggml_add(context_, sum, row);
  }
  if (routing.shared != nullptr) sum = ggml_add(context_, sum, routing.shared);
  return ggml_add(context_, sum, routing.residual);
}

ggml_tensor* GraphBuilder::select_outputs(ggml_tensor* x) {
  if (inputs_.output_rows == nullptr) return x;
  return ggml_get_rows(context_, x, inputs_.output_rows);
}

ggml_tensor* GraphBuilder::head(ggml_tensor* hidden) {
  return ggml_mul_mat(context_, weights_.output, rms_norm(hidden, weights_.output_norm));
}

}  // namespace hotset::engine
