// Runtimes shared by several threads; run under ThreadSanitizer as well.
#include "hotset/text/script_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "hotset/text/chat_template.h"

namespace hotset::text {
namespace {

using testing::HasSubstr;
using Lease = ScriptPool::Lease;

constexpr size_t kLarge = 1000;

Result<std::unique_ptr<ScriptRuntime>> make_echo(const ScriptLimits& limits) {
  HOTSET_TRY(auto runtime, ScriptRuntime::create(limits));
  HOTSET_RETURN_IF_ERROR(runtime->load(
      "test.js",
      "globalThis.test = { run(x) { return x; }, fill(n) { const a = []; for (let i = 0; i < n; "
      "++i) a.push('x'.repeat(1000) + i); return ''; } };"));
  return runtime;
}

std::unique_ptr<ScriptPool> make_pool(ScriptLimits limits = {.memory = mib(16)}) {
  auto pool = ScriptPool::create(
      make_echo, {.large_bytes = kLarge, .patience_us = 0, .limits = std::move(limits)});
  HOTSET_CHECK(pool.has_value());
  return *std::move(pool);
}

TEST(ScriptPool, MakesARuntimeForWhoFindsNoneAndKeepsOne) {
  const auto pool = make_pool();
  EXPECT_EQ(pool->n_runtimes(), 1);
  const Bytes one = pool->used_memory();
  for (int round = 0; round < 3; ++round) {
    std::vector<Lease> leases;
    for (int i = 0; i < 4; ++i) {
      leases.push_back(pool->take(1).value());
      EXPECT_EQ(leases.back()->call("test", "run", "x"), "x");
      EXPECT_EQ(pool->n_runtimes(), i + 1);
    }
    leases.clear();
    EXPECT_EQ(pool->n_runtimes(), 1);
    EXPECT_LE(pool->used_memory(), one + ScriptRuntime::kMaxGarbage);
  }
  // Not one that hit a limit.
  EXPECT_FALSE(pool->take(1).value()->call("test", "fill", "1000000"));
  EXPECT_EQ(pool->n_runtimes(), 0);
  EXPECT_EQ(pool->used_memory(), Bytes{0});
  EXPECT_EQ(pool->take(1).value()->call("test", "run", "y"), "y");
}

TEST(ScriptPool, LargeCallsLeaveRuntimesToSmallOnes) {
  const auto pool = make_pool();
  std::optional<Lease> first = pool->take(kLarge).value();
  std::optional<Lease> second = pool->take(kLarge).value();
  std::atomic<bool> has_third = false;
  std::thread third([&] {
    const auto lease = pool->take(kLarge);
    has_third = true;
    EXPECT_EQ((*lease)->call("test", "run", "third"), "third");
  });
  {
    const Lease small = pool->take(kLarge - 1).value();
    const Lease other = pool->take(0).value();
    EXPECT_EQ(small->call("test", "run", "small"), "small");
    EXPECT_FALSE(has_third);
  }
  first.reset();
  third.join();
  EXPECT_TRUE(has_third);
}

TEST(ScriptPool, AllRuntimesTogetherHaveALimit) {
  const auto pool = make_pool({.memory = mib(4)});
  std::vector<Lease> leases;
  for (int i = 0; i < 4; ++i) leases.push_back(pool->take(1).value());
  Result<std::string> last = "";
  size_t n_filled = 0;
  // While they hold it: strings that stay.
  for (const Lease& lease : leases) {
    ASSERT_TRUE(lease->load("keep.js",
                            "globalThis.kept = []; test.keep = (n) => { for (let i = 0; "
                            "i < n; ++i) kept.push('x'.repeat(1000) + i); return ''; };"));
    last = lease->call("test", "keep", "3200");
    if (!last) break;
    ++n_filled;
  }
  ASSERT_FALSE(last);
  EXPECT_EQ(n_filled, 3U);
  EXPECT_EQ(last.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(last.error().message, HasSubstr("more memory than others leave of 12.0 MiB"));
}

TEST(ScriptPool, AFailureToMakeOneGivesThePlaceBack) {
  bool fails = false;
  const auto pool = *ScriptPool::create(
      [&](const ScriptLimits& limits) -> Result<std::unique_ptr<ScriptRuntime>> {
        if (fails) return make_error(ErrorCode::kOutOfMemory, "no more");
        return make_echo(limits);
      },
      {.max_runtimes = 2, .max_large = 1, .large_bytes = kLarge, .patience_us = 0});
  const Lease first = pool->take(1).value();
  fails = true;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(pool->take(kLarge).error().message, "no more");
  fails = false;
  EXPECT_TRUE(pool->take(kLarge));
}

TEST(ScriptPool, ManyThreadsShareFew) {
  const auto pool = make_pool();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&pool, t] {
      const std::string text = std::to_string(t);
      for (int i = 0; i < 20; ++i) {
        const auto lease = pool->take(i % 3 == 0 ? kLarge : 1);
        ASSERT_TRUE(lease);
        EXPECT_LE(pool->n_runtimes(), 4);
        EXPECT_EQ((*lease)->call("test", "run", text), text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->n_runtimes(), 1);
}

// Once it is armed, holds whoever looks at it for the second time until it is let go: in the middle
// of what a script does.
class HoldingClock final : public Clock {
 public:
  double now_us() const override {
    if (is_armed_ && ++n_looks_ == 2) {
      is_held_.set_value();
      EXPECT_EQ(go_.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    }
    return 0;
  }
  void arm() { is_armed_ = true; }
  void wait_until_held() const { is_held_.get_future().wait(); }
  void let_go() const { go_.set_value(); }

 private:
  std::atomic<bool> is_armed_ = false;
  mutable std::atomic<int> n_looks_ = 0;
  mutable std::promise<void> is_held_;
  mutable std::promise<void> go_;
};

TEST(ChatTemplate, ALongChatKeepsNoOtherWaiting) {
  HoldingClock clock;
  const ChatTemplate chat =
      ChatTemplate::create("{% for m in messages %}{{ m.content | upper }}{% endfor %}",
                           {.limits = {.clock = &clock}})
          .value();
  std::string messages = R"([{"content": ")" + std::string(1 << 20, 'x') + R"("})";
  for (int i = 0; i < 20000; ++i) messages += R"(, {"content": "x"})";
  messages += "]";
  std::atomic<bool> is_done = false;
  clock.arm();
  std::thread slow([&] {
    EXPECT_EQ(chat.render({.messages = messages}), std::string((1 << 20) + 20000, 'X'));
    is_done = true;
  });
  clock.wait_until_held();
  EXPECT_EQ(chat.render({.messages = R"([{"content": "small"}])"}), "SMALL");
  EXPECT_FALSE(is_done);
  clock.let_go();
  slow.join();
}

}  // namespace
}  // namespace hotset::text
