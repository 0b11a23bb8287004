// Lets many requests share one model: up to `n_parallel` sequences are decoded together, one token
// each per step, and between two such steps one chunk of the prompts that are waiting is computed.
//
// A choice of a request is a task. A task in one of the `n_parallel` slots runs; the others wait in
// order of arrival. The KV memory is one pool: a task may use all of it. A slot whose task has
// ended keeps its tokens; a new task takes over the longest prefix that any slot has, running ones
// too, and idle slots lose theirs, the least recently used first, when positions run out. When they
// run out among running tasks, the youngest one waits again and recomputes its tokens later.
//
// The choices of one request share its prompt: the first one computes it, the others wait for that,
// once, and start from its logits.
//
// Owns its thread, which alone drives the model.
// Thread-safe: any thread may submit, cancel and ask.
#ifndef HOTSET_SERVER_SCHEDULER_H_
#define HOTSET_SERVER_SCHEDULER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hotset/base/clock.h"
#include "hotset/base/error.h"
#include "hotset/server/batch_model.h"
#include "hotset/server/generation.h"
#include "hotset/server/prompt_store.h"
#include "hotset/server/request_inbox.h"

namespace hotset::server {

struct SchedulerOptions {
  int32_t n_parallel = 4;     // sequences decoded together, 1 to engine::kMaxSequences
  int32_t max_queued = 64;    // requests accepted beyond n_parallel, at least 0
  int32_t prefill_chunk = 0;  // tokens of prompts between two decode steps; 0: the ubatch
  // Host memory for what idle slots held before others took them; 0: none is kept.
  Bytes saved_prompts = {};
  // Tokens with which the model ends its text, ascending.
  std::vector<int32_t> end_ids = {};
  const Clock* clock = &steady_clock();
};

struct SlotStatus {
  int32_t n_cached = 0;  // tokens in the KV memory
  bool is_busy = false;  // the rest is of the task in it
  RequestId request = 0;
  int32_t choice = 0;
  int32_t n_prompt = 0;
  int32_t n_generated = 0;
};

struct SchedulerStatus {
  std::vector<SlotStatus> slots = {};
  int32_t n_queued = 0;  // requests
  int32_t n_ctx = 0;
  int32_t n_used = 0;  // positions of the KV memory
  // Since the start.
  uint64_t n_requests = 0;            // accepted
  uint64_t n_refused = 0;             // the queue was full
  std::array<uint64_t, 6> n_ended{};  // choices by StopReason
  uint64_t n_prompt_computed = 0;     // tokens
  uint64_t n_prompt_reused = 0;
  uint64_t n_generated = 0;
  uint64_t n_decode_steps = 0;
  uint64_t n_prefill_steps = 0;
  uint64_t n_preempted = 0;   // tasks that had to wait again
  uint64_t n_not_finite = 0;  // sequences that failed because their numbers were NaN or infinite
  uint64_t n_restored = 0;    // prompts whose beginning came from host memory
  uint64_t n_saved = 0;       // in host memory now
  Bytes saved_bytes;
  double decode_us = 0;  // of the steps
  double prefill_us = 0;
  ExpertFigures experts = {};
};

class Scheduler {
 public:
  // Requires: the model outlives this.
  // Errors: kInvalidArgument, an option out of range.
  static Result<std::unique_ptr<Scheduler>> create(BatchModel& model, SchedulerOptions options);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Errors: kInvalidArgument: an empty prompt, one longer than the context (both numbers), a token
  // that is none, options of the sampler; kOutOfMemory: the queue is full; kCancelled: closed.
  // After an error no sink is ever called.
  Result<RequestId> submit(GenerationRequest request);
  // All choices of the request end with kCancelled at the next step, if they have not ended yet.
  void cancel(RequestId request);

  // Accepts no more requests.
  void close();
  // Waits until nothing runs or waits, at most `timeout_us`. Whether that is so.
  bool wait_until_idle(double timeout_us);

