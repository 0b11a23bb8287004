// Writes models with random weights: of any size and expert type, for tests and benchmarks where
// only shapes and speed matter.
#ifndef HOTSET_ENGINE_WEIGHTS_RANDOM_MODEL_H_
#define HOTSET_ENGINE_WEIGHTS_RANDOM_MODEL_H_

#include <ggml.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "hotset/base/error.h"

namespace hotset::engine {

struct RandomModelOptions {
  std::string architecture = "qwen3moe";
  int64_t n_layer = 4;
  int64_t n_embd = 256;
  int64_t n_head = 4;
  int64_t n_head_kv = 2;
  int64_t head_dim = 64;
  int64_t n_expert = 16;
  int64_t n_expert_used = 4;
  int64_t n_ff_expert = 128;
  int64_t n_ff = 256;          // of dense layers, where the architecture has them
  int64_t moe_layer_step = 1;  // every so many-th layer has experts
  int64_t n_vocab = 4096;      // ignored with a tokenizer
  int64_t n_ctx_train = 4096;
  bool merged_gate_up = false;  // gate and up of the experts in one tensor
  ggml_type expert_type = GGML_TYPE_Q4_0;
  std::optional<ggml_type> odd_expert_type = {};  // of odd layers; none: the same
  ggml_type dense_type = GGML_TYPE_Q8_0;          // embeddings, attention, output
  uint64_t seed = 1;
  // Tokenizer keys are taken from this file, so that the model can be given text; empty: none.
  std::filesystem::path tokenizer_from = {};
};

// Keys and tensors are those that a converted file of the architecture has; what the options do not
// say (windows, groups, scales) is as in a well-known model of it.
// The same options give the same bytes on every machine. Weights are normal with deviation
// 1/sqrt(inputs), norms are 1.
// Errors: kInvalidArgument (naming the option), kUnsupported (architecture, type), kIo, and what
// opening `tokenizer_from` gives. An incomplete file is removed.
Status write_random_model(const RandomModelOptions& options, const std::filesystem::path& path);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_RANDOM_MODEL_H_
