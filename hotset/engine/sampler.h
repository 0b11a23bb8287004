// Chooses the next token from logits.
//
// Order of the filters: top-k, top-p, min-p, then temperature. Top-p and min-p see the
// probabilities before the temperature, so that the temperature does not change who is eligible.
// Thread-compatible.
#ifndef HOTSET_ENGINE_SAMPLER_H_
#define HOTSET_ENGINE_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/random.h"

namespace hotset::engine {

struct SamplerOptions {
  float temperature = 0.8F;  // 0: always the best token; at most 100
  int32_t top_k = 40;        // keep the k best; 0: all
  float top_p = 0.95F;       // keep the best that together reach this probability; 0 to 1, 1: all
  float min_p = 0.05F;       // keep those with this share of the best one's probability; 0 to 1
  uint64_t seed = 0;
};

class Sampler {
 public:
  // Errors: kInvalidArgument, naming the option, the value and the range.
  static Result<Sampler> create(const SamplerOptions& options);

  // The next token. Of equal logits the lower id is better. A NaN counts as the worst logit. A
  // token of probability zero is never chosen where another one has some. Requires: logits not
  // empty.
  int32_t sample(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // probability up to a common factor
  };

  explicit Sampler(const SamplerOptions& options) : options_(options), random_(options.seed) {}
  void collect(std::span<const float> logits);
  void keep_probable();

  SamplerOptions options_;
  Random random_;
  std::vector<Candidate> candidates_;
};

// The id of the largest logit; of equal ones the lowest. Requires: logits not empty.
int32_t argmax(std::span<const float> logits);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_SAMPLER_H_
