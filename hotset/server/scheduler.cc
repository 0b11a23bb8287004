#include "hotset/server/scheduler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/server/scheduler_parts.h"

namespace hotset::server {
namespace {

// Several prompts share a batch only as long as it has fewer tokens than this. From here on kernels
// of attention add up in another order, so whoever came along would change what a
// prompt's own batch gives; and a batch this large is no longer small change.
constexpr int32_t kMaxShared = 64;
// The logarithm of what exp(logit) is divided by to be a probability.
double log_of_sum(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - most);
  return most + std::log(sum);
}

// Requires: n_top >= 0.
void add_logprobs(std::span<const float> logits, int32_t n_top, GeneratedToken& token) {
  const double norm = log_of_sum(logits);
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[id]) - norm);
  };
  token.logprob = logprob(token.id);
  std::vector<int32_t> ids(logits.size());
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = count(i);
  const auto n =
      static_cast<std::ptrdiff_t>(std::min<size_t>(ids.size(), static_cast<size_t>(n_top)));
  std::partial_sort(ids.begin(), ids.begin() + n, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[a];
    const float y = logits[b];
    return x != y ? x > y : a < b;
  });
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const int32_t id = ids[i];
    token.top.push_back({.id = id, .logprob = logprob(id)});
  }
}

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  switch (reason) {
    case StopReason::kEnd:
      return "end";
    case StopReason::kStop:
      return "stop";
    case StopReason::kLength:
      return "length";
    case StopReason::kContext:
      return "context";
    case StopReason::kCancelled:
      return "cancelled";
    case StopReason::kError:
      return "error";
  }
  return "unknown";
}

// --- Any thread

Result<std::unique_ptr<Scheduler>> Scheduler::create(BatchModel& model, SchedulerOptions options) {
  if (options.n_parallel < 1 || options.n_parallel > engine::kMaxSequences) {
    return make_error(ErrorCode::kInvalidArgument, "parallel: found {}, expected 1 to {}",
                      options.n_parallel, engine::kMaxSequences);
  }
  if (options.max_queued < 0) {
    return make_error(ErrorCode::kInvalidArgument, "queue: found {}, expected at least 0",
                      options.max_queued);
  }
  if (options.prefill_chunk < 0) {
    return make_error(ErrorCode::kInvalidArgument, "prefill chunk: found {}, expected at least 0",
                      options.prefill_chunk);
  }
  if (options.prefill_chunk == 0) options.prefill_chunk = model.n_ubatch();
  options.prefill_chunk = std::min(options.prefill_chunk, model.n_ubatch());
  return std::unique_ptr<Scheduler>(new Scheduler(model, std::move(options)));
}

Scheduler::Scheduler(BatchModel& model, SchedulerOptions options)
    : model_(model),
      options_(std::move(options)),
      n_ctx_(model.n_ctx()),
      n_ctx_sequence_(model.n_ctx_sequence()),
      n_vocab_(model.n_vocab()),
      slots_(options_.n_parallel),
      store_(options_.saved_prompts) {
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].sequence = count(i);
  publish();
  thread_ = std::thread([this] { run(); });
}

Scheduler::~Scheduler() { end(); }

void Scheduler::end() {
  if (!thread_.joinable()) return;
  inbox_.end();
  thread_.join();
}

Result<RequestId> Scheduler::submit(GenerationRequest request) {
  HOTSET_CHECK(!request.sinks.empty() && (!request.prompt_logprobs || request.n_logprobs >= 0));
  if (request.prompt.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "prompt: found no token, expected at least 1");
  }
  if (std::cmp_greater(request.prompt.size(), n_ctx_sequence_)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "prompt: found {} tokens, but the context holds {}", request.prompt.size(),
                      n_ctx_sequence_);
  }
  for (const int32_t id : request.prompt) {
    if (id >= 0 && id < n_vocab_) continue;
    return make_error(ErrorCode::kInvalidArgument, "prompt: found token {}, expected 0 to {}", id,
                      n_vocab_ - 1);
  }
  auto shared = std::make_shared<Request>();
  shared->n_open = count(request.sinks.size());
  const double now_us = options_.clock->now_us();
  std::vector<std::unique_ptr<Task>> tasks;
  for (int32_t i = 0; i < shared->n_open; ++i) {
    engine::SamplerOptions sampling = request.sampler;
    sampling.seed += static_cast<uint64_t>(i);
    HOTSET_TRY(engine::Sampler sampler, engine::Sampler::create(sampling));
    sampler.accept(request.prompt);
    tasks.push_back(std::make_unique<Task>(Task{.request = shared,
                                                .choice = i,
                                                .tokens = request.prompt,
                                                .sampler = std::move(sampler),
                                                .submitted_us = now_us}));
    tasks.back()->result.n_prompt = count(request.prompt.size());
  }
  std::unique_ptr<Task> first = std::move(tasks.front());
  tasks.erase(tasks.begin());
  shared->siblings = std::move(tasks);
  shared->what = std::move(request);
  if (shared->what.prompt_logprobs) {
    shared->prompt_tokens.push_back({.id = shared->what.prompt.front()});
  }
  return inbox_.submit(options_.n_parallel + options_.max_queued, std::move(first),
                       [&](RequestId id) { shared->id = id; });
}

