// The graphs by which a device runs its layers, and the buffers through which they and the CPU lane
// hand data to each other.
//
// The device's layers are cut into segments. A segment combines the experts' results of the MoE
// layer before it, computes attention (and dense layers) and ends with the routing of the next MoE
// layer, or with the head. What crosses a cut lies in persistent buffers: residual, x, ids,
// weights and the shared expert's result of the routing, and the pair buffer `results [P, n_embd]`,
// P = rows * k, which whoever computes a pair fills at the pair's own place.
#ifndef HOTSET_ENGINE_RUN_DEVICE_GRAPHS_H_
#define HOTSET_ENGINE_RUN_DEVICE_GRAPHS_H_

#include <ggml-cpp.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/backend.h"
#include "hotset/device/device.h"
#include "hotset/engine/experts/expert_banks.h"
#include "hotset/engine/experts/lookup_graphs.h"
#include "hotset/engine/graph/graph_builder.h"
#include "hotset/engine/graph/graph_parts.h"
#include "hotset/engine/kv/kv_cache.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/engine/weights/placement.h"

namespace hotset::engine {

// Layers [first_layer, end_layer), which are computed in one graph, MoE layers whose experts are
// all on the device included. `combines`: the MoE layer whose results it adds up first; `routes`:
// the MoE layer, its last one, whose routing it ends with; -1 for none. Without `routes` it is the
// last segment.
struct Segment {
  int64_t first_layer = 0;
  int64_t end_layer = 0;
  int64_t combines = -1;
  int64_t routes = -1;
};

// The segments of layers [first_layer, n_layer) of a model. `is_resident`, if given: MoE layers
// that need no host. Requires: first_layer < n_layer.
std::vector<Segment> cut_segments(const model::ModelSpec& spec, int64_t first_layer,
                                  const std::function<bool(int64_t layer)>& is_resident = {});

// Device tensors at their largest; graphs use the part they need, from the start.
struct CrossTensors {
  ggml_tensor* positions = nullptr;    // [n_ubatch] I32
  ggml_tensor* key_rows = nullptr;     // [n_cell_kinds * n_ubatch] I64
  ggml_tensor* value_rows = nullptr;   // [n_value_rows] I64
  ggml_tensor* mask = nullptr;         // [n_ubatch * (n_cells + cells of windowed layers)] F16
  ggml_tensor* output_rows = nullptr;  // [n_ubatch] I32
  ggml_tensor* hidden = nullptr;       // [n_ubatch, n_embd], what enters the first segment
  // Of even and odd segments, so that none reads what it writes.
  struct Routed {
    ggml_tensor* residual = nullptr;  // [n_ubatch, n_embd]
    ggml_tensor* x = nullptr;         // [n_ubatch, n_embd]
    ggml_tensor* ids = nullptr;       // [n_ubatch or more, k] I32
    ggml_tensor* weights = nullptr;   // [n_ubatch, k]
    ggml_tensor* shared = nullptr;    // [n_ubatch, n_embd]
  };
  std::array<Routed, 2> routed;
  // The pair buffer [n_ubatch * k + 1, n_embd]; the last row takes what nobody reads.
  ggml_tensor* results = nullptr;
  // What a ubatch gives the host, in one copy: Executor::hidden_sums(), each part at its most, and
  // logits [n_outputs, n_vocab] or hidden [n_outputs, n_embd].
  ggml_tensor* output = nullptr;       // F32, of which the next ones are parts
  ggml_tensor* sums_before = nullptr;  // [n_ubatch]
  ggml_tensor* sums_behind = nullptr;  // [n_outputs]
  ggml_tensor* out = nullptr;

  // With an expert cache:
  ggml_tensor* pair_tokens = nullptr;  // [n_ubatch * k] I32, the token of each pair
  ggml_tensor* pair_list = nullptr;    // [kPairListParts * stride] I32
  ggml_tensor* cpu_rows = nullptr;     // [max_listed, n_embd], what the CPU lane computed
  ggml_tensor* row_list = nullptr;     // [max_listed] I32, where these rows go
  // Routing of resident layers, for an observer: [n_ubatch, k] I32 each, null for other layers.
  std::vector<ggml_tensor*> resident_ids;
};

// The same in pinned host memory, as far as the host needs it; the CPU lane's graphs read and write
// it in place.
struct HostTensors {
  ggml_tensor* positions = nullptr;
  ggml_tensor* key_rows = nullptr;
  ggml_tensor* value_rows = nullptr;
  ggml_tensor* mask = nullptr;
  ggml_tensor* output_rows = nullptr;
  ggml_tensor* hidden = nullptr;
  ggml_tensor* x = nullptr;
  ggml_tensor* ids = nullptr;
  ggml_tensor* results = nullptr;
  ggml_tensor* output = nullptr;
  ggml_tensor* out = nullptr;

