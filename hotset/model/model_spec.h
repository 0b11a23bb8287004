// What a model is: its hyperparameters, read from metadata into typed fields and checked, so that
// no later arithmetic on them can overflow and no ggml call can be misused.
// Thread-compatible: plain values.
#ifndef HOTSET_MODEL_MODEL_SPEC_H_
#define HOTSET_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "hotset/base/error.h"
#include "hotset/model/gguf_file.h"

namespace hotset::model {

enum class RopeScaling { kNone, kLinear, kYarn };

// Rotary position embedding (Su et al., "RoFormer", 2021) with the context extensions of
// Chen et al. 2023 (linear) and Peng et al. 2023 (YaRN).
struct RopeSpec {
  int64_t n_dims = 0;        // rotated dimensions of a head, even, at most the head's size
  bool interleaved = false;  // pairs (2i, 2i+1) instead of (i, i + n_dims/2)
  float freq_base = 10000.0F;
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0F;         // by how much the context was extended
  int64_t n_ctx_original = 0;  // context the model was trained for before the extension
  float attn_factor = 1.0F;    // scale of the rotated vectors
  float beta_fast = 32.0F;     // YaRN: rotations above which a dimension is left alone
  float beta_slow = 1.0F;      // YaRN: rotations below which it is fully interpolated
};

// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", 2024): keys and values of all heads are
// made from one latent vector per token, beside which one rotated key is shared by all heads.
struct LatentSpec {
  int64_t n_latent = 0;        // width of the latent vector; 0: attention is not of this kind
  int64_t n_query_latent = 0;  // queries are made from a latent of this width; 0: from x itself
  int64_t head_dim_k = 0;      // of a decompressed head; its last rope.n_dims are rotated
  int64_t head_dim_v = 0;
};

struct AttentionSpec {
  int64_t n_head = 0;
  int64_t n_head_kv = 0;   // divides n_head
  int64_t head_dim_k = 0;  // of queries and keys
  int64_t head_dim_v = 0;
  float scale = 1.0F;           // of the scores, before the softmax
  int64_t window = 0;           // positions that a windowed layer sees, its own among them; 0: none
  int64_t window_period = 1;    // of so many layers in a row all but the last are windowed
  bool values_in_keys = false;  // a key's first head_dim_v numbers are the value as well
  LatentSpec latent;

  bool is_windowed(int64_t layer) const {
    return window > 0 && layer % window_period != window_period - 1;
  }
};

enum class Gating {
  kSoftmax,  // over all experts
  kSigmoid,
};

// How a layer's k experts of a token are chosen and weighted.
struct RouterSpec {
  int64_t n_expert = 0;
  int64_t n_expert_used = 0;  // k, 1 to n_expert
  Gating gating = Gating::kSoftmax;
  bool normalise_weights = false;  // the k weights of a token add up to 1
  float weights_scale = 1.0F;
  bool selection_bias = false;  // the experts are chosen, but not weighted, by score plus a bias
  // The experts are chosen from the best n_group_used of n_group groups of neighbours. A group
  // scores as much as its best n_group_best experts together.
  int64_t n_group = 1;
  int64_t n_group_used = 1;
  int64_t n_group_best = 1;

  bool limits_groups() const { return n_group_used < n_group; }
};

// What a feed-forward network multiplies its two projections by.
enum class Activation {
  kSwiGlu,         // silu(gate) * up
  kClampedSwiGlu,  // of gpt-oss: both clamped, gate * sigmoid(1.702 gate) * (up + 1)
};

struct ModelSpec {
  std::string architecture;
  std::string name;            // as the file calls the model; may be empty
  int64_t n_layer = 0;         // without those that predict further tokens ("NextN")
  int64_t n_layer_dense = 0;   // leading layers without experts
  int64_t moe_layer_step = 1;  // behind them every so many-th layer has experts
  int64_t n_ctx_train = 0;
  int64_t n_embd = 0;
  int64_t n_vocab = 0;
  int64_t n_ff = 0;         // width of a dense feed-forward network; 0 if there is none
  int64_t n_ff_expert = 0;  // width of one expert
  int64_t n_ff_shared =
      0;  // width of the shared expert, of all together if there are several; or 0
  bool merged_gate_up = false;  // gate and up of an expert are one tensor, gate first
  Activation activation = Activation::kSwiGlu;
  float norm_eps = 1e-5F;
  float embedding_scale = 1.0F;  // multiplies token embeddings
  float residual_scale = 1.0F;   // multiplies what a layer's parts add to the hidden state
  float logit_scale = 1.0F;      // multiplies logits
  AttentionSpec attention;
  RopeSpec rope;
  RouterSpec router;

  bool is_moe_layer(int64_t layer) const {
    return router.n_expert > 0 && layer >= n_layer_dense && (layer + 1) % moe_layer_step == 0;
  }
};

// The architecture's name. Errors: kCorrupt (missing).
Result<std::string> read_architecture(const GgufFile& file);

// Fills the fields that most architectures share from the keys "ARCH.*" and checks them.
// Keys that are zero or absent take the usual default: head sizes n_embd / n_head, n_head_kv
// n_head, RoPE over the whole head, scores divided by sqrt(head_dim_k).
// Errors: kCorrupt; the message names file, key, found and expected.
Result<ModelSpec> read_common_spec(const GgufFile& file, std::string_view architecture);

// The keys of routers as DeepSeek has them, into a spec from read_common_spec(): leading dense
// layers, shared experts, gating, groups, normalisation and scale of the weights. A file that does
// not name its gate means a sigmoid if it has selection biases, else a softmax. Sigmoid gates score
// a group by its best two experts (DeepSeek-V3), softmax gates by its best one (DeepSeek-V2).
// Requires: require_experts() succeeds. Errors: kCorrupt, kUnsupported.
Status read_router_keys(const GgufFile& file, ModelSpec& spec);

// The keys of latent attention, into a spec from read_common_spec(). Files with the keys "*_mla"
// keep the latent vectors in the KV memory, as one head of keys whose values are in the keys.
// Errors: kCorrupt.
Status read_latent_keys(const GgufFile& file, ModelSpec& spec);

// Fills n_ff_shared from the key that most architectures with a shared expert have; 0 without one.
// Errors: kCorrupt.
Status read_shared_width(const GgufFile& file, ModelSpec& spec);

// The relations that ggml's kernels rely on. read_common_spec() calls it; an architecture that
// changes fields calls it again. Errors: kCorrupt, naming `file_name` and the field.
Status check_spec(const ModelSpec& spec, std::string_view file_name);

// For architectures in which every layer has experts. Errors: kCorrupt if the model has none, or
// their width is missing.
Status require_experts(const ModelSpec& spec, std::string_view file_name);

}  // namespace hotset::model

#endif  // HOTSET_MODEL_MODEL_SPEC_H_
