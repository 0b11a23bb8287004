// The guard of share auto in the engine (design.md section 5), on the virtual clock: a device that
// gets slower in a way that no cost learns, as graphs that read slowly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/log.h"
#include "tests/cached_decode.h"

namespace hotset::test {
namespace {

using testing::ContainsRegex;
using testing::IsEmpty;

constexpr int64_t kWindow = 64;  // tokens
constexpr int32_t kContext = 400;
const std::string kDevice = "emu:clock=virtual,us=1,gbps=3,cpu_gbps=4";

// What the engine logs about the guard while it lives.
class GuardMessages {
 public:
  GuardMessages() {
    set_log_sink([this](LogLevel, std::string_view message) {
      if (message.starts_with("uploads and fills") || message.starts_with("resident experts")) {
        seen_.emplace_back(message);
      }
    });
  }
  GuardMessages(const GuardMessages&) = delete;
  GuardMessages& operator=(const GuardMessages&) = delete;
  ~GuardMessages() { set_log_sink({}); }

  const std::vector<std::string>& seen() const { return seen_; }

 private:
  std::vector<std::string> seen_;
};

// Decodes tokens one by one, always the same ones.
class Decoder {
 public:
  Decoder(const std::string& device, Bytes cache) {
    engine::EngineOptions options = cache_options(device, cache);
    options.context.n_ctx = kContext;
    engine_ = make_engine(describe(model_of("qwen3moe")), options);
    HOTSET_CHECK(engine_ != nullptr);
    start_us_ = engine_->device()->now_us();
  }

  void decode_to(int64_t n, const std::function<void()>& after_each = [] {}) {
    for (; n_tokens_ < n; ++n_tokens_) {
      if (n_tokens_ % kContext == 0) engine_->forget(0, 0, INT32_MAX);
      const auto id = some_ids(1, 1000 + static_cast<uint64_t>(n_tokens_));
      is_unused_ = engine_->cache() != nullptr && engine_->cache()->use() == lanes::CacheUse::kNone;
      logits_ = decode(*engine_, as_batch(id, true, engine_->next_position(0)));
      after_each();
    }
  }

  int64_t n_tokens() const { return n_tokens_; }
  double now_us() const { return engine_->device()->now_us(); }
  double elapsed_us() const { return now_us() - start_us_; }
  const std::vector<float>& logits() const { return logits_; }
  // As it was for the last token.
  bool is_unused() const { return is_unused_; }
  uint64_t n_lookups() const { return engine_->cache()->core().total_counts().lookups; }
  Bytes uploaded_and_filled() const {
    Bytes sum;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const cache::CacheCounts& totals =
          engine_->cache()->core().counts(layer)[cache::BatchClass::kOne];
      sum += totals.uploaded_bytes + totals.filled_bytes;
    }
    return sum;
  }

