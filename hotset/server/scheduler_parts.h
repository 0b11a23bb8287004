// What the scheduler is made of; for its own files only.
// Thread-compatible: the scheduler's thread, but for what submit() makes.
#ifndef HOTSET_SERVER_SCHEDULER_PARTS_H_
#define HOTSET_SERVER_SCHEDULER_PARTS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "hotset/engine/run/sampler.h"
#include "hotset/server/scheduler.h"

namespace hotset::server {

inline int32_t count(size_t n) { return static_cast<int32_t>(n); }

// What the choices of a request have in common.
struct Scheduler::Request {
  RequestId id = 0;
  GenerationRequest what;
  int32_t n_open = 0;  // choices that have not ended
  // Choices that wait for the prompt, which the first one computes.
  std::vector<std::unique_ptr<Task>> siblings;
  // Of the prompt's last token, for siblings that found no slot.
  std::vector<float> prompt_logits;
  // The prompt's tokens as far as their logprobs are known, if they are wanted.
  std::vector<GeneratedToken> prompt_tokens;

  bool wants_prompt_logprobs() const {
    return what.prompt_logprobs && prompt_tokens.size() < what.prompt.size();
  }
  // Whether the logits behind a position of the prompt give the next token's logprob.
  bool wants_logits_at(int32_t position) const {
    return wants_prompt_logprobs() && std::cmp_greater_equal(position + 1, prompt_tokens.size()) &&
           std::cmp_less(position + 1, what.prompt.size());
  }
};

struct Scheduler::Task {
  std::shared_ptr<Request> request;
  int32_t choice = 0;
  std::vector<int32_t> tokens;  // prompt and generated
  engine::Sampler sampler;
  ChoiceResult result = {};
  double submitted_us = 0;
  std::optional<double> started_us = {};
  std::optional<double> first_token_us = {};
  uint64_t age = 0;  // tasks that got their slot later have more

  int32_t n_tokens() const { return count(tokens.size()); }
  const GenerationRequest& what() const { return request->what; }
};

struct Scheduler::Slot {
  engine::SequenceId sequence = 0;
  std::vector<int32_t> cached;  // tokens in the KV memory, by position
  std::unique_ptr<Task> task;   // null: idle
  uint64_t last_use = 0;

  int32_t n_cached() const { return count(cached.size()); }
  int32_t n_missing() const { return task->n_tokens() - n_cached(); }
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_SCHEDULER_PARTS_H_
