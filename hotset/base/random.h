// Randomness that gives the same numbers for a seed on every machine and compiler, which the
// standard library's distributions do not promise.
#ifndef HOTSET_BASE_RANDOM_H_
#define HOTSET_BASE_RANDOM_H_

#include <cstdint>

namespace hotset {

// A generator of pseudo-random numbers (SplitMix64: Steele, Lea, Flood, "Fast splittable
// pseudorandom number generators", 2014). Not for secrets.
// Thread-compatible.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next_u64();
  // Uniform in [0, n). Requires: n > 0.
  uint64_t below(uint64_t n);
  // Uniform in [0, 1), 53 bits.
  double uniform();
  // Standard normal (Box and Muller, 1958).
  double normal();

 private:
  uint64_t state_;
};

}  // namespace hotset

#endif  // HOTSET_BASE_RANDOM_H_
