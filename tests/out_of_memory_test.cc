// Every allocation is refused once: those that hotset asks for before it lets ggml allocate, by the
// gate of base/allocation.h, and those of C++, by an operator new that throws. Nothing may end the
// process or leave the engine as an exception, and whoever goes on afterwards computes as before.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/allocation.h"
#include "hotset/base/log.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/weights/random_model.h"
#include "tests/allocation_refusal.h"
#include "tests/cached_decode.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace hotset::test {
namespace {

// Refuses the allocation number `n` (from 0) of what happens while it lives.
class Refusal {
 public:
  virtual ~Refusal() = default;
  virtual void arm(int64_t n) = 0;
  // Whether there was an allocation of that number. Nothing is refused from now on.
  virtual bool disarm() = 0;
};

class RefusalByGate final : public Refusal {
 public:
  ~RefusalByGate() override { set_allocation_gate({}); }
  void arm(int64_t n) override {
    n_left_ = n;
    set_allocation_gate([this](std::string_view) { return n_left_-- != 0; });
  }
  bool disarm() override {
    set_allocation_gate({});
    return n_left_ < 0;
  }

 private:
  std::atomic<int64_t> n_left_ = 0;
};

class RefusalByNew final : public Refusal {
 public:
  ~RefusalByNew() override { n_until_refusal = -1; }
  void arm(int64_t n) override { n_until_refusal = n; }
  bool disarm() override { return n_until_refusal.exchange(-1) < 0; }
};

// While it lives, C++ finds memory: for what the test allocates, not hotset.
class Pause {
 public:
  Pause() : n_(n_until_refusal.exchange(-1)) {}
  ~Pause() { n_until_refusal = n_; }
  Pause(const Pause&) = delete;
  Pause& operator=(const Pause&) = delete;

 private:
  int64_t n_;
};

struct Case {
  std::string device;
  int64_t n_slots = 0;
};

constexpr int64_t kWords = 64;

std::filesystem::path model() {
  static const TemporaryFolder folder;
  const std::filesystem::path path = folder / "model.gguf";
  if (!std::filesystem::exists(path)) {
    const auto written = engine::write_random_model({.n_layer = 2,
                                                     .n_embd = 64,
                                                     .n_head = 2,
                                                     .n_head_kv = 1,
                                                     .head_dim = 32,
                                                     .n_expert = 8,
                                                     .n_expert_used = 2,
                                                     .n_ff_expert = 32,
                                                     .n_vocab = kWords},
                                                    path);
    EXPECT_TRUE(written) << written.error().message;
  }
  return path;
}

std::vector<int32_t> words(int64_t n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % kWords);
  return ids;
}

// What a program does with a model: loads it, computes a prompt and some tokens, changes the cache,
// saves and restores a sequence.
class Script {
 public:
  explicit Script(const Case& what) : what_(what), path_(model()) {
    if (what.n_slots > 0) budget_ = budget_for(path_, what.n_slots);
    options_ = cache_options(what.device, budget_);
    options_.context.n_ubatch = 16;
    options_.context.n_outputs = 1;
    options_.cache.rules.cpu_share = 0.5;
  }

  Status load() {
    HOTSET_TRY(engine::ModelDescription description, engine::describe_model(path_));
    HOTSET_TRY(engine_, engine::Engine::create(std::move(description), options_));
    return {};
  }
  Status compute() {
    engine_->forget(0, 0, INT32_MAX);
    for (const int64_t n : {20, 1, 3}) {
      std::vector<engine::BatchToken> batch;
      {
        const Pause pause;
        batch = as_batch(words(n), false, engine_->next_position(0));
      }
      HOTSET_TRY(const engine::DecodeResult result, engine_->decode(batch));
      const Pause pause;
      logits_.assign(result.logits.begin(), result.logits.end());
    }
    return {};
  }
  Status more() {
    HOTSET_TRY(const std::vector<uint8_t> state, engine_->save_sequence(0));
    HOTSET_TRY(const std::vector<int32_t> tokens, engine_->restore_sequence(1, state));
    return change_cache();
  }
  Status change_cache() {
    if (what_.n_slots == 0) return {};
    engine::CacheOptions cache;
    cache.rules.cpu_share = 0.25;
    return engine_->set_cache(budget_, cache);
  }
  // Whether there is something to compute with; what it says of the tokens does not matter.
  bool computes() const {
    engine_->forget(0, 0, INT32_MAX);
    const auto result = engine_->decode(as_batch(words(1), false));
    return result || result.error().code != ErrorCode::kDevice;
  }
  // As compute(), whatever was refused before.
  Status go_on() {
    HOTSET_RETURN_IF_ERROR(change_cache());
    return compute();
  }
  Status all() {
    HOTSET_RETURN_IF_ERROR(load());
    HOTSET_RETURN_IF_ERROR(compute());
    HOTSET_RETURN_IF_ERROR(more());
    return compute();
  }

