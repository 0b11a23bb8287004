#include "hotset/engine/graph/graph_builder.h"

#include <algorithm>
#include <cmath>
#include <vector>

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

int64_t n_mask_values(const GraphShape& shape) {
  return int64_t{shape.n_tokens} * (shape.n_kv + shape.n_kv_window);
}

std::array<int64_t, 2> mask_size(const GraphShape& shape) {
  if (shape.n_kv_window == 0) return {shape.n_kv, shape.n_tokens};
  return {n_mask_values(shape), 1};
}

int64_t n_value_rows(const model::ModelSpec& spec, const KvCache& kv, int64_t n_tokens) {
  n_tokens *= kv.n_cell_kinds();
  if (!kv.values_transposed()) return n_tokens;
  return n_tokens * spec.attention.n_head_kv * spec.attention.head_dim_v;
}

GraphInputs make_inputs(ggml_context* context, const model::ModelSpec& spec, const KvCache& kv,
                        const GraphShape& shape) {
  const int64_t n_tokens = shape.n_tokens;
  GraphInputs inputs;
  inputs.tokens = new_input(context, GGML_TYPE_I32, n_tokens, 1, "tokens");
  inputs.positions = new_input(context, GGML_TYPE_I32, n_tokens, 1, "positions");
  inputs.key_rows = new_input(context, GGML_TYPE_I64, n_tokens * kv.n_cell_kinds(), 1, "key_rows");
  inputs.value_rows =
      new_input(context, GGML_TYPE_I64, n_value_rows(spec, kv, n_tokens), 1, "value_rows");
  const auto [mask_width, n_mask_rows] = mask_size(shape);
  inputs.mask = new_input(context, GGML_TYPE_F16, mask_width, n_mask_rows, "mask");
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
  ggml_tensor* x = ggml_get_rows(context_, weights_.token_embedding, inputs_.tokens);
  return scaled(x, spec_.embedding_scale);
}

ggml_tensor* GraphBuilder::scaled(ggml_tensor* x, float factor) {
  return factor == 1.0F ? x : ggml_scale(context_, x, factor);
}

ggml_tensor* GraphBuilder::add_residual(ggml_tensor* y, ggml_tensor* residual) {
  return ggml_add(context_, scaled(y, spec_.residual_scale), residual);
}

ggml_tensor* GraphBuilder::mask(int64_t layer) {
  ggml_tensor* masks = inputs_.mask;
  if (shape_.n_kv_window == 0) return masks;
  const size_t n_before =
      is_windowed(layer) ? static_cast<size_t>(shape_.n_tokens) * static_cast<size_t>(shape_.n_kv)
                         : 0;
  const auto row_bytes = static_cast<size_t>(n_kv(layer)) * masks->nb[0];
  return ggml_view_2d(context_, masks, n_kv(layer), shape_.n_tokens, row_bytes,
                      n_before * masks->nb[0]);
}

ggml_tensor* GraphBuilder::rows_of(int64_t layer, ggml_tensor* rows) {
  if (!kv_.has_window_cells()) return rows;
  const int64_t n = rows->ne[0] / 2;
  const size_t begin = is_windowed(layer) ? static_cast<size_t>(n) * rows->nb[0] : 0;
  return ggml_view_1d(context_, rows, n, begin);
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
  const int64_t key_row = a.n_head_kv * a.head_dim_k;
  // GPU backends join norm, RoPE, a view and storing in one kernel; a reshape they do not.
  ggml_tensor* key = ggml_is_contiguous(qkv.key)
                         ? ggml_view_2d(context_, qkv.key, key_row, shape_.n_tokens,
                                        ggml_row_size(qkv.key->type, key_row), 0)
                         : ggml_cont_2d(context_, qkv.key, key_row, shape_.n_tokens);
  ggml_build_forward_expand(
      graph_, ggml_set_rows(context_, kv_.keys(layer), key, rows_of(layer, inputs_.key_rows)));
  if (a.values_in_keys) return;
  const int64_t value_row = a.n_head_kv * a.head_dim_v;
  ggml_tensor* values = kv_.values(layer);
  ggml_tensor* value = nullptr;
  if (!kv_.values_transposed()) {
    value = ggml_reshape_2d(context_, qkv.value, value_row, shape_.n_tokens);
  } else {
    // Transposed values: every number is a row of one element.
    values = ggml_reshape_2d(context_, values, 1, ggml_nelements(values));
    value = ggml_reshape_2d(context_, qkv.value, 1, value_row * shape_.n_tokens);
  }
  ggml_build_forward_expand(
      graph_, ggml_set_rows(context_, values, value, rows_of(layer, inputs_.value_rows)));
}

