#include "hotset/sim/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "hotset/sim/sim_testing.h"

namespace hotset::sim {
namespace {

using ::testing::HasSubstr;

std::string synth_file(const trace::TestFolder& folder, const std::string& name, uint64_t seed,
                       uint32_t n_expert = 16) {
  const auto bytes = trace::synthesize_bytes({.n_layer = 3,
                                              .n_expert = n_expert,
                                              .experts_per_token = 2,
                                              .n_tokens = 900,
                                              .topic_tokens = 100,
                                              .tensor_expert_bytes = {{4096}, {4096}},
                                              .seed = seed})
                         .value();
  std::ofstream out(folder.file(name), std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  return folder.file(name);
}

MatrixOptions options_for(std::vector<std::string> traces) {
  return {.traces = std::move(traces),
          .policies = {"class_lru", "lru", "static", "unbounded", "belady"},
          .sizes = {{CacheSize::Unit::kPercent, 20}, {CacheSize::Unit::kMib, 0.2}},
          .shares = {0.0, 0.5, std::nullopt}};
}

void expect_equal(const std::vector<MatrixRow>& a, const std::vector<MatrixRow>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    SCOPED_TRACE(fmt::format("row {}", i));
    EXPECT_EQ(a[i].trace, b[i].trace);
    EXPECT_EQ(a[i].policy, b[i].policy);
    EXPECT_EQ(a[i].result.slots, b[i].result.slots);
    EXPECT_EQ(a[i].result.counts.hits, b[i].result.counts.hits);
    EXPECT_EQ(a[i].result.uploads(), b[i].result.uploads());
    EXPECT_EQ(a[i].result.modelled_us, b[i].result.modelled_us);
    EXPECT_EQ(a[i].belady_hit_rate, b[i].belady_hit_rate);
  }
}

TEST(ReplayMatrix, ThreadsDoNotChangeTheAnswer) {
  trace::TestFolder folder;
  MatrixOptions options =
      options_for({synth_file(folder, "a.mct", 1), synth_file(folder, "b.mct", 2)});
  options.n_workers = 1;
  const auto one = replay_matrix(options);
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(one->size(), 2U * 2 * 3 * 5);
  options.n_workers = 4;
  double done = 0;
  options.progress = [&](double part) {
    EXPECT_GE(part, done);
    done = part;
  };
  const auto four = replay_matrix(options);
  ASSERT_TRUE(four) << four.error().message;
  expect_equal(*one, *four);
  EXPECT_DOUBLE_EQ(done, 1);
}

TEST(ReplayMatrix, RowsComeInTheOrderOfTheOptionsWithTheirBounds) {
  trace::TestFolder folder;
  const auto rows = replay_matrix(options_for({synth_file(folder, "a.mct", 1)})).value();
  EXPECT_EQ(rows[0].policy, "class_lru");
  EXPECT_EQ(rows[1].policy, "lru");
  EXPECT_TRUE(!rows[14].share);
  EXPECT_DOUBLE_EQ(rows[0].cache_percent, 20);
  EXPECT_DOUBLE_EQ(rows[29].cache_mib, 0.2);
  EXPECT_EQ(rows[29].result.slots.at(0), 24);  // of 8 KiB, one is the pad slot
  // Share 0 of belady is its own bound.
  EXPECT_EQ(rows[4].policy, "belady");
  EXPECT_EQ(rows[4].result.hit_rate(), rows[4].belady_hit_rate);
  for (const MatrixRow& row : rows) {
    EXPECT_GE(row.belady_hit_rate, row.belady_demand_hit_rate);
    if (row.policy == "unbounded") {
      EXPECT_EQ(row.result.slots.at(0), 48);
    } else if (row.share == 0.0) {
      EXPECT_LE(row.result.hit_rate(), row.belady_hit_rate) << row.policy;
    }
  }
}

TEST(ReplayMatrix, AStaticHotSetCanComeFromAnotherTrace) {
  trace::TestFolder folder;
  MatrixOptions options = options_for({synth_file(folder, "a.mct", 1)});
  options.policies = {"static"};
  const auto hindsight = replay_matrix(options).value();
  options.profile_trace = synth_file(folder, "b.mct", 2);
  const auto foresight = replay_matrix(options).value();
  EXPECT_GT(hindsight[0].result.counts.hits, foresight[0].result.counts.hits);
  options.profile_trace = synth_file(folder, "c.mct", 2, 24);
  const auto other = replay_matrix(options);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().message, HasSubstr("c.mct"));
}

TEST(ReplayMatrix, TheFirstFailureStopsItAndNamesTheTrace) {
  trace::TestFolder folder;
  const std::string good = synth_file(folder, "good.mct", 1);
  const std::string bad = synth_file(folder, "bad.mct", 2);
  std::filesystem::resize_file(bad, std::filesystem::file_size(bad) - 1);
  MatrixOptions options = options_for({good, bad});
  options.policies = {"class_lru", "lru"};
  options.n_workers = 4;
  const auto rows = replay_matrix(options);
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(rows.error().message, HasSubstr("bad.mct: byte "));
}

TEST(ReplayMatrix, CanBeCancelledFromAnotherThread) {
  trace::TestFolder folder;
  MatrixOptions options = options_for({synth_file(folder, "a.mct", 1)});
  options.n_workers = 4;
  std::atomic<bool> cancelled = false;
  options.cancelled = &cancelled;
  options.progress = [&](double) { cancelled = true; };
  const auto rows = replay_matrix(options);
  ASSERT_FALSE(rows);
  EXPECT_EQ(rows.error().code, ErrorCode::kCancelled);
}

TEST(ReplayMatrix, SaysWhatIsWrong) {
  trace::TestFolder folder;
  const MatrixOptions good = options_for({synth_file(folder, "a.mct", 1)});
  const auto message = [&](const auto& change) {
    MatrixOptions options = good;
    change(options);
    const auto rows = replay_matrix(options);
    return rows ? std::string("no error") : rows.error().message;
  };
  EXPECT_THAT(message([](auto& o) { o.traces.clear(); }), HasSubstr("no trace"));
  EXPECT_THAT(message([](auto& o) { o.policies.clear(); }), HasSubstr("no policy"));
  EXPECT_THAT(message([](auto& o) { o.policies = {"fifo"}; }), HasSubstr("fifo"));
  EXPECT_THAT(message([](auto& o) { o.sizes.clear(); }), HasSubstr("no cache size"));
  EXPECT_THAT(message([](auto& o) { o.sizes[0].value = 0; }), HasSubstr("cache size is 0 %"));
  EXPECT_THAT(message([](auto& o) { o.sizes[1].value = 1e12; }), HasSubstr("MiB"));
  EXPECT_THAT(message([](auto& o) { o.shares.clear(); }), HasSubstr("no CPU share"));
  EXPECT_THAT(message([](auto& o) { o.shares[1] = 2; }), HasSubstr("CPU share is 2"));
  EXPECT_THAT(message([](auto& o) { o.traces = {"/no/such.mct"}; }), HasSubstr("/no/such.mct"));
  EXPECT_THAT(message([](auto& o) { o.counted.skip_tokens = 900; }), HasSubstr("nothing is left"));
  EXPECT_THAT(message([](auto& o) { o.rules.rates = lanes::LaneRates{}; }), HasSubstr("link"));
}

}  // namespace
}  // namespace hotset::sim
