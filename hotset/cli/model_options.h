// Flags that every command which computes with a model takes, as plain values, and what they mean
// to the engine.
// Thread-compatible: plain values.
#ifndef HOTSET_CLI_MODEL_OPTIONS_H_
#define HOTSET_CLI_MODEL_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cli/interrupt.h"
#include "hotset/engine/engine.h"

namespace hotset::cli {

struct ModelOptions {
  std::string model;
  int n_threads = 0;                     // 0: one per core
  int32_t n_ctx = 0;                     // positions; 0: the model's, at most 4096
  int32_t n_ubatch = 512;                // tokens of a prompt computed together
  std::string flash_attention = "auto";  // on, off, auto
  std::string key_type = "f16";          // f32, f16, q8_0
  std::string value_type = "f16";
  std::string load_mode = "mmap";  // mmap, pinned, auto
  std::string repack = "auto";     // auto, off
};

// Errors: kInvalidArgument, naming the flag, the value and what was expected.
Result<engine::EngineOptions> engine_options(const ModelOptions& options);

// The ggml type of that name (case does not matter). Errors: kInvalidArgument listing the names.
Result<ggml_type> parse_type(std::string_view flag, std::string_view name);

// "1,2,3" to ids. Errors: kInvalidArgument, naming `flag` and the part that is no number.
Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list);

// The bytes of a file, or of standard input for "-". Errors: kNotFound, kIo; kInvalidArgument for
// more than 1 GiB.
Result<std::string> read_text(const std::string& path);

// An engine for the flags, its verdict line said.
Result<std::unique_ptr<engine::Engine>> start_engine(const ModelOptions& options,
                                                     engine::EngineOptions engine_options);

}  // namespace hotset::cli

#endif  // HOTSET_CLI_MODEL_OPTIONS_H_
