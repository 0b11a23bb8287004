// Runs ubatches of tokens through a model and leaves logits.
#ifndef HOTSET_ENGINE_EXECUTOR_H_
#define HOTSET_ENGINE_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/backend.h"
#include "hotset/engine/architecture.h"
#include "hotset/engine/kv_cache.h"
#include "hotset/engine/loaded_model.h"

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

// Everything on the CPU: one graph per ubatch.
// Keeps the graphs of the shapes it saw last. Thread-compatible.
class CpuExecutor {
 public:
  struct Options {
    int32_t n_ubatch = 512;  // most tokens of one ubatch, at least 1
    int32_t n_outputs = 1;   // most tokens of one ubatch that want logits, at least 1
    RoutingObserver observe_routing = {};
  };

  // All references must outlive the executor. Reserves the compute buffer for ubatches of every
  // size at full context.
  // Errors: kUnsupported (an operation that the CPU backend does not have), kOutOfMemory.
  static Result<std::unique_ptr<CpuExecutor>> create(const LoadedModel& model, KvCache& kv,
                                                     device::Backend& cpu, Options options);

  // Computes `ubatch`, whose tokens were given `cells` of the KV memory (marked as occupied).
  // Appends one row of n_vocab logits to `logits` for each token that wants them.
  // Requires: 1 to n_ubatch tokens, at most n_outputs of which want logits; one cell per token;
  // token ids within the vocabulary.
  Status run(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
             std::vector<float>& logits);

  Bytes compute_bytes() const { return compute_.reserved(); }
  // How many graphs were built so far; stays put in steady state.
  int64_t n_graphs_built() const { return n_graphs_built_; }

 private:
  struct KeptGraph {
    GraphShape shape;
    ggml_context_ptr context;
    ggml_cgraph* graph = nullptr;
    GraphInputs inputs;
    ggml_tensor* logits = nullptr;        // [n_outputs, n_vocab]; null without outputs
    std::vector<ggml_tensor*> routing;    // per MoE layer that is computed: [rows, k] I32
    std::vector<int64_t> routing_layers;  // their layers
    uint64_t last_use = 0;
  };

  CpuExecutor(const LoadedModel& model, KvCache& kv, device::Backend& cpu, Options options);
  KeptGraph build(const GraphShape& shape) const;
  Status reserve();
  Status check_supported(const ggml_cgraph* graph) const;
  Result<KeptGraph*> graph_for(const GraphShape& shape);
  void set_inputs(const KeptGraph& kept, std::span<const BatchToken> ubatch,
                  std::span<const int32_t> cells);
  void report_routing(const KeptGraph& kept);

  const LoadedModel& model_;
  KvCache& kv_;
  device::Backend& cpu_;
  Options options_;
  device::ComputeBuffer compute_;
  std::vector<std::unique_ptr<KeptGraph>> kept_;
  uint64_t n_runs_ = 0;
  int64_t n_graphs_built_ = 0;
  // Staging for inputs, sized once.
  std::vector<int32_t> int32s_;
  std::vector<int64_t> int64s_;
  std::vector<ggml_fp16_t> mask_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXECUTOR_H_
