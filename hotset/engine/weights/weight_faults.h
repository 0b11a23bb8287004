// Which weight of a model file is no number: what a message can name once a computation has given
// NaN or infinite numbers.
// Thread-safe: pure functions.
#ifndef HOTSET_ENGINE_WEIGHTS_WEIGHT_FAULTS_H_
#define HOTSET_ENGINE_WEIGHTS_WEIGHT_FAULTS_H_

#include <cstdint>
#include <span>
#include <string>

#include "hotset/model/gguf_file.h"

namespace hotset::engine {

// The first weight of `layers` that is NaN or infinite, as "'blk.2.ffn_up_exps.weight', expert 5";
// empty if there is none among those that were looked at: one layer after the other, small tensors
// first, at most 2 GiB. Layer n_layer: those behind the last layer.
std::string find_weight_fault(const model::GgufFile& file, std::span<const int64_t> layers,
                              int64_t n_layer);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_WEIGHTS_WEIGHT_FAULTS_H_