ggml_tensor* GraphBuilder::stored_keys(int64_t layer) {
  const model::AttentionSpec& a = spec_.attention;
  ggml_tensor* keys = kv_.keys(layer);
  return ggml_view_3d(context_, keys, a.head_dim_k, n_kv(layer), a.n_head_kv, keys->nb[1],
                      ggml_row_size(keys->type, a.head_dim_k), 0);
}

ggml_tensor* GraphBuilder::stored_values(int64_t layer, bool transposed) {
  const model::AttentionSpec& a = spec_.attention;
  const int64_t n_cells = n_kv(layer);
  if (transposed && kv_.values_transposed()) {
    ggml_tensor* values = kv_.values(layer);
    return ggml_view_3d(context_, values, n_cells, a.head_dim_v, a.n_head_kv, values->nb[1],
                        values->nb[1] * static_cast<size_t>(a.head_dim_v), 0);
  }
  ggml_tensor* rows = a.values_in_keys ? kv_.keys(layer) : kv_.values(layer);
  const int64_t head_dim = a.values_in_keys ? a.head_dim_k : a.head_dim_v;
  ggml_tensor* values = ggml_view_3d(context_, rows, a.head_dim_v, n_cells, a.n_head_kv,
                                     rows->nb[1], ggml_row_size(rows->type, head_dim), 0);
  if (!transposed) return values;
  // Blocks of quantized numbers cannot be transposed.
  if (ggml_is_quantized(values->type)) values = ggml_cast(context_, values, GGML_TYPE_F32);
  return ggml_cont(context_, ggml_transpose(context_, values));
}

ggml_tensor* GraphBuilder::flash_attention(int64_t layer, ggml_tensor* query, ggml_tensor* mask,
                                           ggml_tensor* sinks) {
  ggml_tensor* result =  // [T, n_head, head_dim_v]
      ggml_flash_attn_ext(context_, query, stored_keys(layer), stored_values(layer, false), mask,
                          spec_.attention.scale, 0.0F, 0.0F);
  ggml_prec_set_acc(result, GGML_PREC_F32);
  if (sinks != nullptr) ggml_flash_attn_ext_add_sinks(result, sinks);
  return ggml_permute(context_, result, 0, 2, 1, 3);
}

ggml_tensor* GraphBuilder::plain_attention(int64_t layer, ggml_tensor* query, ggml_tensor* mask,
                                           ggml_tensor* sinks) {
  ggml_tensor* scores = ggml_mul_mat(context_, stored_keys(layer), query);  // [n_head, T, n_kv]
  ggml_prec_set_acc(scores, GGML_PREC_F32);
  ggml_tensor* attention = ggml_soft_max_ext(context_, scores, mask, spec_.attention.scale, 0.0F);
  if (sinks != nullptr) ggml_soft_max_add_sinks(attention, sinks);
  return ggml_mul_mat(context_, stored_values(layer, true), attention);
}

