// The tokens that a benchmark computes: consecutive ones of a text, or random ones.
// Thread-compatible. Owns its tokens.
#ifndef HOTSET_MEASURE_BENCH_TOKENS_H_
#define HOTSET_MEASURE_BENCH_TOKENS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/random.h"
#include "hotset/engine/run/engine.h"
#include "hotset/measure/bench_options.h"

namespace hotset::measure {

class BenchTokens {
 public:
  // A model without a tokenizer is given random tokens, with a warning.
  // Errors: as read_text; kInvalidArgument, a text without tokens, or one for such a model.
  static Result<BenchTokens> create(const engine::ModelDescription& model,
                                    const BenchTokensOptions& options);

  // From the beginning again, so that every case computes the same tokens.
  void rewind();
  // The beginning of a sequence: what the model's sequences begin with, and the `n` - 1 or `n`
  // tokens that follow those taken before. Behind its end a text begins again.
  std::vector<int32_t> take(int32_t n);

  const std::string& name() const { return name_; }  // "text", "text FILE", "random"
  bool was_repeated() const { return was_repeated_; }

 private:
  BenchTokens() : random_(1) {}

  std::string name_;
  std::vector<int32_t> ids_;    // of the text; empty: random ones
  std::vector<int32_t> begin_;  // of a sequence
  size_t next_ = 0;
  bool was_repeated_ = false;
  int64_t n_vocab_ = 0;
  uint64_t seed_ = 1;
  Random random_;
};

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_BENCH_TOKENS_H_
