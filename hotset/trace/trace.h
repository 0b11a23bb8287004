// What a routing trace holds: the shape of the expert tensors, and one lookup per layer of each
// token step. The file format is MCT1, docs/formats/mct1.md.
// Thread-compatible: plain values.
#ifndef HOTSET_TRACE_TRACE_H_
#define HOTSET_TRACE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::trace {

// What a reader accepts. Each bound is far above any model and keeps every table that a replay
// builds from a header small, and every product of its numbers within 64 bits.
constexpr uint32_t kMaxTraceLayers = 1 << 16;
constexpr uint32_t kMaxTraceExpertsPerLayer = 1 << 16;
constexpr int64_t kMaxTraceExperts = 1 << 20;        // over all layers of all groups
constexpr uint32_t kMaxTraceTensors = 64;            // expert tensors per group
constexpr int64_t kMaxTraceExpertBytes = 1LL << 40;  // of one expert, all tensors together
constexpr int64_t kMaxTraceAlignment = 1LL << 30;
constexpr int64_t kMaxTraceHostBytes = 1LL << 46;
constexpr int32_t kMaxTraceLookupIds = 1 << 24;

// MoE layers of one device whose expert tensors have the same types and shapes.
struct TraceGroup {
  uint32_t device = 0;                // index of the device that caches the group
  uint32_t n_expert = 0;              // experts of each layer
  std::vector<uint32_t> layers = {};  // numbers in the model, no two equal in a trace
  double split = 1;                   // the device's part of the cache budget is split / split_sum
  double split_sum = 1;
  Bytes group_host_bytes = {};                  // expert weights of the group in host memory
  Bytes device_host_bytes = {};                 // expert weights of all groups of the device
  int64_t alignment_bytes = 1;                  // of a tensor in device memory
  std::vector<Bytes> tensor_expert_bytes = {};  // bytes of one expert, per expert tensor

  bool operator==(const TraceGroup&) const = default;

  // Bytes of one expert, all tensors together.
  Bytes expert_bytes() const;
  // Experts of all layers of the group.
  int64_t total_experts() const { return static_cast<int64_t>(n_expert) * std::ssize(layers); }
};

struct TraceHeader {
  uint32_t n_layer = 0;            // layers of the model, with or without experts
  uint32_t experts_per_token = 0;  // k of the model; a lookup states its own
  std::vector<TraceGroup> groups = {};

  bool operator==(const TraceHeader&) const = default;

  // Experts of all groups.
  int64_t total_experts() const;
  // Host bytes of all devices' expert weights, each device counted once.
  Bytes host_bytes() const;
  // For each layer number in [0, n_layer) the index of its group, -1 for none.
  // Requires: validate(*this) is ok.
  std::vector<int32_t> group_by_layer() const;
};

// The experts that one layer routed the tokens of one step to.
struct TraceLookup {
  int32_t layer = 0;                  // number in the model
  int32_t experts_per_token = 0;      // k
  std::span<const int32_t> ids = {};  // [n_tokens, k]

  // Requires: experts_per_token > 0.
  int32_t n_tokens() const { return static_cast<int32_t>(std::ssize(ids)) / experts_per_token; }
};

// Whether one group of a header is one that a trace may have, by itself.
// Errors: kInvalidArgument, a field is outside the bounds above; names the field.
Status validate(const TraceGroup& group, uint32_t n_layer);

// Whether a header is one that a trace may have.
// Errors: kInvalidArgument, a field contradicts another or the bounds above; names the field.
Status validate(const TraceHeader& header);

// Whether a lookup is one that a trace with this header may have. `group_by_layer` is
// header.group_by_layer().
// Errors: kInvalidArgument, an unknown layer, no experts, a partial token, an id out of range.
Status validate(const TraceLookup& lookup, const TraceHeader& header,
                std::span<const int32_t> group_by_layer);

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_TRACE_H_
