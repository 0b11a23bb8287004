// What the scheduler is asked for and what it gives: requests, tokens, results.
// Thread-compatible: plain values; sinks as stated.
#ifndef HOTSET_SERVER_GENERATION_H_
#define HOTSET_SERVER_GENERATION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/run/sampler.h"
#include "hotset/server/batch_model.h"

namespace hotset::server {

using RequestId = uint64_t;

enum class StopReason {
  kEnd,        // the model ended its text
  kStop,       // the sink had enough: a stop string
  kLength,     // max_tokens
  kContext,    // no position is left
  kCancelled,  // cancel() or the scheduler's end
  kError,      // the model failed
};
// "end", "stop", "length", "context", "cancelled", "error".
std::string_view stop_reason_name(StopReason reason);

struct TokenLogprob {
  int32_t id = 0;
  float logprob = 0;  // natural logarithm of its probability, before sampling options
};

struct GeneratedToken {
  int32_t id = 0;
  float logprob = 0;                   // if logprobs were asked for
  std::vector<TokenLogprob> top = {};  // the most probable ones, best first
};

// How a choice went. Times are of the scheduler's clock.
struct ChoiceResult {
  StopReason reason = StopReason::kEnd;
  std::string error = {};  // with kError: what the model said
  // With kError: memory was refused, so another time may work.
  bool is_out_of_memory = false;
  int32_t n_prompt = 0;  // tokens
  int32_t n_reused = 0;  // of them, found in the KV memory
  int32_t n_generated = 0;
  double queue_us = 0;     // from submit() until it got a slot
  double prompt_us = 0;    // from there to its first token
  double generate_us = 0;  // from its first token to its end
  // Its part, by tokens, of the lookups that it took part in.
  ExpertFigures experts = {};
};

// Takes what one choice generates. The scheduler's thread calls it and waits: it must be quick, and
// must not call submit().
class ChoiceSink {
 public:
  virtual ~ChoiceSink() = default;
  // The prompt is computed; called once, before all tokens. `tokens` are the prompt's, if the
  // request asked for its logprobs; the first one has none, nothing stands in front of it.
  virtual void on_prompt(std::span<const GeneratedToken> /*tokens*/) {}
  // False: that is enough; the choice ends with kStop.
  virtual bool on_token(const GeneratedToken& token) = 0;
  // Called exactly once, last.
  virtual void on_end(const ChoiceResult& result) = 0;
};

struct GenerationRequest {
  std::vector<int32_t> prompt = {};  // token ids, at least 1, at most the context
  int32_t max_tokens = -1;           // generated per choice; -1: until the end or the context's
  bool ignore_end = false;           // tokens that end a generation are tokens like others
  bool reuse_prompt = true;          // take what is in the KV memory already
  int32_t n_logprobs = -1;           // -1: none; else so many alternatives per token, 0 to 20
  // Of the prompt's tokens as well; only with n_logprobs from 0. It is then computed anew, in steps
  // of few tokens: the KV memory has no logits.
  bool prompt_logprobs = false;
  engine::SamplerOptions sampler = {};                  // choice i samples with seed + i
  std::vector<std::shared_ptr<ChoiceSink>> sinks = {};  // one per choice, at least 1
};

inline constexpr int32_t kMaxLogprobs = 20;

}  // namespace hotset::server

#endif  // HOTSET_SERVER_GENERATION_H_
