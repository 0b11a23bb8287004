// Computes a model, or its first layers, on the CPU: one graph per ubatch.
#ifndef HOTSET_ENGINE_RUN_CPU_EXECUTOR_H_
#define HOTSET_ENGINE_RUN_CPU_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/device/backend.h"
#include "hotset/device/tensor_context.h"
#include "hotset/engine/graph/graph_builder.h"
#include "hotset/engine/graph/ubatch_inputs.h"
#include "hotset/engine/kv/kv_cache.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/loaded_model.h"

namespace hotset::engine {

// An upper bound of the nodes and leaves of a graph of `n_layers` layers.
size_t max_graph_nodes(const model::ModelSpec& spec, int64_t n_layers);

// What `graph` reads of weights and KV memory, experts counted as if each pair chose another one.
Bytes graph_reads(ggml_cgraph* graph);

// Fails with kUnsupported, naming the operation, if `supports` refuses a node of `graph`.
Status check_supported(ggml_cgraph* graph, const std::function<bool(const ggml_tensor*)>& supports,
                       std::string_view device_name);

// Keeps the graphs of the shapes it saw last. Thread-compatible.
class CpuExecutor final : public Executor {
 public:
  // All references must outlive the executor. Reserves the compute buffer for ubatches of every
  // size at full context. With `n_layers` below the model's it computes only these first layers
  // and gives the hidden state of every token instead of logits.
  // Errors: kInvalidArgument, kUnsupported (an operation that the CPU backend does not have),
  // kOutOfMemory.
  static Result<std::unique_ptr<CpuExecutor>> create(const LoadedModel& model, KvCache& kv,
                                                     device::Backend& cpu,
                                                     const ExecutorOptions& options,
                                                     int64_t n_layers);

  Status run(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
             std::vector<float>& logits) override;
  Bytes compute_bytes() const override { return compute_.reserved(); }
  int64_t n_graphs_built() const override { return n_graphs_built_; }
  std::span<const float> hidden_sums() const override { return hidden_sums_; }

  // As run() for inputs that were filled by the caller. `out` gets the rows: logits
  // [n_outputs, n_vocab] or hidden states [n_tokens, n_embd]. Returns what was read.
  Result<Bytes> run_into(const GraphShape& shape, const UbatchInputs& inputs, float* out);

 private:
  struct KeptGraph {
    GraphShape shape;
    device::TensorContext context;
    ggml_cgraph* graph = nullptr;
    GraphInputs inputs;
    ggml_tensor* result = nullptr;  // null without outputs
    // Executor::hidden_sums(); null where there are none.
    ggml_tensor* sums_before = nullptr;
    ggml_tensor* sums_behind = nullptr;
    std::vector<ggml_tensor*> routing;    // per MoE layer that is computed: [rows, k] I32
    std::vector<int64_t> routing_layers;  // their layers
    Bytes reads;
    uint64_t last_use = 0;
  };

  CpuExecutor(const LoadedModel& model, KvCache& kv, device::Backend& cpu,
              const ExecutorOptions& options, int64_t n_layers);
  Result<KeptGraph> build(const GraphShape& shape) const;
  void add_layers(GraphBuilder& g, KeptGraph& kept) const;
  Status reserve();
  Result<KeptGraph*> graph_for(const GraphShape& shape);
  void report_routing(const KeptGraph& kept);
  bool is_whole_model() const { return n_layers_ == model_.spec().n_layer; }

  const LoadedModel& model_;
  KvCache& kv_;
  device::Backend& cpu_;
  ExecutorOptions options_;
  int64_t n_layers_;
  device::ComputeBuffer compute_;
  std::vector<std::unique_ptr<KeptGraph>> kept_;
  uint64_t n_runs_ = 0;
  int64_t n_graphs_built_ = 0;
  UbatchInputs inputs_;
  std::vector<int32_t> routed_ids_;
  std::vector<float> hidden_sums_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_CPU_EXECUTOR_H_
