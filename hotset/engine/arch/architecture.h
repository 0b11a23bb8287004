// What differs from one model architecture to the next: its hyperparameters, its weights and its
// graph, built from the blocks of graph_builder.h. One small file in arch/ each, and one line in
// the registry (architecture.cc).
// Thread-safe: architectures have no state.
#ifndef HOTSET_ENGINE_ARCH_ARCHITECTURE_H_
#define HOTSET_ENGINE_ARCH_ARCHITECTURE_H_

#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/arch/key_writer.h"
#include "hotset/engine/graph/graph_builder.h"
#include "hotset/engine/weights/random_model.h"
#include "hotset/engine/weights/weights.h"
#include "hotset/model/gguf_file.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

class Architecture {
 public:
  virtual ~Architecture() = default;

  // As general.architecture has it.
  virtual std::string_view name() const = 0;

  // Errors: kCorrupt, kUnsupported; the message names file, key, found and expected.
  virtual Result<model::ModelSpec> read_spec(const model::GgufFile& file) const = 0;

  // Keys that a converted file has beside those of random_model.cc's common ones, for a model of
  // these options. By default none.
  virtual void add_typical_keys(const RandomModelOptions& options, KeyWriter& keys) const;

  // The weights of a model of this shape. `weights` must stay where it is: the list points into it.
  // By default the decoder's, and for each layer attention, norm and feed-forward part (dense, or
  // experts and shared expert), and declare_special().
  virtual void declare_weights(const model::ModelSpec& spec, ModelWeights& weights,
                               WeightList& list) const;

  // Norm, projections and output of attention. By default of queries, keys and values.
  virtual void declare_attention_weights(const model::ModelSpec& spec, int64_t layer,
                                         LayerWeights& weights, WeightList& list) const;

  // What a layer has beyond that. By default nothing.
  virtual void declare_special(const model::ModelSpec& spec, int64_t layer, LayerWeights& weights,
                               WeightList& list) const;

  // What files call the norm in front of the feed-forward part.
  virtual std::string_view ffn_norm_name() const { return "ffn_norm.weight"; }

  // The layer's attention with its residual: hidden [n_tokens, n_embd] to the same shape. By
  // default norm, query_key_value(), attention over all positions so far or the layer's window.
  virtual ggml_tensor* attention(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const;

  // Queries, keys and values, at their positions, of the normed hidden state x [n_tokens, n_embd].
  // By default projections and position().
  virtual QueryKeyValue query_key_value(GraphBuilder& g, const LayerWeights& w,
                                        ggml_tensor* x) const;

  // Norms and rotations of queries and keys. By default an RMS norm over each head where the layer
  // has weights for one, and RoPE.
  virtual QueryKeyValue position(GraphBuilder& g, const LayerWeights& w, QueryKeyValue qkv) const;

  // Norm before the feed-forward part, router and top-k of a MoE layer; the shared expert's result
  // where there is one. By default ffn_norm, the router, and the shared expert as it is.
  virtual Routing route(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const;

  // The layer's feed-forward part where it is dense, with its residual.
  virtual ggml_tensor* dense_feed_forward(GraphBuilder& g, int64_t layer,
                                          ggml_tensor* hidden) const;
};

// The keys that model::read_router_keys() reads, for a random model: one dense layer unless there
// is only one, one shared expert, a sigmoid gate, half of at most `max_groups` groups.
void add_typical_router_keys(const RandomModelOptions& options, int64_t max_groups,
                             KeyWriter& keys);

// Null if there is none of that name.
const Architecture* find_architecture(std::string_view name);
// The architecture that the file names. Errors: kCorrupt (no name), kUnsupported (the message lists
// the known ones).
Result<const Architecture*> architecture_of(const model::GgufFile& file);
std::vector<std::string_view> architecture_names();

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_ARCH_ARCHITECTURE_H_