  engine::Engine* engine() const { return engine_.get(); }
  const std::vector<float>& logits() const { return logits_; }

 private:
  Case what_;
  std::filesystem::path path_;
  Bytes budget_;
  engine::EngineOptions options_;
  std::unique_ptr<engine::Engine> engine_;
  std::vector<float> logits_;
};

// Runs the script with one allocation after the other refused, `step(n)` apart. Returns how many
// there are.
template <typename Step>
int64_t refuse_each(const Case& what, Refusal& refusal, const Step& step) {
  Script whole(what);
  const Status done = whole.all();
  EXPECT_TRUE(done) << done.error().message;
  int64_t n_refused = 0;
  for (int64_t n = 0;; n += step(n)) {
    Script script(what);
    refusal.arm(n);
    Status status;
    try {
      status = script.all();
    } catch (const std::exception& error) {
      refusal.disarm();
      ADD_FAILURE() << "allocation " << n << ": an exception left the engine: " << error.what();
      return n;
    }
    if (!refusal.disarm()) {
      EXPECT_TRUE(status) << status.error().message;
      EXPECT_GT(n_refused, 0);
      return n;
    }
    if (!status) {
      ++n_refused;
      // ggml's reader of files catches what is thrown in it, and does not say so.
      const bool in_reader = status.error().message.contains("found no memory");
      EXPECT_TRUE(status.error().code == ErrorCode::kOutOfMemory || in_reader)
          << "allocation " << n << ": " << status.error().message;
    }
    // What is loaded goes on where there is memory again.
    if (script.engine() == nullptr) continue;
    // Without an executor only another cache helps, as Engine::set_cache() says.
    const bool has_executor = script.computes();
    const Status later = has_executor ? script.compute() : script.go_on();
    EXPECT_TRUE(later) << "after allocation " << n << ": " << later.error().message;
    EXPECT_EQ(script.logits(), whole.logits()) << "after allocation " << n;
  }
}

class OutOfMemory : public testing::TestWithParam<Case> {
 protected:
  // Thousands of errors are expected here.
  void SetUp() override { set_log_level(LogLevel::kError); }
  void TearDown() override { set_log_level(LogLevel::kInfo); }
};

TEST_P(OutOfMemory, EveryAllocationThroughTheGateMayBeRefused) {
  RefusalByGate refusal;
  const int64_t n = refuse_each(GetParam(), refusal, [](int64_t) { return kSanitized ? 7 : 1; });
  EXPECT_GT(n, 50) << "contexts, graphs, buffers: there are many";
}

TEST_P(OutOfMemory, AllocationsOfCppMayBeRefused) {
#ifdef __SANITIZE_ADDRESS__
  // ggml's reader of GGUF files loses what it has begun where operator new throws in it.
  const __lsan::ScopedDisabler leaks_of_ggml;
#endif
  RefusalByNew refusal;
  // The first ones each, of the others every so many-th: there are thousands.
  refuse_each(GetParam(), refusal,
              [](int64_t n) { return n < 300 ? 1 : n / (kSanitized ? 8 : 100); });
}

INSTANTIATE_TEST_SUITE_P(Devices, OutOfMemory,
                         testing::Values(Case{.device = ""},
                                         Case{.device = "emu:mib=64,clock=virtual"},
                                         Case{.device = "emu:mib=64,clock=virtual", .n_slots = 6}),
                         [](const auto& one) {
                           return one.param.device.empty() ? "Cpu"
                                  : one.param.n_slots > 0  ? "Cache"
                                                           : "NoCache";
                         });

}  // namespace
}  // namespace hotset::test
