// The graphs by which the lanes compute a part of a lookup's pairs: on the device from the banks,
// on the CPU from host memory, and the graph that brings rows of the CPU lane to their pairs.
//
// Two forms, because kernels sort by expert what several tokens choose: of one token `x [n_embd]`
// and `ids [k, 1]`, and of several `x [P, n_embd]`, gathered by pair, and `ids [1, P]`.
//
// Owns the graphs, not the memory they work in. Thread-compatible.
#ifndef HOTSET_ENGINE_EXPERTS_LOOKUP_GRAPHS_H_
#define HOTSET_ENGINE_EXPERTS_LOOKUP_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/device/backend.h"
#include "hotset/device/device.h"
#include "hotset/engine/experts/expert_banks.h"
#include "hotset/engine/graph/graph_parts.h"
#include "hotset/engine/kv/kv_cache.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/loaded_model.h"

namespace hotset::engine {

struct CrossTensors;
struct HostTensors;

// Most pairs of one call: the limit of CUDA's kernels (shared memory).
inline constexpr int64_t kMaxPairsPerCall = 8192;

// The size of graph that computes `n` pairs: n up to 8, above it the next of 8 steps per doubling,
// so that few graphs are kept and at most an eighth of the work is padding. Requires: n > 0.
int64_t pair_bucket(int64_t n);

// What a listed graph of `n` pairs reads: lists of n numbers, pair_list_stride(n) apart.
enum PairListPart : size_t {
  kPairTokens,   // rows of x
  kPairExperts,  // whose biases and scales
  kPairSlots,    // whose matrices
  kPairRows,     // of the pair buffer
  kPairListParts,
};

// From the beginning of one of these lists to the next: kernels refuse parts of a tensor that begin
// off a device's alignment, which is at most 256 bytes.
constexpr int64_t pair_list_stride(int64_t n) { return (n + 63) / 64 * 64; }

// The lists of one graph in host memory.
struct PairList {
  int32_t* base = nullptr;
  int64_t n = 0;  // of pairs, a pair_bucket()

  int32_t* part(PairListPart p) const {
    return base + static_cast<int64_t>(p) * pair_list_stride(n);
  }
  // Numbers from the first list to behind the last one.
  int64_t size() const { return static_cast<int64_t>(kPairListParts) * pair_list_stride(n); }
};

// Numbers that the lists of a lookup need together: of up to `n_pairs` pairs of `n_expert` experts,
// each list with one of them at least, but for those that are cut by kMaxPairsPerCall.
int64_t max_list_numbers(int64_t n_pairs, int64_t n_expert);

class LookupGraphs {
 public:
  struct Parts {
    const LoadedModel& model;
    const KvCache& kv;
    device::DeviceMemory& memory;
    device::Backend& cpu;
    const ExpertBanks& banks;
    const CrossTensors& cross;
    const HostTensors& host;
    device::ComputeBuffer& device_compute;
    device::ComputeBuffer& cpu_compute;
    int32_t n_ubatch = 1;
    int32_t cache_batch = 1;  // most tokens of a lookup whose hits are queued before it is known
  };
  // References in `parts` must outlive the object.
  explicit LookupGraphs(const Parts& parts) : p_(parts) {}

  // Builds the largest graphs of every kind for the layers that have slots, asks the backends
  // whether they compute them, and gives each to `visit`.
  // Errors: kUnsupported, naming the operation; kOutOfMemory; those of `visit`.
  Status visit_largest(const std::function<Status(KeptGraph, bool on_cpu)>& visit);
  // Builds for a layer what decoding one token needs, and the CPU lane's graphs. Call once for each
  // layer that has slots and is not resident, when the compute buffers are reserved.
  // Errors: kUnsupported, kInternal.
  Status build(int64_t layer, size_t parity);

  // All pairs of a lookup of `n_tokens` by the device's slot map; results at the pairs' places.
  // `parity`: which of the routed buffers the layer's segment writes.
  // Errors: kUnsupported, kInternal.
  Result<KeptGraph*> all_pairs(int64_t layer, size_t parity, int32_t n_tokens);
  // Queues the copy of `list`, which must stay until it is done, and the graph that computes its
  // pairs; `reads`: bytes of the experts in it. Errors: kUnsupported, kInternal, kDevice.
  Status compute_listed(const PairList& list, const char* name, int64_t layer, size_t parity,
                        bool one_token, Bytes reads);
  // Moves pair_bucket(n) rows of CrossTensors::cpu_rows to those of CrossTensors::row_list.
  Result<KeptGraph*> scatter(int64_t n);

  // The CPU lane's graph for exactly n pairs: HostTensors::cpu_tokens and cpu_ids to cpu_rows.
  // Valid until the next call. Requires: build() has seen the layer; n from 1 to n_ubatch * k, or
  // to k for one token.
  ggml_cgraph* cpu_pairs(int64_t layer, bool one_token, int64_t n);

  int64_t n_graphs_built() const { return n_graphs_built_; }

 private:
  // The pairs listed, pair_bucket(n) of them, at the start of CrossTensors::pair_list.
  Result<KeptGraph*> listed_pairs(int64_t layer, size_t parity, bool one_token, int64_t n);

  // A number of a tensor's description that is in proportion to the pairs of the graph.
  struct Scaled {
    ggml_tensor* tensor;
    bool is_size;  // ne[dimension], else nb[dimension]
    int dimension;
    int64_t per_pair;
  };
  struct CpuGraph {
    KeptGraph kept;
    std::vector<Scaled> scaled;
    int64_t max_pairs = 0;
  };
  struct Key {
    int64_t layer;
    bool one_token;
    int64_t n;
    auto operator<=>(const Key&) const = default;
  };

  Result<KeptGraph> build_all_pairs(int64_t layer, size_t parity, int32_t n_tokens) const;
  Result<KeptGraph> build_listed_pairs(int64_t layer, size_t parity, bool one_token,
                                       int64_t n) const;
  Result<KeptGraph> build_scatter(int64_t n) const;
  Result<KeptGraph> build_cpu_pairs(int64_t layer, bool one_token, int64_t n) const;
  Result<CpuGraph> build_scaled_cpu_pairs(int64_t layer, bool one_token) const;
  int64_t max_pairs(bool one_token) const;
  Status check(const KeptGraph& kept, bool on_cpu) const;
  Result<KeptGraph*> keep(std::map<Key, KeptGraph>& graphs, const Key& key,
                          Result<KeptGraph> graph);

  Parts p_;
  std::map<Key, KeptGraph> all_pairs_;
  std::map<Key, KeptGraph> listed_pairs_;
  std::map<Key, KeptGraph> scatter_;
  std::map<Key, CpuGraph> cpu_pairs_;
  int64_t n_graphs_built_ = 0;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_EXPERTS_LOOKUP_GRAPHS_H_