void Scheduler::cancel(RequestId request) { inbox_.cancel(request); }

void Scheduler::close() { inbox_.close(); }

bool Scheduler::wait_until_idle(double timeout_us) { return inbox_.wait_until_idle(timeout_us); }

bool Scheduler::between_steps(const std::function<void()>& work) {
  return inbox_.between_steps(work);
}

SchedulerStatus Scheduler::status() const {
  const auto asked = inbox_.totals();
  const std::lock_guard lock(mutex_);
  SchedulerStatus status = published_;
  status.n_queued += asked.n_arrived;
  status.n_requests = asked.n_requests;
  status.n_refused = asked.n_refused;
  return status;
}

// --- The scheduler's thread

void Scheduler::run() {
  const auto has_tasks = [this] {
    return !waiting_.empty() ||
           std::ranges::any_of(slots_, [](const Slot& slot) { return slot.task != nullptr; });
  };
  while (inbox_.take(has_tasks(), waiting_)) {
    try {
      drop_cancelled();
      admit();
      publish();
      decode_step();
      prefill_step();
      publish();
    } catch (const std::bad_alloc&) {
      fail_running("the system refused memory");
    }
  }
  end_all(StopReason::kCancelled);
  publish();
  inbox_.set_ended();
}

void Scheduler::drop_cancelled() {
  const std::set<RequestId> cancelled = inbox_.take_cancelled();
  if (cancelled.empty()) return;
  std::vector<std::unique_ptr<Task>> dropped;
  for (auto& task : waiting_) {
    if (cancelled.contains(task->request->id)) dropped.push_back(std::move(task));
  }
  std::erase(waiting_, nullptr);
  for (Slot& slot : slots_) {
    if (slot.task && cancelled.contains(slot.task->request->id)) {
      end_task(slot, StopReason::kCancelled);
    }
  }
  for (const auto& task : dropped) report_end(*task, StopReason::kCancelled, {});
}

bool Scheduler::decode_step() {
  std::vector<Part> parts;
  const auto collect = [&] {
    parts.clear();
    for (Slot& slot : slots_) {
      if (slot.task && slot.n_missing() == 1) {
        parts.push_back({.slot = &slot, .n_tokens = 1, .wants_logits = true});
      }
    }
    return count(parts.size());
  };
  if (const int32_t n = collect(); n > model_.n_free()) {
    make_room(n);
    // Whoever lost its slot needs no room any more. The last one is at the end of the context.
    if (collect() > model_.n_free()) {
      end_task(*parts.front().slot, StopReason::kContext);
      collect();
    }
  }
  if (parts.empty()) return false;
  compute(parts, Phase::kDecode);
  return true;
}

bool Scheduler::prefill_step() {
  std::vector<Slot*> order;
  int32_t n_missing = 0;
  const auto collect = [&] {
    order.clear();
    n_missing = 0;
    for (Slot& slot : slots_) {
      if (!slot.task || slot.n_missing() < 2) continue;
      order.push_back(&slot);
      n_missing += slot.n_missing();
    }
    std::ranges::sort(order, {}, [](const Slot* slot) { return slot->task->age; });
  };
  collect();
  if (order.empty()) return false;
  evict_idle(std::min(n_missing, options_.prefill_chunk));
  if (model_.n_free() == 0) {
    make_room(1);
    collect();
    if (order.empty()) return true;
    if (model_.n_free() == 0) {
      end_task(*order.front(), StopReason::kContext);
      return true;
    }
  }
  std::vector<Part> parts;
  int32_t n_left = std::min(options_.prefill_chunk, model_.n_free());
  int32_t n_batch = 0;
  for (Slot* slot : order) {
    int32_t n = std::min(slot->n_missing(), n_left);
    if (slot->task->request->wants_prompt_logprobs()) n = std::min(n, kPromptRows);
    if (n == 0 || (n_batch > 0 && n_batch + n >= kMaxShared)) break;
    parts.push_back({.slot = slot, .n_tokens = n, .wants_logits = n == slot->n_missing()});
    n_left -= n;
    n_batch += n;
  }
  compute(parts, Phase::kPrefill);
  return true;
}

