// Synthetic routing traces: for tests, and to ask "what if" about a model nobody has traced.
// The model of routing: the text has topics. In each layer a topic ranks the experts in an order of
// its own and gives the one at rank r (from 1) the weight r^-zipf_exponent. A token keeps each
// expert of the token before with probability `repeat` and draws the others by weight, without
// replacement. A topic ends after each token with probability 1 / topic_tokens.
// Thread-compatible.
#ifndef HOTSET_TRACE_SYNTH_H_
#define HOTSET_TRACE_SYNTH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/trace/trace.h"

namespace hotset::trace {

struct SynthOptions {
  uint32_t n_layer = 16;           // all with experts; 1 to kMaxTraceLayers
  uint32_t n_expert = 64;          // per layer; 1 to kMaxTraceExpertsPerLayer
  uint32_t experts_per_token = 8;  // k; 1 to n_expert
  int64_t n_tokens = 1000;         // at least 1; the last step may be cut short
  // Tokens of a step, drawn from these with equal chance; each 1 or more. {1} is plain decode.
  std::vector<int32_t> tokens_per_step = {1};
  double zipf_exponent = 1.0;  // 0 (all experts alike) to 8
  double repeat = 0.3;         // 0 to 1: chance that an expert is kept for the next token
  int32_t n_topics = 4;        // 1 to 64
  double topic_tokens = 300;   // mean length of a topic; at least 1
  uint32_t n_groups = 1;       // consecutive layers of one group; 1 to n_layer
  uint32_t n_devices = 1;      // consecutive groups of one device, equal splits; 1 to n_groups
  int64_t alignment_bytes = 128;
  // Bytes of one expert of each tensor: gate, up, down.
  std::vector<Bytes> tensor_expert_bytes = {{884736}, {884736}, {884736}};
  uint64_t seed = 1;
};

// The header of the trace that synthesize() makes.
// Errors: kInvalidArgument, an option is outside its range; names it.
Result<TraceHeader> synth_header(const SynthOptions& options);

// Makes the trace and gives its lookups, in order, to `sink`, whose error ends it and is returned.
// The same options give the same trace. Memory: n_topics weights per expert.
// Errors: those of synth_header().
Status synthesize(const SynthOptions& options,
                  const std::function<Status(const TraceLookup&)>& sink);

// The whole trace as the bytes of a file, for tests.
Result<std::vector<std::byte>> synthesize_bytes(const SynthOptions& options);

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_SYNTH_H_
