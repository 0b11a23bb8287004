// The share of the misses that goes to the CPU lane, as a fixed number F: a lookup of n misses
// leaves floor((n * round(65536 F) + carry) / 65536) of them to it once its group is full, the rest
// of the division is the layer's carry. F is float32, the product is rounded half away from zero.
// Thread-compatible.
#ifndef HOTSET_CACHE_FIXED_SHARE_H_
#define HOTSET_CACHE_FIXED_SHARE_H_

#include <cstdint>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::cache {

struct Lookup;

class FixedShare {
 public:
  // share: F in [0, 1]. n_layers: one more than the largest layer number.
  // Errors: kInvalidArgument otherwise.
  static Result<FixedShare> create(float share, int32_t n_layers);

  // How many of lookup.misses, from the front, are for the CPU lane. Advances the carry of its
  // layer, so once per lookup; 0 without advancing while the group is not full.
  // Requires: the lookup's layer is below n_layers.
  int32_t take(const Lookup& lookup);

 private:
  FixedShare(uint32_t share_65536, int32_t n_layers);

  uint32_t share_65536_;
  std::vector<uint32_t> carry_;  // [n_layers]
};

}  // namespace hotset::cache

#endif  // HOTSET_CACHE_FIXED_SHARE_H_
