// What the server's tests share: a model whose every next token follows from all tokens before, and
// a sink that keeps what it gets.
#ifndef HOTSET_SERVER_SERVER_TESTING_H_
#define HOTSET_SERVER_SERVER_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <vector>

#include "hotset/engine/kv/kv_cells.h"
#include "hotset/server/batch_model.h"
#include "hotset/server/generation.h"
#include "hotset/server/scheduler.h"

namespace hotset::server::test {

inline constexpr int32_t kVocab = 50;

// Logits behind a text, any text its own.
inline std::vector<float> logits_behind(std::span<const int32_t> text) {
  uint64_t state = 0x9E3779B97F4A7C15ULL;
  for (const int32_t id : text) {
    state = (state ^ static_cast<uint64_t>(id + 1)) * 0xBF58476D1CE4E5B9ULL;
    state ^= state >> 31;
  }
  std::vector<float> logits;
  for (int32_t i = 0; i < kVocab; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    logits.push_back(static_cast<float>(state >> 40) / static_cast<float>(1 << 22));
  }
  return logits;
}

// What the model goes on with at temperature 0.
inline std::vector<int32_t> continuation(std::vector<int32_t> text, int32_t n) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < n; ++i) {
    ids.push_back(engine::argmax(logits_behind(text)));
    text.push_back(ids.back());
  }
  return ids;
}

// Keeps tokens in KvCells as the engine does, and checks what it is told.
class FakeModel final : public BatchModel {
 public:
  FakeModel(int32_t n_ctx, int32_t n_ubatch)
      : n_ctx_(n_ctx), n_ubatch_(n_ubatch), cells_(n_ctx), tokens_(n_ctx) {}

  // Called on the scheduler's thread with each batch; an error is what decode() gives.
  std::function<Status(std::span<const engine::BatchToken>)> on_decode;
  // As models with windowed layers may: nothing can be cut back or shared.
  bool forgets_all = false;
  bool refuses_states = false;
  // Sequences that fail in the batches from now on; on_decode may set them.
  std::vector<engine::SequenceFault> faults;
  // Sizes of all batches so far: tokens, and how many of them wanted logits. Read it when idle.
  struct Batch {
    int32_t n_tokens = 0;
    int32_t n_outputs = 0;
  };
  std::vector<Batch> batches;

  // The most positions of one sequence; 0: all.
  int32_t most_of_one = 0;

  int32_t n_ctx() const override { return n_ctx_; }
  int32_t n_ctx_sequence() const override { return most_of_one > 0 ? most_of_one : n_ctx_; }
  int32_t n_vocab() const override { return kVocab; }
  int32_t n_ubatch() const override { return n_ubatch_; }
  int32_t n_free() const override { return n_ctx_ - cells_.n_used(); }

  Result<engine::DecodeResult> decode(std::span<const engine::BatchToken> batch) override {
    HOTSET_CHECK(!batch.empty() && std::cmp_less_equal(batch.size(), n_ubatch_));
    HOTSET_CHECK(std::cmp_less_equal(batch.size(), n_free()));
    if (on_decode) HOTSET_RETURN_IF_ERROR(on_decode(batch));
    logits_.clear();
    Batch size{.n_tokens = static_cast<int32_t>(batch.size())};
    for (const engine::BatchToken& t : batch) {
      HOTSET_CHECK(t.position == cells_.last_position(t.sequence) + 1);
      int32_t cell = -1;
      HOTSET_RETURN_IF_ERROR(cells_.find_free({&cell, 1}));
      cells_.occupy(cell, t.position, t.sequence);
      tokens_[cell] = t.token;
      if (!t.want_logits) continue;
      ++size.n_outputs;
      std::vector<int32_t> text;
      for (const int32_t c : cells_.cells_of(t.sequence)) {
        text.push_back(tokens_[c]);
      }
      const std::vector<float> row = logits_behind(text);
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    batches.push_back(size);
    for (const engine::SequenceFault& fault : faults) forget(fault.sequence, 0, INT32_MAX);
    return engine::DecodeResult{.logits = logits_, .faults = faults};
  }
  void forget(engine::SequenceId sequence, int32_t begin, int32_t end) override {
    cells_.remove(sequence, begin, forgets_all ? INT32_MAX : end);
    if (forgets_all) cells_.remove(sequence, 0, INT32_MAX);
  }
  void share_prefix(engine::SequenceId from, engine::SequenceId to, int32_t end) override {
    if (!forgets_all) cells_.copy(from, to, 0, end);
  }
  int32_t next_position(engine::SequenceId sequence) const override {
    return cells_.last_position(sequence) + 1;
  }
  Bytes saved_bytes(engine::SequenceId sequence) const override {
    return {static_cast<int64_t>(cells_.cells_of(sequence).size()) * 4};
  }
  Result<std::vector<uint8_t>> save(engine::SequenceId sequence) const override {
    std::vector<uint8_t> state;
    for (const int32_t cell : cells_.cells_of(sequence)) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(&tokens_[cell]);
      state.insert(state.end(), bytes, bytes + 4);
    }
    return state;
  }
  Status restore(engine::SequenceId sequence, std::span<const uint8_t> state) override {
    if (refuses_states) return make_error(ErrorCode::kCorrupt, "refused");
    cells_.remove(sequence, 0, INT32_MAX);
    for (size_t i = 0; i < state.size(); i += 4) {
      HOTSET_TRY(const int32_t cell, cells_.find_next(sequence));
      cells_.occupy(cell, static_cast<int32_t>(i / 4), sequence);
      std::memcpy(&tokens_[cell], state.data() + i, 4);
    }
    return {};
  }
  ExpertFigures expert_figures() const override {
    // Every token of a batch selects two experts, one of them resident.
    const double n = std::accumulate(batches.begin(), batches.end(), 0.0,
                                     [](double sum, Batch b) { return sum + b.n_tokens; });
    return {.selected = 2 * n, .hits = n, .uploads = n};
  }

