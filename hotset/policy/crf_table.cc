#include "hotset/policy/crf_table.h"

#include <cmath>

namespace hotset::policy {

CrfTable::CrfTable(int32_t n_layers, int32_t n_expert, int32_t half_life_tokens)
    : n_expert_(n_expert),
      half_life_(half_life_tokens),
      max_age_(kMaxHalvings * half_life_tokens),
      rate_(1.0 - std::exp2(-1.0 / half_life_tokens)),
      fraction_(half_life_tokens),
      clocks_(n_layers),
      entries_(static_cast<size_t>(n_layers) * static_cast<size_t>(n_expert)) {
  for (size_t i = 0; i < fraction_.size(); i++) {
    fraction_[i] = static_cast<float>(std::exp2(-static_cast<double>(i) / half_life_tokens));
  }
}

}  // namespace hotset::policy