  // Cancels everything and ends the thread. Whoever still holds the scheduler may go on to call it:
  // nothing is accepted or run any more. Requires: no two threads at once.
  void end();

  // Runs `work` on the scheduler's thread, between two steps, and waits for it. False: the
  // scheduler has ended, and it was not run.
  bool between_steps(const std::function<void()>& work);

  SchedulerStatus status() const;
  // The most positions of a request, prompt and reply.
  int32_t n_ctx() const { return n_ctx_sequence_; }
  int32_t n_vocab() const { return n_vocab_; }
  int32_t n_parallel() const { return options_.n_parallel; }

 private:
  struct Request;
  struct Task;
  struct Slot;
  enum class Phase { kDecode, kPrefill };
  // The next tokens of a slot in a batch.
  struct Part {
    Slot* slot = nullptr;
    int32_t n_tokens = 0;
    bool wants_logits = false;  // of the last token: the task goes on with them
  };

  Scheduler(BatchModel& model, SchedulerOptions options);

  void run();
  void drop_cancelled();
  void admit();
  // The slot with the longest prefix in common with the task's tokens, and how long that is.
  std::pair<Slot*, int32_t> best_prefix(const Task& task);
  bool has_room_for(const Task& task, const Slot* source, int32_t n_common) const;
  // Null: all are busy.
  Slot* choose_slot(Slot* source, int32_t n_common);
  void place(std::unique_ptr<Task> task, Slot& slot, Slot* source, int32_t n_common);
  // Keeps what `slot` holds in host memory, unless losing all but its first `n_left` tokens is no
  // loss.
  void keep(const Slot& slot, int32_t n_left);
  // Gives the task, the first one that waits, a slot with a prompt from host memory, if that has
  // more of it than `n_common`. False: it has not, or could not.
  bool place_saved(Slot& slot, int32_t n_common);
  bool decode_step();
  bool prefill_step();
  // Frees what idle slots hold, the least recently used first, until `n` positions are free.
  void evict_idle(int32_t n);
  // As evict_idle(), then takes the slots of the youngest tasks, all but the oldest one.
  void make_room(int32_t n);
  void preempt(Slot& slot);
  void clear(Slot& slot);
  // Computes `batch_`, the next tokens of `owners` one after the other. After an error their tasks
  // have ended.
  void compute(std::span<const Part> parts, Phase phase);
  // Whether a token of a slot's task is computed for its logits.
  bool wants_logits(const Part& part, int32_t i) const;
  // The logits behind a token of the prompt give the next one's logprob.
  void add_prompt_token(Request& request, std::span<const float> logits) const;
  // Ends the tasks of sequences that have failed in a batch, and forgets what these sequences had.
  void drop_failed(std::span<const engine::SequenceFault> faults);
  // The task of `slot` may go on with these logits.
  void advance(Slot& slot, std::span<const float> logits);
  void start_siblings(Slot& slot, std::span<const float> logits);
  void end_task(Slot& slot, StopReason reason, std::string error = {});
  void report_end(Task& task, StopReason reason, std::string error);
  // Ends what has a slot, and forgets what the slots hold.
  void fail_running(const std::string& error);
  void end_all(StopReason reason);
  void publish();
  bool is_end(int32_t token) const;

  BatchModel& model_;
  SchedulerOptions options_;
  int32_t n_ctx_;           // of all sequences
  int32_t n_ctx_sequence_;  // of one
  int32_t n_vocab_;

  // The thread's own.
  std::vector<Slot> slots_;
  std::deque<std::unique_ptr<Task>> waiting_;
  uint64_t n_uses_ = 0;
  std::vector<engine::BatchToken> batch_;
  PromptStore store_;
  SchedulerStatus counts_;

  RequestInbox<Task> inbox_;
  mutable std::mutex mutex_;  // of the next one
  SchedulerStatus published_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_SCHEDULER_H_