 private:
  int32_t n_ctx_;
  int32_t n_ubatch_;
  engine::KvCells cells_;
  std::vector<int32_t> tokens_;
  std::vector<float> logits_;
};

class KeepingSink final : public ChoiceSink {
 public:
  // With `enough` above 0 it stops the choice there.
  explicit KeepingSink(size_t enough = 0) : enough_(enough) {}

  void on_prompt(std::span<const GeneratedToken> tokens) override {
    const std::lock_guard lock(mutex_);
    HOTSET_CHECK(!was_prompted_ && tokens_.empty());
    was_prompted_ = true;
    prompt_.assign(tokens.begin(), tokens.end());
  }
  bool on_token(const GeneratedToken& token) override {
    const std::lock_guard lock(mutex_);
    HOTSET_CHECK(was_prompted_);
    tokens_.push_back(token);
    changes_.notify_all();
    return enough_ == 0 || tokens_.size() < enough_;
  }
  void on_end(const ChoiceResult& result) override {
    const std::lock_guard lock(mutex_);
    HOTSET_CHECK(!has_ended_);
    result_ = result;
    has_ended_ = true;
    changes_.notify_all();
  }

  ChoiceResult wait() {
    std::unique_lock lock(mutex_);
    changes_.wait(lock, [this] { return has_ended_; });
    return result_;
  }
  void wait_for_tokens(size_t n) {
    std::unique_lock lock(mutex_);
    changes_.wait(lock, [&] { return has_ended_ || tokens_.size() >= n; });
  }
  bool has_ended() {
    const std::lock_guard lock(mutex_);
    return has_ended_;
  }
  std::vector<int32_t> ids() {
    const std::lock_guard lock(mutex_);
    std::vector<int32_t> ids;
    for (const GeneratedToken& token : tokens_) ids.push_back(token.id);
    return ids;
  }
  // What on_prompt() gave.
  std::vector<GeneratedToken> prompt() {
    const std::lock_guard lock(mutex_);
    return prompt_;
  }
  std::vector<GeneratedToken> tokens() {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }

 private:
  size_t enough_;
  std::mutex mutex_;
  std::condition_variable changes_;
  std::vector<GeneratedToken> tokens_;
  std::vector<GeneratedToken> prompt_;
  ChoiceResult result_;
  bool was_prompted_ = false;
  bool has_ended_ = false;
};

// A door that the scheduler's thread waits at until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++n_waiting_;
    changes_.notify_all();
    changes_.wait(lock, [this] { return is_open_; });
    --n_waiting_;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changes_.notify_all();
  }
  void wait_until_somebody_waits() {
    std::unique_lock lock(mutex_);
    changes_.wait(lock, [this] { return n_waiting_ > 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changes_;
  int n_waiting_ = 0;
  bool is_open_ = false;
};

using Ids = std::vector<int32_t>;

inline Ids text_of(int32_t n, int32_t first = 0) {
  Ids ids;
  for (int32_t i = 0; i < n; ++i) ids.push_back((first + i) % kVocab);
  return ids;
}

inline GenerationRequest greedy(Ids prompt, int32_t max_tokens,
                                std::vector<std::shared_ptr<ChoiceSink>> sinks) {
  return {.prompt = std::move(prompt),
          .max_tokens = max_tokens,
          .sampler = {.temperature = 0},
          .sinks = std::move(sinks)};
}

inline std::unique_ptr<Scheduler> start(FakeModel& model, SchedulerOptions options) {
  auto scheduler = Scheduler::create(model, std::move(options));
  EXPECT_TRUE(scheduler) << scheduler.error().message;
  return *std::move(scheduler);
}

// The status behind the last step.
inline SchedulerStatus settled(Scheduler& scheduler) {
  EXPECT_TRUE(scheduler.between_steps([] {}));
  return scheduler.status();
}

// Submits and waits.
struct Answer {
  Ids ids;
  ChoiceResult result;
};
inline Answer ask(Scheduler& scheduler, Ids prompt, int32_t max_tokens) {
  auto sink = std::make_shared<KeepingSink>();
  const auto id = scheduler.submit(greedy(std::move(prompt), max_tokens, {sink}));
  EXPECT_TRUE(id) << id.error().message;
  if (!id) return {};
  const ChoiceResult result = sink->wait();
  return {sink->ids(), result};
}

}  // namespace hotset::server::test

#endif  // HOTSET_SERVER_SERVER_TESTING_H_
