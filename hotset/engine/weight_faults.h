// Which weight of a model file is no number: what a message can name once a computation has given
// NaN or infinite numbers.
// Thread-safe: pure functions.
#ifndef HOTSET_ENGINE_WEIGHT_FAULTS_H_
#define HOTSET_ENGINE_WEIGHT_FAULTS_H_

#include <cstdint>
#include <string>

#include "hotset/model/gguf_file.h"

namespace hotset::engine {

// The first weight of a layer that is NaN or infinite, as "'blk.2.ffn_up_exps.weight', expert 5";
// empty if there is none among those that were looked at: small tensors first, and at most 2 GiB.
// `layer` n_layer: those behind the last layer.
std::string find_weight_fault(const model::GgufFile& file, int64_t layer, int64_t n_layer);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHT_FAULTS_H_
