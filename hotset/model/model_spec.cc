#include "hotset/model/model_spec.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "hotset/base/printable.h"
#include "hotset/model/spec_reader.h"

namespace hotset::model {
namespace {

// Far above every real model, and small enough that products of a few of them fit into int64_t.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = 1 << 20;
constexpr int64_t kMaxExperts = 1 << 16;
constexpr int64_t kMaxExpertsUsed = 1024;  // graphs have nodes for each of them in every layer
constexpr int64_t kMaxVocabulary = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxContext = 1 << 28;

void read_rope(SpecReader& reader, ModelSpec& spec) {
  RopeSpec& rope = spec.rope;
  rope.n_dims = reader.find("rope.dimension_count", kMaxWidth, spec.attention.head_dim_k);
  rope.freq_base = reader.find("rope.freq_base", 10000.0F);
  rope.factor = reader.find("rope.scaling.factor", reader.find("rope.scale_linear", 1.0F));
  const std::string scaling = reader.find("rope.scaling.type");
  if (scaling == "yarn") {
    rope.scaling = RopeScaling::kYarn;
  } else if (scaling == "linear" || (scaling.empty() && rope.factor != 1.0F)) {
    rope.scaling = RopeScaling::kLinear;
  } else if (!scaling.empty() && scaling != "none") {
    reader.fail(make_error(
        ErrorCode::kUnsupported, "{}: key '{}': found '{}', expected none, linear or yarn",
        reader.file().name(), reader.key_name("rope.scaling.type"), printable(scaling)));
  }
  if (rope.scaling == RopeScaling::kNone) rope.factor = 1.0F;
  rope.n_ctx_original =
      reader.find("rope.scaling.original_context_length", kMaxContext, spec.n_ctx_train);
  rope.attn_factor = reader.find("rope.scaling.attn_factor", 1.0F);
  rope.beta_fast = reader.find("rope.scaling.yarn_beta_fast", 32.0F);
  rope.beta_slow = reader.find("rope.scaling.yarn_beta_slow", 1.0F);
}

}  // namespace

Result<std::string> read_architecture(const GgufFile& file) {
  return file.require_string("general.architecture");
}

Result<ModelSpec> read_common_spec(const GgufFile& file, std::string_view architecture) {
  SpecReader reader(file, architecture);
  ModelSpec spec;
  spec.architecture = architecture;
  HOTSET_TRY(const auto name, file.find_string("general.name"));
  spec.name = name.value_or("");
  const int64_t n_blocks = reader.require("block_count", 1, kMaxLayers);
  const int64_t n_next = reader.find("nextn_predict_layers", kMaxLayers, 0);
  if (n_next >= n_blocks) {
    reader.fail(make_error(ErrorCode::kCorrupt, "{}: key '{}': found {}, expected at most {}",
                           file.name(), reader.key_name("nextn_predict_layers"), n_next,
                           n_blocks - 1));
  }
  spec.n_layer = n_blocks - n_next;
  spec.n_ctx_train = reader.require("context_length", 1, kMaxContext);
  spec.n_embd = reader.require("embedding_length", 1, kMaxWidth);
  spec.moe_layer_step = reader.find("interleave_moe_layer_step", kMaxLayers, 1);
  spec.n_ff = reader.find("feed_forward_length", kMaxWidth, 0);
  spec.n_ff_expert = reader.find("expert_feed_forward_length", kMaxWidth, 0);
  spec.norm_eps = reader.require_float("attention.layer_norm_rms_epsilon");

  AttentionSpec& attention = spec.attention;
  attention.n_head = reader.require("attention.head_count", 1, kMaxWidth);
  attention.n_head_kv = reader.find("attention.head_count_kv", kMaxWidth, attention.n_head);
  const int64_t head_dim = spec.n_embd / std::max<int64_t>(1, attention.n_head);
  attention.head_dim_k = reader.find("attention.key_length", kMaxWidth, head_dim);
  attention.head_dim_v = reader.find("attention.value_length", kMaxWidth, head_dim);
  attention.scale = 1.0F / std::sqrt(static_cast<float>(attention.head_dim_k));
  read_rope(reader, spec);

  RouterSpec& router = spec.router;
  router.n_expert = reader.find("expert_count", kMaxExperts, 0);
  router.n_expert_used = reader.find("expert_used_count", kMaxExpertsUsed, 0);

  // The embedding is the truth about the vocabulary: some files have no tokenizer, some no key.
  if (const TensorInfo* embedding = file.find_tensor("token_embd.weight")) {
    spec.n_vocab = embedding->ne[1];
  } else {
    spec.n_vocab = reader.find("vocab_size", kMaxVocabulary, 0);
  }
  HOTSET_RETURN_IF_ERROR(reader.status());
  for (int64_t layer = 0; layer < spec.n_layer && !spec.merged_gate_up; ++layer) {
    spec.merged_gate_up =
        file.find_tensor(fmt::format("blk.{}.ffn_gate_up_exps.weight", layer)) != nullptr;
  }
  HOTSET_RETURN_IF_ERROR(check_spec(spec, file.name()));
  return spec;
}

Status read_latent_keys(const GgufFile& file, ModelSpec& spec) {
  SpecReader reader(file, spec.architecture);
  AttentionSpec& attention = spec.attention;
  LatentSpec& latent = attention.latent;
  latent.n_latent = reader.require("attention.kv_lora_rank", 1, kMaxWidth);
  latent.n_query_latent = reader.find("attention.q_lora_rank", kMaxWidth, 0);
  latent.head_dim_k = reader.find("attention.key_length_mla", kMaxWidth, 0);
  latent.head_dim_v = reader.find("attention.value_length_mla", kMaxWidth, 0);
  HOTSET_RETURN_IF_ERROR(reader.status());
  const auto expect = [&](std::string_view key, int64_t found, int64_t expected) -> Status {
    if (found == expected) return {};
    return make_error(ErrorCode::kCorrupt, "{}: key '{}': found {}, expected {}", file.name(),
                      reader.key_name(key), found, expected);
  };
  attention.values_in_keys = latent.head_dim_k > 0 || latent.head_dim_v > 0;
  if (attention.values_in_keys) {
    HOTSET_RETURN_IF_ERROR(expect("attention.head_count_kv", attention.n_head_kv, 1));
    HOTSET_RETURN_IF_ERROR(
        expect("attention.key_length", attention.head_dim_k, latent.n_latent + spec.rope.n_dims));
    HOTSET_RETURN_IF_ERROR(expect("attention.value_length", attention.head_dim_v, latent.n_latent));
  } else {
    HOTSET_RETURN_IF_ERROR(
        expect("attention.head_count_kv", attention.n_head_kv, attention.n_head));
    latent.head_dim_k = attention.head_dim_k;
    latent.head_dim_v = attention.head_dim_v;
  }
  if (latent.head_dim_k <= spec.rope.n_dims || latent.head_dim_v == 0 || spec.rope.n_dims == 0 ||
      attention.n_head * std::max(latent.head_dim_k, latent.head_dim_v) > kMaxWidth) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: attention.key_length_mla and value_length_mla: found {} heads of {} and "
                      "{}, expected more than the {} rotated dimensions, more than 0, and at most "
                      "{} together",
                      file.name(), attention.n_head, latent.head_dim_k, latent.head_dim_v,
                      spec.rope.n_dims, kMaxWidth);
  }
  attention.scale = 1.0F / std::sqrt(static_cast<float>(latent.head_dim_k));
  return {};
}