ggml_tensor* GraphBuilder::attend(int64_t layer, const QueryKeyValue& qkv, ggml_tensor* mask,
                                  const LayerWeights& w) {
  store(layer, qkv);
  ggml_tensor* query = ggml_permute(context_, qkv.query, 0, 2, 1, 3);  // [n_head, T, head_dim_k]
  ggml_tensor* result = kv_.flash_attention() ? flash_attention(layer, query, mask, w.attn_sinks)
                                              : plain_attention(layer, query, mask, w.attn_sinks);
  if (w.attn_v_b != nullptr) result = ggml_mul_mat(context_, w.attn_v_b, result);
  const int64_t width = result->ne[0] * result->ne[2];
  result = ggml_permute(context_, result, 0, 2, 1, 3);  // [T, n_head, head_dim_v]
  result = ggml_is_contiguous(result) ? ggml_reshape_2d(context_, result, width, shape_.n_tokens)
                                      : ggml_cont_2d(context_, result, width, shape_.n_tokens);
  result = ggml_mul_mat(context_, w.attn_output, result);
  return w.attn_output_bias == nullptr ? result : ggml_add(context_, result, w.attn_output_bias);
}

QueryKeyValue GraphBuilder::project_latent(ggml_tensor* x, const LayerWeights& w) {
  const int64_t n_head = spec_.attention.n_head;
  const model::LatentSpec& latent_spec = spec_.attention.latent;
  const int64_t n_rotated = spec_.rope.n_dims;
  const int64_t n_plain = latent_spec.head_dim_k - n_rotated;
  const int64_t n_latent = latent_spec.n_latent;
  const int64_t n_tokens = shape_.n_tokens;
  // Numbers [begin, begin + n) of each head of y [T, heads, width].
  const auto part = [&](ggml_tensor* y, int64_t n, int64_t begin) {
    return ggml_view_3d(context_, y, n, y->ne[1], y->ne[2], y->nb[1], y->nb[2],
                        static_cast<size_t>(begin) * y->nb[0]);
  };
  const auto heads = [&](ggml_tensor* y, int64_t n) {
    return ggml_reshape_3d(context_, y, y->ne[0] / n, n, n_tokens);
  };

  ggml_tensor* query = nullptr;  // [T, n_head, latent.head_dim_k]
  if (w.attn_q_a != nullptr) {
    query = rms_norm(ggml_mul_mat(context_, w.attn_q_a, x), w.attn_q_a_norm);
    query = heads(ggml_mul_mat(context_, w.attn_q_b, query), n_head);
  } else {
    query = heads(ggml_mul_mat(context_, w.attn_q, x), n_head);
  }
  ggml_tensor* plain_query = part(query, n_plain, 0);
  ggml_tensor* rotated_query = rope(part(query, n_rotated, n_plain));

  ggml_tensor* joint = heads(ggml_mul_mat(context_, w.attn_kv_a, x), 1);
  ggml_tensor* latent = rms_norm(part(joint, n_latent, 0), w.attn_kv_a_norm);
  ggml_tensor* rotated_key = rope(part(joint, n_rotated, n_latent));  // [T, 1, n_rotated]

  if (w.attn_k_b != nullptr) {
    // q (B l) = (B^T q) l: the queries go to the latent vectors instead of these to the keys.
    ggml_tensor* absorbed =
        ggml_mul_mat(context_, w.attn_k_b, ggml_permute(context_, plain_query, 0, 2, 1, 3));
    absorbed = ggml_permute(context_, absorbed, 0, 2, 1, 3);  // [T, n_head, n_latent]
    return {.query = ggml_concat(context_, absorbed, rotated_query, 0),
            .key = ggml_concat(context_, latent, rotated_key, 0),
            .value = latent};
  }
  latent = ggml_reshape_2d(context_, latent, n_latent, n_tokens);
  ggml_tensor* both = heads(ggml_mul_mat(context_, w.attn_kv_b, latent), n_head);
  rotated_key = ggml_repeat_4d(context_, rotated_key, n_rotated, n_head, n_tokens, 1);
  return {.query = ggml_concat(context_, plain_query, rotated_query, 0),
          .key = ggml_concat(context_, part(both, n_plain, 0), rotated_key, 0),
          .value = ggml_cont(context_, part(both, latent_spec.head_dim_v, n_plain))};
}

ggml_tensor* GraphBuilder::activate(ggml_tensor* gate, ggml_tensor* up) {
  if (spec_.activation == model::Activation::kSwiGlu) {
    return ggml_swiglu_split(context_, gate, up);
  }
  // OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card", 2025.
  constexpr float kSharpness = 1.702F;
  constexpr float kLimit = 7.0F;
  return ggml_swiglu_oai(context_, gate, up, kSharpness, kLimit);
}

