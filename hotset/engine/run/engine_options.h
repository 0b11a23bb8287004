// What an engine is asked to be.
// Thread-compatible: plain values.
#ifndef HOTSET_ENGINE_RUN_ENGINE_OPTIONS_H_
#define HOTSET_ENGINE_RUN_ENGINE_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "hotset/base/units.h"
#include "hotset/device/profile.h"
#include "hotset/engine/experts/cache_options.h"
#include "hotset/engine/kv/context_options.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/model/model_spec.h"

namespace hotset::engine {

struct EngineOptions {
  int n_threads = 0;  // kernel threads, 1 to 512; 0: one per core
  ContextOptions context = {};
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

// What the KV memory of a context is made of: with or without flash attention, and with the cells
// of windowed layers, 0 if these have none of their own. Requires: resolve() was called, and n_ctx
// is known. Errors: kInvalidArgument: too few cells for windowed layers were asked for.
Result<ContextOptions> kv_context(const model::ModelSpec& spec, const ContextOptions& asked,
                                  bool flash_attention);

// Sets the threads where the user gave none. Errors: kInvalidArgument: n_sequences or n_gpu_layers
// out of range.
Status resolve(EngineOptions& options);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_ENGINE_OPTIONS_H_