 private:
  std::unique_ptr<engine::Engine> engine_;
  int64_t n_tokens_ = 0;
  double start_us_ = 0;
  bool is_unused_ = false;
  std::vector<float> logits_;
};

// Of tokens [begin, end).
double us_per_token(const std::string& device, Bytes cache, int64_t begin, int64_t end) {
  Decoder decoder(device, cache);
  decoder.decode_to(begin);
  const double begin_us = decoder.now_us();
  decoder.decode_to(end);
  return (decoder.now_us() - begin_us) / static_cast<double>(end - begin);
}

// kDevice, of which graphs read at `gbps` from the token `begin` to the token `end`.
std::string slow_between(const std::string& gbps, Bytes cache, int64_t begin, int64_t end) {
  const GuardMessages not_shown;
  std::string device = kDevice + ",dev_gbps2=" + gbps;
  for (const auto& [key, n] : {std::pair("change_us", begin), std::pair("back_us", end)}) {
    Decoder decoder(device, cache);
    decoder.decode_to(n);
    device += fmt::format(",{}={}", key, decoder.now_us());
  }
  return device;
}

TEST(NeverSlowerEngine, TheCacheIsLeftUnusedOnADeviceThatGotSlowAndUsedAgainOnceItIsBack) {
  constexpr int64_t kSlowFrom = 300;  // in the middle of a window
  constexpr int64_t kSlowTo = 1200;
  // Two full windows each.
  constexpr int64_t kStopBy = (kSlowFrom / kWindow + 1 + 2) * kWindow;
  constexpr int64_t kUnusedBy = kStopBy + 2 * kWindow;
  // Two probes, one in a hundred tokens, and two windows.
  constexpr int64_t kResumeBy = kSlowTo + 2 * 130 + 3 * kWindow;
  const Bytes cache = budget_for(model_of("qwen3moe"), 12);

  // The cache is worth having, then worth less than nothing.
  const double fast_us = us_per_token(kDevice, cache, 128, 256);
  EXPECT_LT(fast_us, 0.7 * us_per_token(kDevice, {}, 128, 256));

  const std::string device = slow_between("1", cache, kSlowFrom, kSlowTo);
  GuardMessages messages;
  Decoder decoder(device, cache);
  const auto decode_to_message = [&](size_t n_messages, int64_t last) {
    while (messages.seen().size() < n_messages && decoder.n_tokens() < last) {
      decoder.decode_to(decoder.n_tokens() + 1);
    }
    return messages.seen().size() == n_messages;
  };
  decoder.decode_to(kSlowFrom);
  EXPECT_GT(decoder.uploaded_and_filled().count, 0);
  EXPECT_THAT(messages.seen(), IsEmpty());
  const double slow_us = decoder.now_us();
  ASSERT_TRUE(decode_to_message(1, kStopBy));
  const int64_t n_stopped = decoder.n_tokens();
  EXPECT_EQ(n_stopped % kWindow, 0);
  const double with_us = (decoder.now_us() - slow_us) / static_cast<double>(n_stopped - kSlowFrom);
  const std::string slow_device = kDevice + ",dev_gbps=1";
  EXPECT_GT(with_us, 1.02 * us_per_token(slow_device, {}, kSlowFrom, n_stopped));
  EXPECT_THAT(messages.seen()[0],
              ContainsRegex(fmt::format("^uploads and fills stopped after {} tokens: "
                                        "[0-9.]+ ms a token measured with them, "
                                        "[0-9.]+ ms without a cache \\(2 windows in a row\\)$",
                                        n_stopped)));

  // Nothing comes in any more; what is resident is slow as well, and is left to the CPU.
  const Bytes before = decoder.uploaded_and_filled();
  ASSERT_TRUE(decode_to_message(2, kUnusedBy));
  EXPECT_THAT(messages.seen()[1], ContainsRegex("^resident experts are left unused after "));
  const int64_t n_unused = decoder.n_tokens();
  const double unused_us = decoder.now_us();
  const uint64_t n_lookups = decoder.n_lookups();
  decoder.decode_to(kSlowTo);
  EXPECT_EQ(decoder.uploaded_and_filled().count, before.count);
  EXPECT_EQ(messages.seen().size(), 2U);
  // Only probes look up anything, and a token takes what it takes without a cache.
  const double n_since = static_cast<double>(kSlowTo - n_unused);
  EXPECT_GT(decoder.n_lookups(), n_lookups);
  EXPECT_LE(static_cast<double>(decoder.n_lookups() - n_lookups), kLayers * (n_since / 100 + 1));
  EXPECT_LT((decoder.now_us() - unused_us) / n_since,
            1.015 * us_per_token(slow_device, {}, n_unused, kSlowTo));

  ASSERT_TRUE(decode_to_message(4, kResumeBy));
  EXPECT_THAT(messages.seen()[2], ContainsRegex("^resident experts are used again after [0-9]+"));
  EXPECT_THAT(messages.seen()[3],
              ContainsRegex("^uploads and fills resumed after [0-9]+ tokens: "));
  const Bytes resumed = decoder.uploaded_and_filled();
  decoder.decode_to(decoder.n_tokens() + kWindow);
  const double resumed_us = decoder.now_us();
  decoder.decode_to(decoder.n_tokens() + 2 * kWindow);
  EXPECT_GT(decoder.uploaded_and_filled(), resumed);
  EXPECT_LT((decoder.now_us() - resumed_us) / (2 * kWindow), 1.2 * fast_us);
  EXPECT_EQ(messages.seen().size(), 4U);

  Decoder without(kDevice, {});
  without.decode_to(decoder.n_tokens());
  EXPECT_EQ(decoder.logits(), without.logits());
}

TEST(NeverSlowerEngine, UploadsGoOnWhereTheCacheIsStillFasterOnADeviceThatGotSlow) {
  const Bytes cache = budget_for(model_of("qwen3moe"), 12);
  const std::string device = slow_between("10", cache, 300, 900);
  EXPECT_LT(us_per_token(device, cache, 384, 768),
            0.9 * us_per_token(kDevice + ",dev_gbps=10", {}, 384, 768));
  GuardMessages messages;
  Decoder decoder(device, cache);
  decoder.decode_to(500);
  const Bytes before = decoder.uploaded_and_filled();
  decoder.decode_to(900 + 4 * kWindow);
  EXPECT_GT(decoder.uploaded_and_filled(), before);
  EXPECT_THAT(messages.seen(), IsEmpty());
}

TEST(NeverSlowerEngine, ProbesTakeAtMostOnePercentOfTheTokensAndOfTheTime) {
  const Bytes cache = budget_for(model_of("qwen3moe"), 12);
  // The second device gets slow and fast again: what was saved up is not spent at once.
  for (const std::string& device : {kDevice, slow_between("1", cache, 300, 900)}) {
    const GuardMessages not_shown;
    Decoder decoder(device, cache);
    int64_t n_probes = 0;
    double probe_us = 0;
    double begin_us = decoder.now_us();
    uint64_t n_lookups = decoder.n_lookups();
    decoder.decode_to(kSanitized ? 800 : 1600, [&] {
      const double now_us = decoder.now_us();
      // A probe looks up nothing; where the cache is left unused, it alone looks up something.
      const bool looked_up = decoder.n_lookups() != n_lookups;
      if (looked_up == decoder.is_unused()) {
        ++n_probes;
        probe_us += now_us - begin_us;
        // This token is not yet counted.
        EXPECT_LE(100 * n_probes, decoder.n_tokens() + 1) << device;
      }
      n_lookups = decoder.n_lookups();
      begin_us = now_us;
    });
    EXPECT_GE(n_probes, 2) << device;
    // One that was predicted wrongly, as conditions changed, is paid back later.
    EXPECT_LE(probe_us, 0.0101 * decoder.elapsed_us()) << device;
  }
}

}  // namespace
}  // namespace hotset::test