ggml_tensor* GraphBuilder::feed_forward(ggml_tensor* x, const FeedForwardWeights& w) {
  ggml_tensor* up = ggml_mul_mat(context_, w.up, x);
  ggml_tensor* gate = ggml_mul_mat(context_, w.gate, x);
  return ggml_mul_mat(context_, w.down, activate(gate, up));
}

ggml_tensor* GraphBuilder::gate_shared(const Routing& routing, const LayerWeights& w) {
  ggml_tensor* gate = ggml_mul_mat(context_, w.shared_gate, routing.x);  // [T, 1]
  return ggml_mul(context_, routing.shared, ggml_sigmoid(context_, gate));
}

ggml_tensor* GraphBuilder::limit_to_groups(ggml_tensor* scores) {
  const model::RouterSpec& r = spec_.router;
  const int64_t n_rows = scores->ne[1];
  const int64_t n_in_group = r.n_expert / r.n_group;
  ggml_tensor* grouped = ggml_reshape_3d(context_, scores, n_in_group, r.n_group, n_rows);
  ggml_tensor* best = ggml_argsort_top_k(context_, grouped, static_cast<int>(r.n_group_best));
  best = ggml_get_rows(context_,
                       ggml_reshape_4d(context_, scores, 1, n_in_group, r.n_group, n_rows), best);
  best = ggml_reshape_3d(context_, best, r.n_group_best, r.n_group, n_rows);
  ggml_tensor* sums = ggml_reshape_2d(context_, ggml_sum_rows(context_, best), r.n_group, n_rows);
  ggml_tensor* groups =  // [T, n_group_used]
      ggml_cont(context_, ggml_argsort_top_k(context_, sums, static_cast<int>(r.n_group_used)));
  ggml_tensor* kept = ggml_get_rows(context_, grouped, groups);
  ggml_tensor* limited =
      ggml_set_rows(context_, ggml_fill(context_, grouped, -INFINITY), kept, groups);
  return ggml_reshape_2d(context_, limited, r.n_expert, n_rows);
}

Routing GraphBuilder::route(ggml_tensor* residual, ggml_tensor* x, const LayerWeights& w) {
  const model::RouterSpec& r = spec_.router;
  const int64_t n_rows = x->ne[1];
  ggml_tensor* scores = ggml_mul_mat(context_, w.router, x);  // [T, n_expert]
  if (w.router_bias != nullptr) scores = ggml_add(context_, scores, w.router_bias);
  // Softmax keeps the order, and over the chosen scores alone it gives their normalised weights.
  const bool late_softmax = r.gating == model::Gating::kSoftmax && r.normalise_weights &&
                            !r.limits_groups() && w.selection_bias == nullptr;
  if (!late_softmax) {
    scores = r.gating == model::Gating::kSoftmax ? ggml_soft_max(context_, scores)
                                                 : ggml_sigmoid(context_, scores);
  }
  ggml_tensor* selection = scores;
  if (w.selection_bias != nullptr) selection = ggml_add(context_, scores, w.selection_bias);
  if (r.limits_groups()) selection = limit_to_groups(selection);
  ggml_tensor* ids = ggml_argsort_top_k(context_, selection, static_cast<int>(r.n_expert_used));
  ggml_tensor* weights = ggml_get_rows(
      context_, ggml_reshape_3d(context_, scores, 1, r.n_expert, n_rows), ids);  // [T, k, 1]
  weights = ggml_reshape_2d(context_, weights, r.n_expert_used, n_rows);
  if (late_softmax) {
    weights = ggml_soft_max(context_, weights);
  } else if (r.normalise_weights) {
    // Sigmoids may all be almost zero: the smallest normal F16 number keeps the quotient finite.
    ggml_tensor* sum = ggml_clamp(context_, ggml_sum_rows(context_, weights), 0x1p-14F, INFINITY);
    weights = ggml_div(context_, weights, sum);
  }
  weights = ggml_reshape_3d(context_, scaled(weights, r.weights_scale), 1, r.n_expert_used, n_rows);
  // All of it in one run of nodes, before anything that reads ids: so GPU backends make one kernel
  // of it.
  ggml_build_forward_expand(graph_, weights);
  return {.residual = residual, .x = x, .ids = ids, .weights = weights};
}

