// The cache of a loaded model changed: as if the model had been loaded with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cached_decode.h"

namespace hotset {
namespace {

using test::budget_for;
using test::decode;
using test::make_engine;
using testing::HasSubstr;

constexpr const char* kEmu = "emu:clock=virtual,us=1";

engine::CacheOptions fixed(double share) { return {.rules = {.cpu_share = share}}; }

struct Outcome {
  std::vector<float> logits;
  cache::CacheCounts counts;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome(engine::Engine& engine) {
  engine.forget(0, 0, INT32_MAX);
  Outcome outcome{.logits = test::run_script(engine), .counts = {}};
  if (engine.cache() == nullptr) return outcome;
  cache::CacheCounts& counts = outcome.counts;
  counts = engine.cache()->core().total_counts();
  // Differences of times on a clock that has gone on from the first cache to the second.
  for (double* us : {&counts.timed_upload_us, &counts.cpu_us, &counts.wait_us}) {
    *us = std::round(*us * 1000) / 1000;
  }
  return outcome;
}

TEST(SetCache, WorksAsIfTheModelHadBeenLoadedWithIt) {
  const auto path = test::model_of("qwen3moe");
  const auto engine = make_engine(test::describe(path), test::cache_options(kEmu, gib(1)));
  ASSERT_NE(engine, nullptr);
  for (const int64_t n_slots : test::values<int64_t>({16, 5, 40, 48, 0, 9}, 3)) {
    for (const double share : test::values<double>({0, 0.5, 1}, 2)) {
      SCOPED_TRACE(fmt::format("{} slots, share {}", n_slots, share));
      const Bytes budget = n_slots == 0 ? Bytes{} : budget_for(path, n_slots);
      const auto status = engine->set_cache(budget, fixed(share));
      ASSERT_TRUE(status) << status.error().message;
      auto options = test::cache_options(kEmu, budget);
      options.cache = fixed(share);
      const auto fresh = make_engine(test::describe(path), options);
      ASSERT_NE(fresh, nullptr);
      EXPECT_EQ(engine->cache() == nullptr, n_slots == 0);
      EXPECT_EQ(outcome(*engine), outcome(*fresh));
    }
  }
}

TEST(SetCache, KeepsTheContext) {
  const auto path = test::model_of("qwen3moe");
  const auto engine = make_engine(test::describe(path), test::cache_options(kEmu, gib(1)));
  ASSERT_NE(engine, nullptr);
  const auto ids = test::some_ids(20, 3);
  const auto first = std::span(ids).first(12);
  decode(*engine, test::as_batch(ids, false));
  engine->forget(0, 0, INT32_MAX);
  const auto whole = decode(*engine, test::as_batch(ids, false));
  engine->forget(0, 0, INT32_MAX);
  decode(*engine, test::as_batch(first, false));
  ASSERT_TRUE(engine->set_cache(budget_for(path, 7), fixed(0.5)));
  EXPECT_EQ(engine->next_position(0), 12);
  const auto rest = decode(*engine, test::as_batch(std::span(ids).subspan(12), false, 12));
  EXPECT_LT(test::nmse(rest, whole), 1e-6);
}

TEST(SetCache, RefusesWhatWasNotPlanned) {
  const auto path = test::model_of("qwen3moe");
  const auto engine =
      make_engine(test::describe(path), test::cache_options(kEmu, budget_for(path, 9)));
  ASSERT_NE(engine, nullptr);
  const auto too_much = engine->set_cache(budget_for(path, 10), {});
  ASSERT_FALSE(too_much);
  EXPECT_EQ(too_much.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(too_much.error().message, HasSubstr("expected at most"));
  engine::CacheOptions other_batch;
  other_batch.rules.cache_batch = 7;
  const auto batch = engine->set_cache(budget_for(path, 5), other_batch);
  ASSERT_FALSE(batch);
  EXPECT_THAT(batch.error().message, HasSubstr("--moe-cache-batch: found 7, expected 32"));
  // Nothing has changed.
  EXPECT_FALSE(decode(*engine, test::as_batch(test::some_ids(3, 1), false)).empty());

  const auto bad_policy = engine->set_cache(budget_for(path, 5), {.rules = {.policy = "nonsense"}});
  ASSERT_FALSE(bad_policy);
  // Now there is no cache and no executor.
  const auto batch_of_one = test::as_batch(test::some_ids(1, 1), false, engine->next_position(0));
  const auto result = engine->decode(batch_of_one);
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("set_cache() failed"));
  ASSERT_TRUE(engine->set_cache(budget_for(path, 5), {}));
  EXPECT_TRUE(engine->decode(batch_of_one));
}

TEST(SetThreads, ChangesTimesAndNoResults) {
  const auto path = test::model_of("qwen3moe");
  const auto engine = make_engine(
      test::describe(path),
      test::cache_options(std::string(kEmu) + ",cpu_gbps=20,cpu_thread_gbps=1", gib(1)));
  ASSERT_NE(engine, nullptr);
  std::vector<float> logits;
  double last_us = HUGE_VAL;
  for (const int n_threads : {1, 2, 7}) {
    const auto status = engine->set_threads(n_threads);
    ASSERT_TRUE(status) << status.error().message;
    ASSERT_TRUE(engine->set_cache(Bytes{}, {}));
    EXPECT_EQ(engine->n_threads(), n_threads);
    const double start_us = engine->device()->now_us();
    const Outcome found = outcome(*engine);
    const double us = engine->device()->now_us() - start_us;
    EXPECT_LT(us, last_us);
    last_us = us;
    if (logits.empty()) logits = found.logits;
    EXPECT_EQ(found.logits, logits);
  }
  for (const int n_threads : {0, 513, -1}) {
    const auto status = engine->set_threads(n_threads);
    ASSERT_FALSE(status);
    EXPECT_THAT(status.error().message, HasSubstr("expected 1 to 512"));
  }
  EXPECT_EQ(engine->n_threads(), 7);
}

TEST(SetThreads, WorksOnTheCpuAlone) {
  const auto engine =
      make_engine(test::describe(test::model_of("qwen3moe")), test::cache_options("", {}));
  ASSERT_NE(engine, nullptr);
  const auto batch = test::as_batch(test::some_ids(9, 1), false);
  const auto one = decode(*engine, batch);
  engine->forget(0, 0, INT32_MAX);
  ASSERT_TRUE(engine->set_threads(1));
  EXPECT_EQ(decode(*engine, batch), one);
}

TEST(SetCache, NeedsAnEngineWithACache) {
  const auto path = test::model_of("qwen3moe");
  for (const char* device : {"", kEmu}) {
    const auto engine = make_engine(test::describe(path), test::cache_options(device, {}));
    ASSERT_NE(engine, nullptr);
    const auto status = engine->set_cache(budget_for(path, 5), {});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace hotset
