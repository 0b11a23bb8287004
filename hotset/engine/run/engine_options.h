// What an engine is asked to be.
// Thread-compatible: plain values.
#ifndef HOTSET_ENGINE_RUN_ENGINE_OPTIONS_H_
#define HOTSET_ENGINE_RUN_ENGINE_OPTIONS_H_

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/units.h"
#include "hotset/device/profile.h"
#include "hotset/engine/experts/cache_options.h"
#include "hotset/engine/kv/kv_cache.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

enum class FlashAttention { kOff, kOn, kAuto };

struct EngineOptions {
  int n_threads = 0;  // kernel threads, 1 to 512; 0: one per core
  int32_t n_ctx = 0;  // positions of all sequences; 0: as default_context.h says
  // The most positions of one sequence; 0: n_ctx. Of an n_ctx that was not asked for as many as the
  // model was trained for.
  int32_t n_ctx_sequence = 0;
  // The most positions per sequence of such an n_ctx; 0: as many as the model was trained for.
  int32_t most_default_context = 0;
  int32_t n_ubatch = 512;  // tokens computed together, at least 1
  int32_t n_outputs = 1;   // tokens of a ubatch whose logits may be wanted
  // Sequences that are alive at once, 1 to kMaxSequences: layers that see only a window of
  // positions get memory for so many windows and no more, if that is less than a full context.
  int32_t n_sequences = kMaxSequences;
  // Cells of windowed layers, where another number is wanted: more of them let more of a sequence's
  // end be forgotten without losing all of it. 0: as many as are needed.
  int32_t n_window_cells = 0;
  FlashAttention flash_attention = FlashAttention::kAuto;
  ggml_type key_type = GGML_TYPE_F16;
  ggml_type value_type = GGML_TYPE_F16;
  LoadOptions load = {};  // its device and placement are filled in by create()
  // "NAME" or "emu[:...]" as open_device() takes it; empty: the CPU alone.
  std::string device = {};
  // As place_layers() takes it, with a device only; none: as many as fit.
  std::optional<int64_t> n_gpu_layers = {};
  device::Profile* profile = nullptr;  // must outlive the engine
  RoutingObserver observe_routing = {};
  // The expert cache of the device: its size, none for what the memory plan leaves, 0 for no cache.
  std::optional<Bytes> cache_bytes = Bytes{};
  // Device memory left to others; none for max(512 MiB, 5%), or none of an emulated device's.
  std::optional<Bytes> headroom = {};
  CacheOptions cache = {};
  // Whether a cache of automatic size and share gives way to repacked experts on the CPU alone
  // where these are predicted to be faster. The model is then loaded once more.
  bool may_repack_instead = false;
  // What the CPU takes for repacked experts over what it takes for the file's, where that should
  // not be timed.
  std::optional<double> repacked_ratio = {};
};

// Kernel threads when the user gave none: one per physical core that this process may use, and no
// more than its CPU quota (usable_cpus()).
int default_threads();

// The KV memory that is asked for. Requires: resolve() was called, and n_ctx is known.
// Errors: kInvalidArgument: n_sequences out of range.
Result<KvCacheOptions> kv_options(const model::ModelSpec& spec, const EngineOptions& options,
                                  bool flash_attention);

// Sets the threads where the user gave none. Errors: kInvalidArgument: n_sequences or n_gpu_layers
// out of range.
Status resolve(EngineOptions& options);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_ENGINE_OPTIONS_H_