Status read_shared_width(const GgufFile& file, ModelSpec& spec) {
  SpecReader reader(file, spec.architecture);
  spec.n_ff_shared = reader.find("expert_shared_feed_forward_length", kMaxWidth, 0);
  return reader.status();
}

Status read_router_keys(const GgufFile& file, ModelSpec& spec) {
  HOTSET_CHECK(spec.n_ff_expert > 0 && spec.router.n_expert > 0);
  SpecReader reader(file, spec.architecture);
  RouterSpec& router = spec.router;
  spec.n_layer_dense = reader.find("leading_dense_block_count", kMaxLayers, 0);
  spec.n_ff_shared =
      spec.n_ff_expert * reader.find("expert_shared_count", kMaxWidth / spec.n_ff_expert, 0);
  router.n_group = reader.find("expert_group_count", kMaxExperts, 1);
  router.n_group_used = reader.find("expert_group_used_count", kMaxExperts, router.n_group);
  router.normalise_weights = reader.find("expert_weights_norm", false);
  router.weights_scale = reader.find("expert_weights_scale", 1.0F);
  bool has_bias = false;
  for (int64_t layer = 0; layer < spec.n_layer && !has_bias; ++layer) {
    has_bias = file.find_tensor(fmt::format("blk.{}.exp_probs_b.bias", layer)) != nullptr;
  }
  // As converters number the functions.
  constexpr int64_t kSoftmax = 1;
  constexpr int64_t kSigmoid = 2;
  const int64_t gating = reader.find("expert_gating_func", 1000, has_bias ? kSigmoid : kSoftmax);
  if (gating != kSoftmax && gating != kSigmoid) {
    reader.fail(make_error(ErrorCode::kUnsupported,
                           "{}: key '{}': found {}, expected 1 (softmax) or 2 (sigmoid)",
                           file.name(), reader.key_name("expert_gating_func"), gating));
  }
  router.gating = gating == kSigmoid ? Gating::kSigmoid : Gating::kSoftmax;
  router.selection_bias = router.gating == Gating::kSigmoid || has_bias;
  router.n_group_best = router.gating == Gating::kSigmoid
                            ? std::clamp<int64_t>(router.n_expert / router.n_group, 1, 2)
                            : 1;
  HOTSET_RETURN_IF_ERROR(reader.status());
  return check_spec(spec, file.name());
}

