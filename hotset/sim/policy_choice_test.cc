// What the choice of the default policy rests on (docs/replay.md): crf-auto keeps up with the best
// of the policies that it judges, and is well above class_lru where routing is real.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "hotset/sim/matrix.h"

namespace hotset::sim {
namespace {

const std::vector<std::string> kCandidates = {"class_lru", "crf:2",   "crf:8",
                                              "crf:32",    "crf:128", "crf-blend"};
constexpr double kMaxPointsBelowBest = 0.5;
constexpr double kMinPointsAboveClassLru = 2;  // real routing, a cache of 10%

// Hit rates in percent by policy, for each cache size in percent.
using HitRates = std::map<double, std::map<std::string, double>>;

HitRates hit_rates(const std::string& trace) {
  MatrixOptions options{.traces = {trace}, .policies = kCandidates, .sizes = {}, .shares = {0.0}};
  options.policies.push_back("crf-auto");
  for (const double percent : {5, 10, 20, 30, 40}) {
    options.sizes.push_back({CacheSize::Unit::kPercent, percent});
  }
  HitRates rates;
  const auto rows = replay_matrix(options);
  EXPECT_TRUE(rows) << rows.error().message;
  if (!rows) return rates;
  for (const MatrixRow& row : *rows) {
    rates[row.cache_percent][row.policy] = 100 * row.result.hit_rate();
    EXPECT_LE(row.result.hit_rate(), row.belady_demand_hit_rate) << row.policy;
  }
  return rates;
}

class PolicyChoice : public ::testing::TestWithParam<const char*> {};

TEST_P(PolicyChoice, CrfAutoIsTheOneToTake) {
  const char* shared = std::getenv("HOTSET_SHARED_DIR");
  const std::string trace =
      std::string(shared == nullptr ? "" : shared) + "/traces/" + GetParam() + ".mct";
  if (!std::filesystem::exists(trace)) GTEST_SKIP() << "HOTSET_SHARED_DIR has no " << trace;
  const HitRates rates = hit_rates(trace);
  EXPECT_EQ(rates.size(), 5U);
  const bool is_real = std::string(GetParam()).starts_with("demo-");
  for (const auto& [percent, by_policy] : rates) {
    double best = 0;
    for (const std::string& policy : kCandidates) best = std::max(best, by_policy.at(policy));
    EXPECT_GE(by_policy.at("crf-auto"), best - kMaxPointsBelowBest) << "at " << percent << "%";
    if (is_real && percent == 10) {
      EXPECT_GE(by_policy.at("crf-auto"), by_policy.at("class_lru") + kMinPointsAboveClassLru);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Traces, PolicyChoice,
                         ::testing::Values("demo-ccode", "demo-code", "demo-man", "demo-mixed",
                                           "demo-prose", "gpt-oss-120b", "olmoe", "qwen3-30b-a3b",
                                           "qwen3.8-flash-next"),
                         [](const auto& trace) {
                           std::string name = trace.param;
                           std::ranges::replace_if(
                               name, [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace hotset::sim