ggml_tensor* GraphBuilder::finish_pairs(ggml_tensor* y, ggml_tensor* scale, ggml_tensor* bias,
                                        ggml_tensor* ids) {
  if (scale != nullptr) {
    ggml_tensor* flat = ggml_is_contiguous(ids) ? ids : ggml_cont(context_, ids);
    flat = ggml_reshape_1d(context_, flat, ggml_nelements(ids));
    ggml_tensor* rows = ggml_reshape_2d(context_, scale, 1, scale->ne[0]);
    ggml_tensor* factors = ggml_get_rows(context_, rows, flat);
    y = ggml_mul(context_, y, ggml_reshape_3d(context_, factors, 1, ids->ne[0], ids->ne[1]));
  }
  return bias == nullptr ? y : ggml_add_id(context_, y, bias, ids);
}

ggml_tensor* GraphBuilder::experts(ggml_tensor* x, ggml_tensor* ids, ggml_tensor* slots,
                                   const FeedForwardWeights& w) {
  x = ggml_reshape_3d(context_, x, x->ne[0], 1, x->ne[1]);  // [T, 1, n_embd]
  ggml_tensor* gate = nullptr;
  ggml_tensor* up = nullptr;
  if (w.gate_up != nullptr) {
    ggml_tensor* both = ggml_mul_mat_id(context_, w.gate_up, x, slots);
    const int64_t n_ff = both->ne[0] / 2;
    const auto half = [&](int64_t begin) {
      return ggml_view_3d(context_, both, n_ff, both->ne[1], both->ne[2], both->nb[1], both->nb[2],
                          static_cast<size_t>(begin) * both->nb[0]);
    };
    gate = half(0);
    up = half(n_ff);
  } else {
    up = ggml_mul_mat_id(context_, w.up, x, slots);
    gate = ggml_mul_mat_id(context_, w.gate, x, slots);
  }
  up = finish_pairs(up, w.up_scale, w.up_bias, ids);
  gate = finish_pairs(gate, w.gate_scale, w.gate_bias, ids);
  ggml_tensor* down = ggml_mul_mat_id(context_, w.down, activate(gate, up), slots);
  return finish_pairs(down, w.down_scale, w.down_bias, ids);
}

ggml_tensor* GraphBuilder::combine(const Routing& routing, ggml_tensor* results) {
  ggml_tensor* weighted = ggml_mul(context_, results, routing.weights);
  const auto row_of = [&](int64_t i) {
    ggml_tensor* row = ggml_view_2d(context_, weighted, weighted->ne[0], weighted->ne[2],
                                    weighted->nb[2], static_cast<size_t>(i) * weighted->nb[1]);
    // Before all additions, which GPU backends then join in one kernel.
    ggml_build_forward_expand(graph_, row);
    return row;
  };
  std::vector<ggml_tensor*> rows;
  for (int64_t i = 0; i < weighted->ne[1]; ++i) rows.push_back(row_of(i));
  ggml_tensor* sum = rows[0];
  for (size_t i = 1; i < rows.size(); ++i) sum = ggml_add(context_, sum, rows[i]);
  if (routing.shared != nullptr) sum = ggml_add(context_, sum, routing.shared);
  return add_residual(sum, routing.residual);
}

ggml_tensor* GraphBuilder::select_outputs(ggml_tensor* x) {
  if (inputs_.output_rows == nullptr) return x;
  return ggml_get_rows(context_, x, inputs_.output_rows);
}

ggml_tensor* GraphBuilder::head(ggml_tensor* hidden) {
  ggml_tensor* x = rms_norm(hidden, weights_.output_norm);
  return scaled(ggml_mul_mat(context_, weights_.output, x), spec_.logit_scale);
}

}  // namespace hotset::engine
