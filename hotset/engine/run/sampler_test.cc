#include "hotset/engine/run/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace hotset::engine {
namespace {

using testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Sampler make(const SamplerOptions& options) {
  auto sampler = Sampler::create(options);
  EXPECT_TRUE(sampler) << sampler.error().message;
  HOTSET_CHECK(sampler.has_value());
  return *std::move(sampler);
}

// No filter at all.
SamplerOptions plain(float temperature, uint64_t seed) {
  return {.temperature = temperature, .top_k = 0, .top_p = 1, .min_p = 0, .seed = seed};
}

std::vector<float> random_logits(Random& random, size_t n) {
  std::vector<float> logits(n);
  for (float& logit : logits) logit = static_cast<float>(3 * random.normal());
  return logits;
}

// The probability of every id after the filters, straight from their definitions.
std::map<int32_t, double> naive_distribution(const std::vector<float>& logits,
                                             const SamplerOptions& options) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto logit = [&](int32_t id) { return static_cast<double>(logits[id]); };
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) { return logit(a) > logit(b); });
  if (options.top_k > 0 && ids.size() > static_cast<size_t>(options.top_k)) {
    ids.resize(options.top_k);
  }
  double total = 0;
  for (const int32_t id : ids) total += std::exp(logit(id));
  std::vector<int32_t> kept;
  double reached = 0;
  for (const int32_t id : ids) {
    const double probability = std::exp(logit(id)) / total;
    const double best = std::exp(logit(ids.front())) / total;
    if (!kept.empty() && (reached >= options.top_p || probability < options.min_p * best)) break;
    kept.push_back(id);
    reached += probability;
  }
  std::map<int32_t, double> distribution;
  total = 0;
  for (const int32_t id : kept) total += std::exp(logit(id) / options.temperature);
  for (const int32_t id : kept) {
    distribution[id] = std::exp(logit(id) / options.temperature) / total;
  }
  return distribution;
}

// Pearson's statistic of `n` samples against the stated probabilities; ids that are expected fewer
// than five times are taken together.
void expect_distribution(const std::map<int32_t, double>& expected,
                         const std::vector<float>& logits, const SamplerOptions& options, int n) {
  Sampler sampler = make(options);
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(logits)];
  for (const auto& [id, count] : counts) {
    ASSERT_TRUE(expected.contains(id)) << "id " << id << " was filtered out, but sampled";
  }
  double statistic = 0;
  int n_classes = 0;
  double rare = 0;
  int n_rare = 0;
  for (const auto& [id, probability] : expected) {
    const double mean = probability * n;
    if (mean < 5) {
      rare += mean;
      n_rare += counts[id];
      continue;
    }
    statistic += (counts[id] - mean) * (counts[id] - mean) / mean;
    ++n_classes;
  }
  if (rare >= 5) {
    statistic += (n_rare - rare) * (n_rare - rare) / rare;
    ++n_classes;
  }
  // Mean and variance of the distribution are d and 2d: five deviations above the mean.
  const double degrees = std::max(1, n_classes - 1);
  EXPECT_LT(statistic, degrees + 5 * std::sqrt(2 * degrees)) << n_classes << " classes";
}

TEST(Argmax, IsTheLowestOfTheBestIds) {
  EXPECT_EQ(argmax(std::vector<float>{1}), 0);
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-0.0F, 0.0F}), 0);
  EXPECT_EQ(argmax(std::vector<float>{kNan, -5, kNan}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-kInfinity, kNan, -3}), 2);
  EXPECT_EQ(argmax(std::vector<float>{1, kInfinity, kInfinity}), 1);
  EXPECT_EQ(argmax(std::vector<float>{kNan, kNan}), 0);
  EXPECT_EQ(argmax(std::vector<float>{-kInfinity, -kInfinity}), 0);
}

TEST(Sampler, TemperatureZeroIsGreedy) {
  Random random(1);
  Sampler sampler = make({.temperature = 0, .seed = 7});
  for (int i = 0; i < 50; ++i) {
    const auto logits = random_logits(random, 100);
    EXPECT_EQ(sampler.sample(logits), argmax(logits));
  }
}

