// The name of an expert: the feed-forward weights of one (layer, index) pair.
// Thread-compatible: a plain value.
#ifndef HOTSET_BASE_EXPERT_KEY_H_
#define HOTSET_BASE_EXPERT_KEY_H_

#include <compare>
#include <cstdint>

namespace hotset {

struct ExpertKey {
  int32_t layer = 0;   // number of the layer in the model
  int32_t expert = 0;  // index of the expert in its layer

  // By layer, then by expert: "the lower key".
  constexpr auto operator<=>(const ExpertKey&) const = default;
};

}  // namespace hotset

#endif  // HOTSET_BASE_EXPERT_KEY_H_