namespace {

// `require(holds, field, found, expected)` is the caller's.
template <typename Require>
Status check_groups(const RouterSpec& router, const Require& require) {
  if (router.n_expert == 0 || router.n_group == 1) return {};
  HOTSET_RETURN_IF_ERROR(require(router.n_expert % router.n_group == 0, "expert_group_count",
                                 router.n_group,
                                 fmt::format("a divisor of {} experts", router.n_expert)));
  HOTSET_RETURN_IF_ERROR(require(router.n_group_used <= router.n_group, "expert_group_used_count",
                                 router.n_group_used, fmt::format("1 to {}", router.n_group)));
  const int64_t n_in_reach = router.n_expert / router.n_group * router.n_group_used;
  return require(
      router.n_expert_used <= n_in_reach, "expert_used_count", router.n_expert_used,
      fmt::format("at most the {} experts of {} groups", n_in_reach, router.n_group_used));
}

}  // namespace

Status check_spec(const ModelSpec& spec, std::string_view file_name) {
  const auto require = [&](bool holds, std::string_view field, int64_t found,
                           std::string_view expected) -> Status {
    if (holds) return {};
    return make_error(ErrorCode::kCorrupt, "{}: {}: found {}, expected {}", file_name, field, found,
                      expected);
  };
  const AttentionSpec& attention = spec.attention;
  HOTSET_RETURN_IF_ERROR(require(
      attention.n_head_kv <= attention.n_head && attention.n_head % attention.n_head_kv == 0,
      "attention.head_count_kv", attention.n_head_kv,
      fmt::format("a divisor of {} heads", attention.n_head)));
  HOTSET_RETURN_IF_ERROR(require(attention.head_dim_k > 0, "attention.key_length",
                                 attention.head_dim_k, "at least 1"));
  HOTSET_RETURN_IF_ERROR(require(attention.head_dim_v > 0, "attention.value_length",
                                 attention.head_dim_v, "at least 1"));
  const int64_t head_dim = std::max(attention.head_dim_k, attention.head_dim_v);
  HOTSET_RETURN_IF_ERROR(
      require(attention.n_head * head_dim <= kMaxWidth, "attention.head_count", attention.n_head,
              fmt::format("heads of {} to be at most {} wide together", head_dim, kMaxWidth)));
  HOTSET_RETURN_IF_ERROR(require(
      spec.rope.n_dims % 2 == 0 && spec.rope.n_dims <= attention.head_dim_k, "rope.dimension_count",
      spec.rope.n_dims, fmt::format("an even number up to {}", attention.head_dim_k)));
  if (spec.rope.freq_base <= 0 || spec.rope.factor <= 0) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: rope: found base {} and factor {}, expected positive numbers", file_name,
                      spec.rope.freq_base, spec.rope.factor);
  }
  if (!(spec.norm_eps >= 0)) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: attention.layer_norm_rms_epsilon: found {}, expected at least 0",
                      file_name, spec.norm_eps);
  }
  for (const float scale : {spec.embedding_scale, spec.residual_scale, spec.logit_scale,
                            spec.attention.scale, spec.router.weights_scale}) {
    if (std::isfinite(scale)) continue;
    return make_error(ErrorCode::kCorrupt, "{}: scales: found {}, expected finite numbers",
                      file_name, scale);
  }
  HOTSET_RETURN_IF_ERROR(require(spec.n_vocab <= kMaxVocabulary, "vocabulary", spec.n_vocab,
                                 fmt::format("at most {}", kMaxVocabulary)));
  const RouterSpec& router = spec.router;
  HOTSET_RETURN_IF_ERROR(
      require(router.n_expert == 0 ||
                  (router.n_expert_used >= 1 && router.n_expert_used <= router.n_expert),
              "expert_used_count", router.n_expert_used, fmt::format("1 to {}", router.n_expert)));
  HOTSET_RETURN_IF_ERROR(check_groups(router, require));
  const bool has_dense_layers = spec.n_layer_dense > 0 || spec.moe_layer_step > 1;
  HOTSET_RETURN_IF_ERROR(require(!has_dense_layers || spec.n_ff > 0, "feed_forward_length",
                                 spec.n_ff, "the width of the layers without experts"));
  return require(spec.n_layer_dense <= spec.n_layer, "leading_dense_block_count",
                 spec.n_layer_dense, fmt::format("at most {}", spec.n_layer));
}

Status require_experts(const ModelSpec& spec, std::string_view file_name) {
  if (spec.router.n_expert == 0) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: key '{}.expert_count': found 0, expected at least 1", file_name,
                      spec.architecture);
  }
  if (spec.n_ff_expert == 0) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: key '{}.expert_feed_forward_length': found nothing, expected the width "
                      "of an expert",
                      file_name, spec.architecture);
  }
  return {};
}

}  // namespace hotset::model