TEST(Sampler, OneCandidateIsGreedyAtAnyTemperature) {
  Random random(2);
  for (const SamplerOptions& options :
       {SamplerOptions{.temperature = 100, .top_k = 1, .top_p = 1, .min_p = 0},
        SamplerOptions{.temperature = 100, .top_k = 0, .top_p = 0, .min_p = 0},
        SamplerOptions{.temperature = 100, .top_k = 0, .top_p = 1, .min_p = 1}}) {
    Sampler sampler = make(options);
    for (int i = 0; i < 50; ++i) {
      const auto logits = random_logits(random, 100);
      EXPECT_EQ(sampler.sample(logits), argmax(logits));
    }
  }
}

TEST(Sampler, TinyTemperaturesAreGreedy) {
  for (const float temperature : {1e-30F, std::numeric_limits<float>::denorm_min()}) {
    Sampler sampler = make(plain(temperature, 3));
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(sampler.sample(std::vector<float>{1, 1.001F, 0.5F, -100}), 1);
    }
  }
}

TEST(Sampler, TiesShareAndAreCutByTheLowerId) {
  const std::vector<float> logits = {0, 2, 2, 2, 1};
  Sampler two = make({.temperature = 1, .top_k = 2, .top_p = 1, .min_p = 0, .seed = 4});
  std::set<int32_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(two.sample(logits));
  EXPECT_EQ(seen, (std::set<int32_t>{1, 2}));
  Sampler best = make({.temperature = 1, .top_k = 0, .top_p = 1, .min_p = 1, .seed = 4});
  seen.clear();
  for (int i = 0; i < 100; ++i) seen.insert(best.sample(logits));
  EXPECT_EQ(seen, (std::set<int32_t>{1, 2, 3}));
}

TEST(Sampler, NeverChoosesWhatIsNotANumber) {
  Sampler sampler = make(plain(100, 5));
  const std::vector<float> logits = {kNan, 1, -kInfinity, 0.5F, kNan};
  std::set<int32_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(sampler.sample(logits));
  EXPECT_EQ(seen, (std::set<int32_t>{1, 3}));
}

TEST(Sampler, AlwaysGivesAnId) {
  Sampler sampler = make(plain(1, 6));
  EXPECT_EQ(sampler.sample(std::vector<float>{kNan, kNan, kNan}), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{-kInfinity, -kInfinity}), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, kInfinity, 2}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{3}), 0);
  constexpr float kMost = std::numeric_limits<float>::max();
  EXPECT_EQ(sampler.sample(std::vector<float>{-kMost, kMost}), 1);
}

TEST(Sampler, FollowsTheLogits) {
  const std::vector<float> logits = {std::log(0.5F), std::log(0.25F), std::log(0.15F),
                                     std::log(0.1F)};
  expect_distribution({{0, 0.5}, {1, 0.25}, {2, 0.15}, {3, 0.1}}, logits, plain(1, 11), 20000);
  // At temperature 1/2 probabilities are squared, at 2 their roots are taken.
  double squares = 0;
  double roots = 0;
  for (const double p : {0.5, 0.25, 0.15, 0.1}) {
    squares += p * p;
    roots += std::sqrt(p);
  }
  expect_distribution(
      {{0, 0.25 / squares}, {1, 0.0625 / squares}, {2, 0.0225 / squares}, {3, 0.01 / squares}},
      logits, plain(0.5F, 12), 20000);
  expect_distribution({{0, std::sqrt(0.5) / roots},
                       {1, std::sqrt(0.25) / roots},
                       {2, std::sqrt(0.15) / roots},
                       {3, std::sqrt(0.1) / roots}},
                      logits, plain(2, 13), 20000);
}

TEST(Sampler, FiltersAgreeWithTheirDefinitions) {
  Random random(20);
  int n_narrow = 0;
  for (int i = 0; i < 60; ++i) {
    const auto logits = random_logits(random, 2 + random.below(60));
    SamplerOptions options = plain(0.3F + static_cast<float>(random.uniform()), random.next_u64());
    if (random.below(2) == 0) options.top_k = static_cast<int32_t>(random.below(70));
    if (random.below(2) == 0) options.top_p = static_cast<float>(random.uniform());
    if (random.below(2) == 0) options.min_p = static_cast<float>(random.uniform() * 0.2);
    SCOPED_TRACE(testing::Message()
                 << "case " << i << ": " << logits.size() << " logits, temperature "
                 << options.temperature << ", top-k " << options.top_k << ", top-p "
                 << options.top_p << ", min-p " << options.min_p << ", seed " << options.seed);
    const auto expected = naive_distribution(logits, options);
    if (expected.size() < logits.size()) ++n_narrow;
    expect_distribution(expected, logits, options, 2000);
  }
  EXPECT_GT(n_narrow, 30);
}

