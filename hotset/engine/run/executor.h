// Runs ubatches of tokens through a model and leaves logits.
#ifndef HOTSET_ENGINE_RUN_EXECUTOR_H_
#define HOTSET_ENGINE_RUN_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/engine/kv/context_options.h"
#include "hotset/lanes/cache_rules.h"

namespace hotset::engine {

// One token of a batch.
struct BatchToken {
  int32_t token = 0;
  int32_t position = 0;  // in its sequence, from 0
  SequenceId sequence = 0;
  bool want_logits = false;
};

// Called once per MoE layer and ubatch: `ids [n_tokens, k]`, routing order. In the last layer only
// the tokens that want logits are routed.
using RoutingObserver =
    std::function<void(int64_t layer, std::span<const int32_t> ids, int64_t n_tokens)>;

struct ExecutorOptions {
  ContextOptions context = {};
  RoutingObserver observe_routing = {};
  lanes::CacheRules rules = {};  // of the expert cache, where there is one
};

// Thread-compatible.
class Executor {
 public:
  virtual ~Executor() = default;

  // Computes `ubatch`, whose tokens were given `cells` of the KV memory (KvCache::assign()).
  // Appends one row of n_vocab logits to `logits` for each token that wants them.
  // Requires: 1 to n_ubatch tokens, at most n_outputs of which want logits; token ids within the
  // vocabulary.
  // Errors: kDevice, kOutOfMemory, kInternal.
  virtual Status run(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
                     std::vector<float>& logits) = 0;

  // Of the last run(): sums of hidden states, which are not finite where a layer has given a number
  // that is not. First, if some tokens wanted no logits, for each token [n_tokens] of what enters
  // the last layer; then for each that wanted some [n_outputs] of what leaves it. Kernels that
  // quantize what they are given make numbers of NaN, so logits alone do not tell.
  virtual std::span<const float> hidden_sums() const = 0;

  // Compute buffers on all devices.
  virtual Bytes compute_bytes() const = 0;
  // How many graphs were built so far; stays put in steady state.
  virtual int64_t n_graphs_built() const = 0;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_EXECUTOR_H_
