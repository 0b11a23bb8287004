// Chooses the next token from logits.
//
// What happens to the logits, in this order:
//   1. logit bias: added
//   2. repeat penalty: of tokens seen lately a positive logit is divided by it, others are
//      multiplied (Keskar et al., "CTRL", 2019)
//   3. frequency penalty times how often a token was seen lately, and presence penalty if it was
//      seen at all: subtracted
//   4. top-k, top-p, min-p: who is eligible. They see the probabilities before the temperature, so
//      that the temperature does not change it.
//   5. temperature, and a draw. Temperature 0 takes the best token after step 3.
// "Lately" are the last `repeat_last_n` tokens that accept() was told.
// Allocates nothing once it has seen a row of logits and the ids of its tokens.
// Thread-compatible.
#ifndef HOTSET_ENGINE_RUN_SAMPLER_H_
#define HOTSET_ENGINE_RUN_SAMPLER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/random.h"

namespace hotset::engine {

struct LogitBias {
  int32_t id = 0;
  float bias = 0;
};

struct SamplerOptions {
  float temperature = 0.8F;    // 0: always the best token; at most 100
  int32_t top_k = 40;          // keep the k best; 0 or -1: all
  float top_p = 0.95F;         // keep the best that together reach this probability; 0 to 1, 1: all
  float min_p = 0.05F;         // keep those with this share of the best one's probability; 0 to 1
  float repeat_penalty = 1;    // above 0, at most 100; 1: none
  float presence_penalty = 0;  // -100 to 100
  float frequency_penalty = 0;  // -100 to 100
  int32_t repeat_last_n =
      64;  // tokens that the penalties look back, at most 2^24; 0: none, -1: all
  // Added to the logits of token ids: finite, or -infinity for never. Of an id given twice the sum
  // counts; ids behind the last logit have no effect.
  std::vector<LogitBias> logit_bias = {};
  uint64_t seed = 0;
};

class Sampler {
 public:
  // Errors: kInvalidArgument, naming the option, the value and the range.
  static Result<Sampler> create(const SamplerOptions& options);

  // The next token. Of equal logits the lower id is better. A NaN counts as the worst logit. A
  // token of probability zero is never chosen where another one has some. The penalties do not know
  // of the token until accept() is told. Requires: logits not empty.
  int32_t sample(std::span<const float> logits);

  // The text goes on with this token, of the prompt or generated. Requires: id >= 0.
  void accept(int32_t id);
  void accept(std::span<const int32_t> ids);
  // Forgets what was accepted; the random numbers go on.
  void forget_accepted();

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // probability up to a common factor
  };

  explicit Sampler(const SamplerOptions& options);
  // `logits` after steps 1 to 3; the same ones if nothing changes them.
  std::span<const float> adjusted(std::span<const float> logits);
  void collect(std::span<const float> logits);
  void keep_probable();

  SamplerOptions options_;
  bool has_penalties_;
  Random random_;
  std::vector<Candidate> candidates_;
  std::vector<float> adjusted_;
  std::vector<int32_t> counts_;  // by token id: how often it is in the window
  std::vector<int32_t> window_;  // a ring, unless all tokens count
  size_t window_next_ = 0;       // place of the oldest one in a full window
};

// The id of the largest logit; of equal ones the lowest. Requires: logits not empty.
int32_t argmax(std::span<const float> logits);

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_SAMPLER_H_
