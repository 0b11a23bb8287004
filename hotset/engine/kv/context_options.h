// How long the context is and how it is kept, as the user asks for it.
// Thread-compatible: a plain value.
#ifndef HOTSET_ENGINE_KV_CONTEXT_OPTIONS_H_
#define HOTSET_ENGINE_KV_CONTEXT_OPTIONS_H_

#include <ggml.h>

#include <cstdint>

#include "hotset/engine/kv/kv_cells.h"

namespace hotset::engine {

enum class FlashAttention { kOff, kOn, kAuto };

struct ContextOptions {
  int32_t n_ctx = 0;  // positions of all sequences; 0: as default_context.h says
  // The most positions of one sequence; 0: n_ctx. Of an n_ctx that was not asked for as many as the
  // model was trained for.
  int32_t n_ctx_sequence = 0;
  // The most positions per sequence of such an n_ctx; 0: as many as the model was trained for.
  int32_t most_default_context = 0;
  int32_t n_ubatch = 512;  // most tokens computed together, at least 1
  int32_t n_outputs = 1;   // most tokens of a ubatch that want logits, at least 1
  // Sequences that are alive at once, 1 to kMaxSequences: layers that see only a window of
  // positions get memory for so many windows and no more, if that is less than a full context.
  int32_t n_sequences = kMaxSequences;
  // Cells of windowed layers, where another number is wanted: more of them let more of a sequence's
  // end be forgotten without losing all of it. 0: as many as are needed.
  int32_t n_window_cells = 0;
  FlashAttention flash_attention = FlashAttention::kAuto;
  ggml_type key_type = GGML_TYPE_F16;  // F32, F16 or Q8_0
  // F32, F16 or, with flash attention, Q8_0. Without effect where the values are in the keys.
  ggml_type value_type = GGML_TYPE_F16;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_KV_CONTEXT_OPTIONS_H_