void Scheduler::compute(std::span<const Part> parts, Phase phase) {
  batch_.clear();
  for (const Part& part : parts) {
    const Slot& slot = *part.slot;
    for (int32_t i = 0; i < part.n_tokens; ++i) {
      const int32_t position = slot.n_cached() + i;
      batch_.push_back({.token = slot.task->tokens[position],
                        .position = position,
                        .sequence = slot.sequence,
                        .want_logits = wants_logits(part, i)});
    }
  }
  const double start_us = options_.clock->now_us();
  const ExpertFigures before = model_.expert_figures();
  const auto logits = model_.decode(batch_);
  const ExpertFigures after = model_.expert_figures();
  const double step_us = options_.clock->now_us() - start_us;
  (phase == Phase::kDecode ? counts_.decode_us : counts_.prefill_us) += step_us;
  ++(phase == Phase::kDecode ? counts_.n_decode_steps : counts_.n_prefill_steps);
  counts_.experts = after;
  if (!logits) {
    // Weights that one of them needs cannot be read; the others may do without these.
    if (logits.error().code == ErrorCode::kIo && parts.size() > 1) {
      for (const Part& part : parts) compute({&part, 1}, phase);
      return;
    }
    for (const Part& part : parts) {
      Slot& slot = *part.slot;
      slot.task->result.is_out_of_memory = logits.error().code == ErrorCode::kOutOfMemory;
      end_task(slot, StopReason::kError, logits.error().message);
      clear(slot);
    }
    return;
  }
  // Counted before tasks end, which know what they wanted.
  std::vector<size_t> n_rows(parts.size(), 0);
  for (size_t p = 0; p < parts.size(); ++p) {
    for (int32_t i = 0; i < parts[p].n_tokens; ++i) n_rows[p] += wants_logits(parts[p], i) ? 1 : 0;
  }
  drop_failed(logits->faults);
  const auto n_vocab = static_cast<size_t>(n_vocab_);
  size_t row = 0;
  const auto next_row = [&] {
    HOTSET_CHECK((row + 1) * n_vocab <= logits->logits.size());
    return logits->logits.subspan(row++ * n_vocab, n_vocab);
  };
  for (size_t p = 0; p < parts.size(); ++p) {
    const Part& part = parts[p];
    Slot& slot = *part.slot;
    // Its slot may have another task by now: a choice of the one before it.
    if (std::ranges::contains(logits->faults, slot.sequence, &engine::SequenceFault::sequence)) {
      row += n_rows[p];
      continue;
    }
    Task& task = *slot.task;
    // The last row is what the task goes on with.
    for (int32_t i = 0; i + (part.wants_logits ? 1 : 0) < part.n_tokens; ++i) {
      if (wants_logits(part, i)) add_prompt_token(*task.request, next_row());
    }
    const auto n_tokens = static_cast<size_t>(part.n_tokens);
    const auto begin = task.tokens.begin() + slot.n_cached();
    slot.cached.insert(slot.cached.end(), begin, begin + part.n_tokens);
    if (!task.first_token_us) counts_.n_prompt_computed += n_tokens;
    task.result.experts.add(before, after,
                            static_cast<double>(n_tokens) / static_cast<double>(batch_.size()));
    if (part.wants_logits) advance(slot, next_row());
  }
}

void Scheduler::drop_failed(std::span<const engine::SequenceFault> faults) {
  for (const engine::SequenceFault& fault : faults) {
    for (Slot& slot : slots_) {
      if (slot.sequence != fault.sequence) continue;
      clear(slot);
      if (!slot.task) continue;
      ++counts_.n_not_finite;
      log_error("request {}: {}", slot.task->request->id, fault.message);
      end_task(slot, StopReason::kError, fault.message);
    }
  }
}

bool Scheduler::wants_logits(const Part& part, int32_t i) const {
  if (part.wants_logits && i + 1 == part.n_tokens) return true;
  return part.slot->task->request->wants_logits_at(part.slot->n_cached() + i);
}

void Scheduler::add_prompt_token(Request& request, std::span<const float> logits) const {
  std::vector<GeneratedToken>& tokens = request.prompt_tokens;
  tokens.push_back({.id = request.what.prompt[tokens.size()]});
  add_logprobs(logits, request.what.n_logprobs, tokens.back());
}

bool Scheduler::is_end(int32_t token) const {
  return std::ranges::binary_search(options_.end_ids, token);
}

