// After a change of topic the default policy, which remembers long, must pay little for what it
// remembers, compared with lru, which forgets the old topic soonest.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "hotset/base/temporary_folder.h"
#include "hotset/policy/registry.h"
#include "hotset/sim/matrix.h"
#include "hotset/trace/edit.h"

namespace hotset::sim {
namespace {

constexpr int64_t kTopicTokens = 800;
constexpr int64_t kWindow = 32;  // tokens of which a hit rate is taken
constexpr int64_t kStep = 8;     // tokens from one window to the next
constexpr int64_t kTail = 256;   // tokens after the change that are looked at
// Points that lru may be ahead: over the first two windows, and in each later one. A policy that
// does not notice the change is 15 and more behind at first.
constexpr double kFirstPoints = 4.5;
constexpr double kPoints = 4;

class Replayed {
 public:
  Replayed(std::string trace, MatrixOptions options)
      : trace_(std::move(trace)), options_(std::move(options)) {
    options_.traces = {trace_};
    // As the matrix sizes them.
    const auto rows = replay_matrix(options_);
    EXPECT_TRUE(rows) << rows.error().message;
    if (rows) slots_ = rows->front().result.slots;
  }

  // Hit rate in percent of tokens [begin, end).
  double hit_rate(int64_t begin, int64_t end) const {
    const Counts from = counts_from(begin);
    const Counts behind = end < 2 * kTopicTokens ? counts_from(end) : Counts{};
    return 100 * (from.hits - behind.hits) / (from.selected - behind.selected);
  }

 private:
  struct Counts {
    double hits = 0;
    double selected = 0;
  };

  Counts counts_from(int64_t token) const {
    ReplayOptions options{
        .rules = {.policy = options_.policies[0], .cpu_share = options_.shares[0]},
        .slots = slots_,
        .counted = {.skip_tokens = token}};
    const auto result = replay([this] { return trace::TraceReader::open(trace_); }, options);
    EXPECT_TRUE(result) << result.error().message;
    if (!result) return {};
    return {.hits = static_cast<double>(result->counts.hits),
            .selected = static_cast<double>(result->counts.selected)};
  }

  std::string trace_;
  MatrixOptions options_;
  std::vector<int64_t> slots_;  // of each group
};

class TopicSwitch : public ::testing::TestWithParam<double> {};

TEST_P(TopicSwitch, CostsLittleMoreThanWithLru) {
  const char* shared = std::getenv("HOTSET_SHARED_DIR");
  const std::filesystem::path folder =
      std::filesystem::path(shared == nullptr ? "" : shared) / "traces";
  if (!std::filesystem::exists(folder / "demo-prose.mct")) {
    GTEST_SKIP() << "HOTSET_SHARED_DIR has no traces";
  }
  const test::TemporaryFolder made;
  const auto part = [&](const std::string& topic, int64_t first_token) {
    const std::string path = made / fmt::format("{}-{}.mct", topic, first_token);
    const auto cut = trace::cut_trace(folder / ("demo-" + topic + ".mct"), path,
                                      {.first_token = first_token, .n_tokens = kTopicTokens});
    EXPECT_TRUE(cut) << cut.error().message;
    return path;
  };
  for (const auto& [first, second] :
       {std::pair{"prose", "ccode"}, {"ccode", "man"}, {"man", "prose"}, {"prose", "code"}}) {
    const std::string both = made / "both.mct";
    ASSERT_TRUE(trace::merge_traces({part(first, 0), part(second, 0)}, both, {}));
    const auto replayed = [&](const std::string& policy) {
      return Replayed(
          both,
          {.traces = {}, .policies = {policy}, .sizes = {{.value = GetParam()}}, .shares = {0.0}});
    };
    const Replayed lru = replayed("lru");
    const Replayed own = replayed(std::string(policy::kDefaultPolicy));
    const int64_t change = kTopicTokens;
    EXPECT_GE(own.hit_rate(change, change + 2 * kWindow),
              lru.hit_rate(change, change + 2 * kWindow) - kFirstPoints)
        << first << " to " << second;
    for (int64_t n = change + kWindow; n < change + kTail; n += kStep) {
      EXPECT_GE(own.hit_rate(n, n + kWindow), lru.hit_rate(n, n + kWindow) - kPoints)
          << first << " to " << second << ", " << n - change << " tokens after it";
    }
    // Before the change it was ahead: there is something that it could cling to.
    EXPECT_GT(own.hit_rate(change - 200, change), lru.hit_rate(change - 200, change));
  }
}

INSTANTIATE_TEST_SUITE_P(Percent, TopicSwitch, ::testing::Values(15, 30, 60));

}  // namespace
}  // namespace hotset::sim
