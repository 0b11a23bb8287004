// Who gets a slot, and what slots hold.
#include <algorithm>
#include <limits>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/server/scheduler_parts.h"

namespace hotset::server {
namespace {

constexpr int32_t kAll = std::numeric_limits<int32_t>::max();
// Positions that must be left beside a task's own before it joins others: room to grow, so that it
// does not lose its slot at once.
constexpr int32_t kRoomToGrow = 32;
// Tokens that must be saved by copying a state to host memory or back, to be worth it.
constexpr int32_t kWorthACopy = 32;

int32_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) {
  return static_cast<int32_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

}  // namespace

std::pair<Scheduler::Slot*, int32_t> Scheduler::best_prefix(const Task& task) {
  if (task.request->wants_prompt_logprobs()) return {nullptr, 0};
  if (!task.what().reuse_prompt && task.choice == 0) return {nullptr, 0};
  Slot* best = nullptr;
  int32_t n_best = 0;
  for (Slot& slot : slots_) {
    const int32_t n = common_prefix(slot.cached, task.tokens);
    // Of equal ones an idle slot, which can go on in place.
    if (n > n_best || (n == n_best && n > 0 && best->task && !slot.task)) {
      best = &slot;
      n_best = n;
    }
  }
  // One token at least must be computed: there are no logits without, but those of the siblings.
  const bool has_logits = !task.request->prompt_logits.empty() && task.result.n_generated == 0;
  if (!has_logits) n_best = std::min(n_best, task.n_tokens() - 1);
  return {n_best > 0 ? best : nullptr, n_best};
}

bool Scheduler::has_room_for(const Task& task, const Slot* source, int32_t n_common) const {
  int32_t n_taken = 0;
  bool is_alone = true;
  for (const Slot& slot : slots_) {
    if (!slot.task) continue;
    is_alone = false;
    n_taken += std::max(slot.n_cached(), slot.task->n_tokens());
  }
  if (is_alone) return true;
  const bool is_shared = source != nullptr && source->task != nullptr;
  const int32_t n_needed = task.n_tokens() - (is_shared ? n_common : 0) + kRoomToGrow;
  return n_needed <= n_ctx_ - n_taken;
}

Scheduler::Slot* Scheduler::choose_slot(Slot* source, int32_t n_common) {
  // Goes on where a task has ended.
  if (source != nullptr && !source->task && n_common == source->n_cached()) return source;
  Slot* best = nullptr;
  for (Slot& slot : slots_) {
    if (slot.task) continue;
    if (slot.cached.empty()) return &slot;
    if (best == nullptr || slot.last_use < best->last_use) best = &slot;
  }
  return best;
}

void Scheduler::admit() {
  while (!waiting_.empty()) {
    const auto [source, n_common] = best_prefix(*waiting_.front());
    Slot* slot = choose_slot(source, n_common);
    if (slot == nullptr || !has_room_for(*waiting_.front(), source, n_common)) return;
    if (place_saved(*slot, n_common)) continue;
    // A prompt that could not be taken from host memory may have cost the source its own.
    if (source != nullptr && source->n_cached() < n_common) continue;
    std::unique_ptr<Task> task = std::move(waiting_.front());
    waiting_.pop_front();
    place(std::move(task), *slot, source, n_common);
    if (slot->n_missing() > 0) continue;
    // A sibling that waited for a slot: the logits of its prompt are known.
    const std::shared_ptr<Request> request = slot->task->request;
    advance(*slot, request->prompt_logits);
  }
}

void Scheduler::place(std::unique_ptr<Task> task, Slot& slot, Slot* source, int32_t n_common) {
  if (&slot == source) {
    keep(slot, n_common);
    model_.forget(slot.sequence, n_common, kAll);
  } else {
    keep(slot, 0);
    clear(slot);
    if (source != nullptr) model_.share_prefix(source->sequence, slot.sequence, n_common);
  }
  // Layers that see only a window may no longer have what the next token would see.
  n_common = model_.next_position(slot.sequence);
  slot.cached.assign(task->tokens.begin(), task->tokens.begin() + n_common);
  slot.last_use = ++n_uses_;
  task->age = n_uses_;
  if (!task->started_us) {
    task->started_us = options_.clock->now_us();
    task->result.queue_us = *task->started_us - task->submitted_us;
    task->result.n_reused = n_common;
    counts_.n_prompt_reused += static_cast<uint64_t>(n_common);
  }
  slot.task = std::move(task);
}

void Scheduler::keep(const Slot& slot, int32_t n_left) {
  if (store_.capacity() == Bytes{} || slot.n_cached() - n_left < kWorthACopy) return;
  for (const Slot& other : slots_) {
    if (&other != &slot && common_prefix(other.cached, slot.cached) == slot.n_cached()) return;
  }
  if (store_.covers(slot.cached) || model_.saved_bytes(slot.sequence) > store_.capacity()) return;
  auto state = model_.save(slot.sequence);
  if (!state) {
    log_warning("a prompt could not be saved: {}", state.error().message);
    return;
  }
  store_.add({.tokens = slot.cached, .state = *std::move(state)});
}

bool Scheduler::place_saved(Slot& slot, int32_t n_common) {
  Task& task = *waiting_.front();
  if (!task.what().reuse_prompt || task.request->wants_prompt_logprobs()) return false;
  const int32_t n_best = std::min(count(store_.best_prefix(task.tokens)), task.n_tokens() - 1);
  if (n_best - n_common < kWorthACopy) return false;
  std::optional<SavedPrompt> saved = store_.take(task.tokens);
  keep(slot, 0);
  clear(slot);
  // All of it must fit for a moment, also what is cut off again.
  evict_idle(count(saved->tokens.size()));
  if (model_.n_free() < count(saved->tokens.size())) {
    store_.add(*std::move(saved));
    return false;
  }
  if (const Status restored = model_.restore(slot.sequence, saved->state); !restored) {
    log_warning("a saved prompt could not be restored: {}", restored.error().message);
    model_.forget(slot.sequence, 0, kAll);
    return false;
  }
  slot.cached = saved->tokens;
  std::unique_ptr<Task> taken = std::move(waiting_.front());
  waiting_.pop_front();
  // What is cut off stays in host memory.
  if (std::cmp_less(n_best, saved->tokens.size())) store_.add(*std::move(saved));
  ++counts_.n_restored;
  place(std::move(taken), slot, &slot, n_best);
  return true;
}

void Scheduler::clear(Slot& slot) {
  if (!slot.cached.empty()) model_.forget(slot.sequence, 0, kAll);
  slot.cached.clear();
}

void Scheduler::evict_idle(int32_t n) {
  while (model_.n_free() < n) {
    Slot* oldest = nullptr;
    for (Slot& slot : slots_) {
      if (slot.task || slot.cached.empty()) continue;
      if (oldest == nullptr || slot.last_use < oldest->last_use) oldest = &slot;
    }
    if (oldest == nullptr) return;
    keep(*oldest, 0);
    clear(*oldest);
  }
}

void Scheduler::make_room(int32_t n) {
  evict_idle(n);
  while (model_.n_free() < n) {
    Slot* youngest = nullptr;
    int32_t n_busy = 0;
    for (Slot& slot : slots_) {
      if (!slot.task) continue;
      ++n_busy;
      if (youngest == nullptr || slot.task->age > youngest->task->age) youngest = &slot;
    }
    if (n_busy < 2) return;
    preempt(*youngest);
  }
}

void Scheduler::preempt(Slot& slot) {
  keep(slot, 0);
  clear(slot);
  ++counts_.n_preempted;
  waiting_.push_front(std::move(slot.task));
}

}  // namespace hotset::server
