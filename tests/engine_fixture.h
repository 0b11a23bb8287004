// Small helpers of the tests that compute with models.
#ifndef TESTS_ENGINE_FIXTURE_H_
#define TESTS_ENGINE_FIXTURE_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hotset/engine/run/engine.h"

namespace hotset::test {

// sum (a - b)^2 / sum b^2; NaN counts as infinitely far.
inline double nmse(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  if (a.size() != b.size()) return HUGE_VAL;
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    error += difference * difference;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::isfinite(error) ? error / norm : HUGE_VAL;
}

// One sequence's tokens from `position` on, logits wanted for all or for the last.
inline std::vector<engine::BatchToken> as_batch(std::span<const int32_t> ids, bool all_logits,
                                                int32_t position = 0,
                                                engine::SequenceId sequence = 0) {
  std::vector<engine::BatchToken> batch;
  for (const int32_t id : ids) {
    batch.push_back(
        {.token = id, .position = position++, .sequence = sequence, .want_logits = all_logits});
  }
  batch.back().want_logits = true;
  return batch;
}

inline std::unique_ptr<engine::Engine> make_engine(engine::ModelDescription description,
                                                   const engine::EngineOptions& options) {
  auto engine = engine::Engine::create(std::move(description), options);
  EXPECT_TRUE(engine) << engine.error().message;
  return engine ? *std::move(engine) : nullptr;
}

inline engine::ModelDescription describe(const std::filesystem::path& path) {
  auto description = engine::describe_model(path);
  EXPECT_TRUE(description) << description.error().message;
  HOTSET_CHECK(description.has_value());
  return *std::move(description);
}

// A copy of the logits, or nothing after a failure.
inline std::vector<float> decode(engine::Engine& engine,
                                 std::span<const engine::BatchToken> batch) {
  const auto result = engine.decode(batch);
  EXPECT_TRUE(result) << result.error().message;
  if (!result) return {};
  return {result->logits.begin(), result->logits.end()};
}

}  // namespace hotset::test

#endif  // TESTS_ENGINE_FIXTURE_H_
