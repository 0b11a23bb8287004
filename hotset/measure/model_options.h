// Flags that every command which computes with a model takes, as plain values, and what they mean
// to the engine.
// Thread-compatible: plain values.
#ifndef HOTSET_MEASURE_MODEL_OPTIONS_H_
#define HOTSET_MEASURE_MODEL_OPTIONS_H_

#include <cstdint>
#include <string>

#include "hotset/base/error.h"
#include "hotset/engine/run/engine.h"
#include "hotset/measure/cache_flags.h"

namespace hotset::measure {

struct ModelOptions {
  std::string model;
  int n_threads = 0;                     // 0: one per core
  int32_t n_ctx = 0;                     // positions of all sequences; 0: by training and memory
  int32_t n_ubatch = 512;                // tokens of a prompt computed together
  std::string flash_attention = "auto";  // on, off, auto
  std::string key_type = "f16";          // f32, f16, q8_0
  std::string value_type = "f16";
  std::string load_mode = "mmap";     // mmap, pinned, auto
  std::string repack = "auto";        // auto, off
  std::string device = "auto";        // a device's name, emu[:...], auto (the first GPU) or none
  std::string n_gpu_layers = "auto";  // auto (all) or a number
  std::string profile_out = {};       // Chrome trace file to write; empty: none
  CacheFlags cache = {};
};

// Errors: kInvalidArgument, naming the flag, the value and what was expected.
Result<engine::EngineOptions> engine_options(const ModelOptions& options);

// The device that a --device value means; empty: the CPU alone. Errors: kDevice.
Result<std::string> choose_device(const std::string& value);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_MODEL_OPTIONS_H_
