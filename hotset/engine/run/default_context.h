// How long the context is where the user does not say: per sequence as far as the model was
// trained, and as far as it takes at most a quarter of what is left beside the dense weights, so
// that the expert cache (or, on the CPU alone, the experts) keeps its room. Thread-compatible: pure
// functions but for the host's free memory.
#ifndef HOTSET_ENGINE_RUN_DEFAULT_CONTEXT_H_
#define HOTSET_ENGINE_RUN_DEFAULT_CONTEXT_H_

#include <cstdint>
#include <functional>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/engine/run/engine_options.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/engine/weights/placement.h"

namespace hotset::engine {

// All sequences together get so many at least, or what the model was trained for, whether that is a
// quarter or not: less is of no use.
inline constexpr int32_t kLeastContext = 4096;

// Positions of all sequences together.
struct ContextRange {
  int32_t least = 0;
  int32_t most = 0;
};
ContextRange context_range(const model::ModelSpec& spec, const ContextOptions& options);

// The most positions of a range for which `bytes` are at most `budget`; its end `least` where none
// are. `bytes` grows, nearly as a line: it is asked a few times only. Errors: those of `bytes`.
Result<int32_t> longest_context(ContextRange range, Bytes budget,
                                const std::function<Result<Bytes>(int32_t n_ctx)>& bytes);

// What `options.n_ctx` positions take of host memory: keys and values of the CPU's layers, and what
// grows with them in compute buffers. Errors: those of kv_context().
Result<Bytes> host_context_bytes(const model::ModelSpec& spec, const ContextOptions& options,
                                 const Placement& placement, bool flash_attention);

// How much of it a context may take that nobody asked for, of `available` memory: a quarter beside
// the dense weights; where that would push experts out of memory that holds them otherwise, less,
// but a sixteenth.
Bytes host_context_budget(const ModelDescription& description, Bytes available);

// The context for host memory alone. Errors: those of host_context_bytes().
Result<int32_t> host_context(const ModelDescription& description, const ContextOptions& options,
                             const Placement& placement, bool flash_attention);

// Sets a context that nobody asked for: `n_ctx` at most, so that every sequence has the same part
// of it; one alone may use as much as the model was trained for.
void set_default_context(const model::ModelSpec& spec, int32_t n_ctx, ContextOptions& options);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_DEFAULT_CONTEXT_H_