TEST(Sampler, EveryIdThatPassesTheFiltersIsSampled) {
  Random random(21);
  const auto logits = random_logits(random, 12);
  const SamplerOptions options = plain(3, 22);
  Sampler sampler = make(options);
  std::set<int32_t> seen;
  for (int i = 0; i < 20000; ++i) seen.insert(sampler.sample(logits));
  EXPECT_EQ(seen.size(), naive_distribution(logits, options).size());
}

TEST(Sampler, ASeedGivesTheSameTokensAgain) {
  Random random(30);
  std::vector<std::vector<float>> rows;
  for (int i = 0; i < 50; ++i) rows.push_back(random_logits(random, 50));
  const auto tokens = [&](uint64_t seed) {
    Sampler sampler = make(plain(1, seed));
    std::vector<int32_t> ids;
    for (const auto& row : rows) ids.push_back(sampler.sample(row));
    return ids;
  };
  EXPECT_EQ(tokens(1), tokens(1));
  EXPECT_NE(tokens(1), tokens(2));
  EXPECT_EQ(tokens(std::numeric_limits<uint64_t>::max()),
            tokens(std::numeric_limits<uint64_t>::max()));
}

// Steps 1 to 3 of the header, straight from their definitions.
std::vector<float> naive_adjusted(std::vector<float> logits, const std::vector<int32_t>& accepted,
                                  const SamplerOptions& options) {
  for (const auto& [id, bias] : options.logit_bias) {
    if (static_cast<size_t>(id) < logits.size()) logits[id] += bias;
  }
  const size_t n = options.repeat_last_n < 0
                       ? accepted.size()
                       : std::min(accepted.size(), static_cast<size_t>(options.repeat_last_n));
  const std::vector<int32_t> window(accepted.end() - static_cast<std::ptrdiff_t>(n),
                                    accepted.end());
  for (size_t id = 0; id < logits.size(); ++id) {
    const auto count = std::ranges::count(window, static_cast<int32_t>(id));
    if (count == 0) continue;
    float& logit = logits[id];
    logit = logit > 0 ? logit / options.repeat_penalty : logit * options.repeat_penalty;
    logit -= static_cast<float>(count) * options.frequency_penalty;
    logit -= options.presence_penalty;
  }
  return logits;
}

TEST(Sampler, PenaltiesAndBiasesAgreeWithTheirDefinitions) {
  const uint64_t seed = 40;
  Random random(seed);
  int n_changed = 0;
  for (int i = 0; i < 200; ++i) {
    const size_t n_vocab = 2 + random.below(40);
    SamplerOptions options = {.temperature = 0};
    if (random.below(2) == 0)
      options.repeat_penalty = 0.2F + 2 * static_cast<float>(random.uniform());
    if (random.below(2) == 0) options.presence_penalty = static_cast<float>(random.normal());
    if (random.below(2) == 0) options.frequency_penalty = static_cast<float>(random.normal());
    options.repeat_last_n = static_cast<int32_t>(random.below(12)) - 1;
    for (uint64_t n = random.below(4); n > 0; --n) {
      options.logit_bias.push_back({.id = static_cast<int32_t>(random.below(n_vocab + 3)),
                                    .bias = static_cast<float>(4 * random.normal())});
    }
    // At temperature 0 the best one is taken, at another one an equal sampler draws the same from
    // logits that are adjusted already.
    SamplerOptions warm = options;
    warm.temperature = 1;
    warm.seed = random.next_u64();
    SamplerOptions plain_warm = warm;
    plain_warm.logit_bias.clear();
    plain_warm.repeat_last_n = 0;
    Sampler greedy = make(options);
    Sampler sampled = make(warm);
    Sampler reference = make(plain_warm);
    std::vector<int32_t> accepted;
    for (int step = 0; step < 40; ++step) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", case " << i << ", step " << step);
      const auto logits = random_logits(random, n_vocab);
      const auto expected = naive_adjusted(logits, accepted, options);
      ASSERT_EQ(greedy.sample(logits), argmax(expected));
      const int32_t id = sampled.sample(logits);
      ASSERT_EQ(id, reference.sample(expected));
      if (argmax(logits) != argmax(expected)) ++n_changed;
      accepted.push_back(id);
      greedy.accept(id);
      sampled.accept(id);
    }
    greedy.forget_accepted();
    const auto logits = random_logits(random, n_vocab);
    ASSERT_EQ(greedy.sample(logits), argmax(naive_adjusted(logits, {}, options)));
  }
  EXPECT_GT(n_changed, 1000);
}