void Scheduler::advance(Slot& slot, std::span<const float> logits) {
  Task& task = *slot.task;
  slot.last_use = ++n_uses_;
  if (!task.first_token_us) {
    task.first_token_us = options_.clock->now_us();
    start_siblings(slot, logits);
    task.what().sinks[task.choice]->on_prompt(task.request->prompt_tokens);
  }
  const GenerationRequest& what = task.what();
  if (what.max_tokens == 0) return end_task(slot, StopReason::kLength);
  GeneratedToken token{.id = task.sampler.sample(logits)};
  if (!what.ignore_end && is_end(token.id)) return end_task(slot, StopReason::kEnd);
  if (what.n_logprobs >= 0) add_logprobs(logits, what.n_logprobs, token);
  task.tokens.push_back(token.id);
  task.sampler.accept(token.id);
  ++task.result.n_generated;
  ++counts_.n_generated;
  ChoiceSink& sink = *what.sinks[task.choice];
  if (!sink.on_token(token)) return end_task(slot, StopReason::kStop);
  if (task.result.n_generated == what.max_tokens) return end_task(slot, StopReason::kLength);
  if (task.n_tokens() > n_ctx_sequence_) return end_task(slot, StopReason::kContext);
}

void Scheduler::start_siblings(Slot& slot, std::span<const float> logits) {
  Request& request = *slot.task->request;
  std::vector<std::unique_ptr<Task>> siblings = std::move(request.siblings);
  request.siblings.clear();
  const int32_t n_prompt = slot.task->result.n_prompt;
  size_t next = 0;
  for (; next < siblings.size(); ++next) {
    Slot* free = choose_slot(nullptr, 0);
    if (free == nullptr) break;
    place(std::move(siblings[next]), *free, &slot, n_prompt);
    // It could not take the prompt over, and computes it like any other.
    if (free->n_missing() > 0) continue;
    advance(*free, logits);
  }
  if (next == siblings.size()) return;
  request.prompt_logits.assign(logits.begin(), logits.end());
  for (size_t i = siblings.size(); i-- > next;) waiting_.push_front(std::move(siblings[i]));
}

void Scheduler::end_task(Slot& slot, StopReason reason, std::string error) {
  const std::unique_ptr<Task> task = std::move(slot.task);
  slot.last_use = ++n_uses_;
  report_end(*task, reason, std::move(error));
}

void Scheduler::report_end(Task& task, StopReason reason, std::string error) {
  const std::shared_ptr<Request> request = task.request;
  ChoiceResult& result = task.result;
  const double now_us = options_.clock->now_us();
  result.reason = reason;
  result.error = std::move(error);
  if (!task.started_us) {
    result.queue_us = now_us - task.submitted_us;
  } else {
    result.prompt_us = task.first_token_us.value_or(now_us) - *task.started_us;
  }
  if (task.first_token_us) result.generate_us = now_us - *task.first_token_us;
  ++counts_.n_ended[std::to_underlying(reason)];
  request->what.sinks[task.choice]->on_end(result);
  // Whoever waited for this prompt waits in vain.
  std::vector<std::unique_ptr<Task>> siblings = std::move(request->siblings);
  request->siblings.clear();
  for (const auto& sibling : siblings) report_end(*sibling, reason, result.error);
  if (--request->n_open > 0) return;
  inbox_.finish(request->id);
}

void Scheduler::fail_running(const std::string& error) {
  for (Slot& slot : slots_) {
    if (slot.task) {
      slot.task->result.is_out_of_memory = true;
      end_task(slot, StopReason::kError, error);
    }
    // The model may have computed more than is noted here.
    slot.cached.clear();
    model_.forget(slot.sequence, 0, std::numeric_limits<int32_t>::max());
  }
}

void Scheduler::end_all(StopReason reason) {
  for (Slot& slot : slots_) {
    if (slot.task) end_task(slot, reason);
  }
  std::deque<std::unique_ptr<Task>> waiting = std::move(waiting_);
  waiting_.clear();
  for (const auto& task : waiting) report_end(*task, reason, {});
}

void Scheduler::publish() {
  counts_.n_ctx = n_ctx_;
  counts_.n_used = n_ctx_ - model_.n_free();
  counts_.n_saved = store_.n_prompts();
  counts_.saved_bytes = store_.used();
  counts_.n_queued = count(static_cast<size_t>(std::ranges::count_if(
      waiting_, [](const auto& task) { return !task->started_us && task->choice == 0; })));
  counts_.slots.clear();
  for (const Slot& slot : slots_) {
    SlotStatus status{.n_cached = slot.n_cached()};
    if (slot.task) {
      status.is_busy = true;
      status.request = slot.task->request->id;
      status.choice = slot.task->choice;
      status.n_prompt = slot.task->result.n_prompt;
      status.n_generated = slot.task->result.n_generated;
    }
    counts_.slots.push_back(status);
  }
  const std::lock_guard lock(mutex_);
  published_ = counts_;
}

}  // namespace hotset::server
