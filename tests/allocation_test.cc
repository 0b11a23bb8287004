// Decoding allocates nothing of hotset's own in steady state: operator new is counted where neither
// ggml nor the device folder (which calls it) is on the stack.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>
#include <vector>

#include "hotset/engine/run/engine.h"
#include "hotset/engine/run/sampler.h"
#include "hotset/engine/weights/random_model.h"
#include "tests/allocation_refusal.h"
#include "tests/engine_fixture.h"
#include "tests/test_files.h"

namespace {

std::atomic<bool> g_counting = false;
std::atomic<int64_t> g_n_own = 0;
std::atomic<int64_t> g_n_others = 0;
thread_local bool g_in_hook = false;

bool is_foreign(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return false;
  const std::string_view file = info.dli_fname == nullptr ? "" : info.dli_fname;
  const std::string_view symbol = info.dli_sname == nullptr ? "" : info.dli_sname;
  return file.find("libggml") != std::string_view::npos ||
         symbol.find("6hotset6device") != std::string_view::npos;
}

void count_allocation() {
  if (!g_counting || g_in_hook) return;
  g_in_hook = true;
  void* frames[64];
  const int n_frames = backtrace(frames, 64);
  bool foreign = false;
  for (int i = 0; i < n_frames && !foreign; ++i) foreign = is_foreign(frames[i]);
  ++(foreign ? g_n_others : g_n_own);
  g_in_hook = false;
}

void* allocate(size_t n_bytes) {
  count_allocation();
  if (hotset::test::refuses_allocation()) throw std::bad_alloc();
  if (void* memory = std::malloc(n_bytes > 0 ? n_bytes : 1)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t n_bytes) { return allocate(n_bytes); }
void* operator new[](size_t n_bytes) { return allocate(n_bytes); }
void* operator new(size_t n_bytes, const std::nothrow_t&) noexcept {
  count_allocation();
  if (hotset::test::refuses_allocation()) return nullptr;
  return std::malloc(n_bytes > 0 ? n_bytes : 1);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace hotset::test {
namespace {

struct Counts {
  int64_t own = 0;
  int64_t others = 0;
};

// What `n_tokens` decode steps allocate after `n_warm_up`, all in one n_kv bucket.
Counts decode_counts(const std::string& device, Bytes cache = {}, double share = 0.5) {
  const TemporaryFolder folder;
  const auto path = folder / "random.gguf";
  EXPECT_TRUE(engine::write_random_model({.n_layer = 3, .n_vocab = 256, .seed = 5}, path));
  const auto engine = make_engine(describe(path), {.n_threads = 1,
                                                   .context = {.n_ctx = 512},
                                                   .load = {.repack = false},
                                                   .device = device,
                                                   .cache_bytes = cache,
                                                   .cache = {.rules = {.cpu_share = share}}});
  EXPECT_EQ(engine->cache() != nullptr, cache.count > 0);
  constexpr int32_t kWarmUp = 5;
  constexpr int32_t kTokens = 40;
  std::vector<engine::BatchToken> tokens;
  for (int32_t i = 0; i < kWarmUp + kTokens; ++i) {
    tokens.push_back({.token = i, .position = i, .want_logits = true});
  }
  for (int32_t i = 0; i < kWarmUp + kTokens; ++i) {
    if (i == kWarmUp) {
      g_n_own = g_n_others = 0;
      g_counting = true;
    }
    EXPECT_TRUE(engine->decode({&tokens[static_cast<size_t>(i)], 1}));
  }
  g_counting = false;
  return {.own = g_n_own, .others = g_n_others};
}

TEST(Allocations, TheHookSeesThem) {
  void* frames[4];
  backtrace(frames, 4);  // loads its library now
  g_n_own = 0;
  g_counting = true;
  const auto* number = new std::vector<int>(100);
  g_counting = false;
  delete number;
  EXPECT_EQ(g_n_own, 2);
}

TEST(Allocations, NonePerTokenOnTheCpu) { EXPECT_EQ(decode_counts("").own, 0); }

TEST(Allocations, NonePerTokenOnTheEmulatedDevice) {
  EXPECT_EQ(decode_counts("emu:clock=virtual").own, 0);
}

TEST(Allocations, NonePerTokenWithACache) {
  for (const double share : {0.0, 0.5, 1.0}) {
    EXPECT_EQ(decode_counts("emu:clock=virtual", Bytes{1 << 20}, share).own, 0) << share;
  }
}

TEST(Sampler, AllocatesNothingInSteadyState) {
  auto sampler = engine::Sampler::create({.top_k = 0,
                                          .repeat_penalty = 1.1F,
                                          .frequency_penalty = 0.1F,
                                          .repeat_last_n = 16,
                                          .logit_bias = {{.id = 3, .bias = 2}}});
  ASSERT_TRUE(sampler);
  std::vector<float> logits(256);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
  const auto step = [&] { sampler->accept(sampler->sample(logits)); };
  sampler->accept(255);
  for (int i = 0; i < 20; ++i) step();
  g_n_own = 0;
  g_counting = true;
  for (int i = 0; i < 200; ++i) step();
  g_counting = false;
  EXPECT_EQ(g_n_own, 0);
}

}  // namespace
}  // namespace hotset::test