TEST(Sampler, ABiasOfMinusInfinityBansAToken) {
  SamplerOptions options = plain(100, 6);
  options.logit_bias = {{.id = 1, .bias = -kInfinity}, {.id = 9, .bias = 5}};
  Sampler sampler = make(options);
  std::set<int32_t> seen;
  for (int i = 0; i < 200; ++i) seen.insert(sampler.sample(std::vector<float>{1, 50, 2}));
  EXPECT_EQ(seen, (std::set<int32_t>{0, 2}));
  options.logit_bias = {{.id = 0, .bias = -kInfinity}, {.id = 1, .bias = -kInfinity}};
  EXPECT_EQ(make(options).sample(std::vector<float>{1, 2}), 0);  // nothing is left, but an id
}

TEST(Sampler, PenaltiesOfNothingChangeNothing) {
  Random random(41);
  const auto logits = random_logits(random, 30);
  SamplerOptions options = plain(1, 42);
  Sampler without = make(options);
  options.repeat_penalty = 2;
  options.repeat_last_n = 0;
  Sampler with = make(options);
  for (int i = 0; i < 50; ++i) {
    const int32_t id = without.sample(logits);
    ASSERT_EQ(with.sample(logits), id);
    with.accept(id);
  }
}

TEST(Sampler, RefusesBadOptions) {
  const auto expect_error = [](const SamplerOptions& options, const std::string& message) {
    const auto sampler = Sampler::create(options);
    ASSERT_FALSE(sampler) << message;
    EXPECT_EQ(sampler.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(sampler.error().message, HasSubstr(message));
  };
  expect_error({.temperature = -1}, "temp: found -1, expected 0 to 100");
  expect_error({.temperature = 101}, "temp: found 101");
  expect_error({.temperature = kNan}, "temp: found nan");
  expect_error({.temperature = kInfinity}, "temp: found inf");
  expect_error({.top_k = -2}, "top-k: found -2, expected -1 to 2147483647");
  expect_error({.top_p = 1.5F}, "top-p: found 1.5, expected 0 to 1");
  expect_error({.top_p = kNan}, "top-p: found nan");
  expect_error({.min_p = -0.1F}, "min-p: found -0.1, expected 0 to 1");
  expect_error({.min_p = kNan}, "min-p: found nan");
  for (const float bad : {0.0F, -1.0F, 101.0F, kNan, kInfinity}) {
    expect_error({.repeat_penalty = bad}, "repeat-penalty: found");
  }
  expect_error({.presence_penalty = kNan}, "presence-penalty: found nan, expected -100 to 100");
  expect_error({.frequency_penalty = -101}, "frequency-penalty: found -101");
  expect_error({.repeat_last_n = -2}, "repeat-last-n: found -2, expected -1 to");
  expect_error({.logit_bias = {{.id = -1, .bias = 1}}}, "logit-bias: found token id -1");
  expect_error({.logit_bias = {{.id = 3, .bias = kNan}}}, "logit-bias: found nan for token 3");
  expect_error({.logit_bias = {{.id = 3, .bias = kInfinity}}}, "logit-bias: found inf for token 3");
  EXPECT_TRUE(Sampler::create({.top_k = std::numeric_limits<int32_t>::max()}));
}

}  // namespace
}  // namespace hotset::engine