  ggml_tensor* pair_list = nullptr;  // [max_list_numbers] I32: of one lookup
  ggml_tensor* row_list = nullptr;
  ggml_tensor* cpu_rows = nullptr;
  ggml_tensor* cpu_tokens = nullptr;  // [n_ubatch * k] I32, of the pairs of the CPU lane
  ggml_tensor* cpu_ids = nullptr;     // [n_ubatch * k] I32
  std::vector<ggml_tensor*> resident_ids;
};

// All graphs for ubatches of one shape.
struct GraphSet {
  GraphShape shape;
  std::vector<KeptGraph> segments;
  std::vector<KeptGraph> experts;  // on the CPU: of each segment that routes
  KeptGraph head;                  // on the CPU, where the head is not on the device
  uint64_t last_use = 0;
};

// Owns graphs and buffers. Thread-compatible; allocates device memory only in create().
class DeviceGraphs {
 public:
  // All references, and `banks` (null: no expert cache), must outlive the object.
  // Errors: kUnsupported (an operation that device or CPU does not have, by name), kOutOfMemory.
  static Result<std::unique_ptr<DeviceGraphs>> create(const LoadedModel& model, const KvCache& kv,
                                                      device::DeviceMemory& memory,
                                                      device::Backend& cpu,
                                                      const Placement& placement,
                                                      const ExecutorOptions& options,
                                                      const ExpertBanks* banks);
  ~DeviceGraphs();

  // The graphs of a shape, built if they are not kept. Errors: kUnsupported, kOutOfMemory,
  // kInternal, kDevice.
  Result<GraphSet*> for_shape(const GraphShape& shape);

  const std::vector<Segment>& segments() const { return segments_; }
  const CrossTensors& cross() const { return cross_; }
  const HostTensors& host() const { return host_; }
  // Requires: banks were given.
  LookupGraphs& lookups() { return *lookups_; }
  // Rows that a MoE layer routes in a ubatch of `shape`, and those that `segment` ends with.
  int32_t n_rows(int64_t layer, const GraphShape& shape) const;
  int32_t n_rows(const Segment& segment, const GraphShape& shape) const {
    return n_rows(segment.routes, shape);
  }
  // Where a part of CrossTensors::output begins in it, in bytes; the same on the host.
  size_t offset_in_output(const ggml_tensor* part) const {
    return static_cast<size_t>(static_cast<const uint8_t*>(part->data) -
                               static_cast<const uint8_t*>(cross_.output->data));
  }
  // Whether ubatches leave ids in CrossTensors::resident_ids.
  bool fetches_resident_ids() const { return !cross_.resident_ids.empty(); }
  // Bytes of one expert of a layer, all its tensors.
  Bytes expert_bytes(int64_t layer) const;
  bool pinned() const { return host_buffer_.pinned(); }
  Bytes compute_bytes() const { return device_compute_.reserved() + cpu_compute_.reserved(); }
  int64_t n_graphs_built() const {
    return n_graphs_built_ + (lookups_ ? lookups_->n_graphs_built() : 0);
  }

 private:
  // Requires: there is one.
  device::Device& device() const { return *memory_.device(); }
  DeviceGraphs(const LoadedModel& model, const KvCache& kv, device::DeviceMemory& memory,
               device::Backend& cpu, const Placement& placement, const ExecutorOptions& options,
               const ExpertBanks* banks);

  const BankedLayer* banked(int64_t layer) const {
    return banks_ == nullptr ? nullptr : banks_->layer(layer);
  }
  bool is_resident(int64_t layer) const {
    const BankedLayer* at = banked(layer);
    return at != nullptr && at->resident();
  }
  bool has_slots() const;  // some layer has slots and is not resident
  ggml_tensor* resident_experts(GraphBuilder& g, int64_t layer, ggml_tensor* hidden) const;
  void declare_cache_tensors(ggml_context* c);
  Status fill_pair_tokens();
  Status allocate_cross();
  Status allocate_host();
  Status reserve();
  Result<GraphSet> build(const GraphShape& shape) const;
  Result<KeptGraph> build_segment(size_t index, const GraphShape& shape) const;
  Result<KeptGraph> build_experts(const Segment& segment, const GraphShape& shape) const;
  Result<KeptGraph> build_head(const GraphShape& shape) const;
  GraphInputs device_inputs(ggml_context* context, const GraphShape& shape) const;
  Status check(GraphSet& set) const;

  const LoadedModel& model_;
  const KvCache& kv_;
  device::DeviceMemory& memory_;  // without a device where all is only planned
  device::Backend& cpu_;
  Placement placement_;
  ExecutorOptions options_;
  const ExpertBanks* banks_;
  std::vector<Segment> segments_;
  device::TensorContext cross_context_;
  device::TensorContext host_context_;
  device::DeviceBuffer cross_buffer_;
  device::HostBuffer host_buffer_;
  device::DeviceBuffer compute_claim_;
  CrossTensors cross_;
  HostTensors host_;
  device::ComputeBuffer device_compute_;
  device::ComputeBuffer cpu_compute_;
  std::optional<LookupGraphs> lookups_;
  std::vector<std::unique_ptr<GraphSet>> kept_;
  uint64_t n_uses_ = 0;
  int64_t n_graphs_built_ = 0;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_DEVICE_GRAPHS_H_
