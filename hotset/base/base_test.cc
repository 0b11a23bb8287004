#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hotset/base/clock.h"
#include "hotset/base/error.h"
#include "hotset/base/expert_key.h"
#include "hotset/base/json.h"
#include "hotset/base/log.h"
#include "hotset/base/memory_limits.h"
#include "hotset/base/random.h"
#include "hotset/base/temporary_folder.h"
#include "hotset/base/thread_pool.h"
#include "hotset/base/units.h"

namespace hotset {
namespace {

Result<int> half(int n) {
  if (n % 2 != 0) return make_error(ErrorCode::kInvalidArgument, "n: found {}, expected even", n);
  return n / 2;
}

Result<int> quarter(int n) {
  HOTSET_TRY(const int h, half(n));
  return half(h);
}

TEST(Error, TryReturnsTheValueOrTheError) {
  EXPECT_EQ(*quarter(8), 2);
  const auto failed = quarter(6);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failed.error().message, "n: found 3, expected even");
  EXPECT_EQ(add_context(failed.error(), "quarter").error().message,
            "quarter: n: found 3, expected even");
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(Json, IsReadUpToADepth) {
  EXPECT_EQ((*parse_json(R"({"b": [1, 2.5], "a": "\u00e9"})")).dump(), R"({"b":[1,2.5],"a":"é"})");
  EXPECT_TRUE(parse_json(nested(kMaxJsonDepth)));
  EXPECT_TRUE(parse_json(nested(3), 3));
  // Far beyond what the stack would hold, closed or not, in objects as well.
  std::string objects;
  for (int i = 0; i < 1000000; ++i) objects += R"({"a":)";
  for (const std::string& text :
       {nested(kMaxJsonDepth + 1), nested(1000000), std::string(1000000, '['), objects}) {
    const auto read = parse_json(text);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code, ErrorCode::kUnsupported);
    EXPECT_EQ(read.error().message, "nested more than 64 levels deep");
  }
  EXPECT_EQ(parse_json(nested(4), 3).error().message, "nested more than 3 levels deep");
}

TEST(Json, BracketsInTextsAreNoLevels) {
  const std::string text = R"(["\"[{[{\\", ")" + std::string(1000, '[') + R"("])";
  ASSERT_TRUE(parse_json(text, 1));
  EXPECT_EQ((*parse_json(text, 1))[0], "\"[{[{\\");
  // A text that ends too early is none of the kind, whatever the brackets say.
  for (const char* broken : {"", "[", "{\"a\": \"[[[[", "]]]][[[[[", "[1e999]", "\xff", "[\"\\"}) {
    const auto read = parse_json(broken, 1);
    ASSERT_FALSE(read) << broken;
    EXPECT_THAT(read.error().message, testing::StartsWith("no JSON: ")) << broken;
  }
  const auto longest = parse_json("[" + std::string(100000, 'x'));
  EXPECT_LT(longest.error().message.size(), 100U);
}

TEST(Units, BytesReadWell) {
  EXPECT_EQ(to_string(Bytes{512}), "512 B");
  EXPECT_EQ(to_string(Bytes{1536}), "1.5 KiB");
  EXPECT_EQ(to_string(mib(700)), "700.0 MiB");
  EXPECT_EQ(to_string(gib(2) + mib(512)), "2.50 GiB");
  EXPECT_EQ(align_up(Bytes{1}, 256), Bytes{256});
  EXPECT_EQ(align_up(Bytes{256}, 256), Bytes{256});
  EXPECT_EQ(align_up(Bytes{0}, 256), Bytes{0});
}

TEST(ExpertKey, OrdersByLayerFirst) {
  EXPECT_LT((ExpertKey{0, 9}), (ExpertKey{1, 0}));
  EXPECT_LT((ExpertKey{1, 0}), (ExpertKey{1, 1}));
}

TEST(Random, IsTheSameEverywhere) {
  Random random(42);
  // First value of SplitMix64 seeded with 42, worked out by hand from the published algorithm.
  EXPECT_EQ(random.next_u64(), 13679457532755275413ULL);
  double sum = 0;
  double squares = 0;
  constexpr int kDraws = 100000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    sum += x;
    squares += x * x;
    ASSERT_LT(random.below(7), 7U);
    const double u = random.uniform();
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.02);
}

TEST(Clock, NeverGoesBack) {
  const double before_us = steady_clock().now_us();
  EXPECT_GE(steady_clock().now_us(), before_us);
}

TEST(Log, DropsWhatIsBelowTheLevel) {
  std::vector<std::string> seen;
  set_log_sink([&](LogLevel, std::string_view message) { seen.emplace_back(message); });
  log_debug("dropped {}", 1);
  log_warning("kept {}", 2);
  set_log_sink({});
  EXPECT_THAT(seen, testing::ElementsAre("kept 2"));
}

TEST(Log, TextFromFilesDoesNotCommandTheTerminal) {
  std::vector<std::string> seen;
  set_log_sink([&](LogLevel, std::string_view message) { seen.emplace_back(message); });
  log_error("found '{}'", "\x1B]0;title\x07");
  log_error("found '{}'", "a\nhotset: info: all is well\xC2\x9B");
  set_log_sink({});
  EXPECT_THAT(seen, testing::ElementsAre("found '\\x1b]0;title\\x07'",
                                         "found 'a\\x0ahotset: info: all is well\\u009b'"));
}

TEST(Log, NoMessageFillsTheTerminal) {
  std::string seen;
  set_log_sink([&](LogLevel, std::string_view message) { seen = message; });
  log_error("found '{}'", std::string(1 << 20, 'n'));
  set_log_sink({});
  EXPECT_LT(seen.size(), 10000U);
  EXPECT_THAT(seen, testing::EndsWith("(1048584 bytes)"));
}

TEST(Log, TablesKeepTheirLines) {
  std::vector<std::string> seen;
  set_log_sink([&](LogLevel, std::string_view message) { seen.emplace_back(message); });
  log_table("what\n  a  1\n");
  set_log_level(LogLevel::kWarning);
  log_table("dropped");
  set_log_level(LogLevel::kInfo);
  set_log_sink({});
  EXPECT_THAT(seen, testing::ElementsAre("what\n  a  1\n"));
}

class MemoryLimits : public testing::Test {
 protected:
  void write(const std::filesystem::path& path, const std::string& text) {
    const std::filesystem::path whole = folder_ / path;
    std::filesystem::create_directories(whole.parent_path());
    std::ofstream(whole) << text;
  }
  Bytes left() const { return memory_left_by_groups(folder_.path().string()); }

  const test::TemporaryFolder folder_;
};

TEST_F(MemoryLimits, TheTightestGroupCounts) {
  EXPECT_EQ(left(), kNoMemoryLimit);  // no file
  write("proc/self/cgroup", "0::/a/b\n");
  write("proc/self/mountinfo", "30 23 0:26 / /groups rw - cgroup2 cgroup2 rw\n");
  EXPECT_EQ(left(), kNoMemoryLimit);
  write("groups/a/b/memory.max", "max\n");
  write("groups/a/b/memory.current", "1000\n");
  EXPECT_EQ(left(), kNoMemoryLimit);
  write("groups/a/memory.max", "5000\n");
  write("groups/a/memory.current", "3000\n");
  EXPECT_EQ(left(), Bytes{2000});  // a parent's
  // Pages of files can be had back.
  write("groups/a/memory.stat", "anon 7\ninactive_file 400\nactive_file 100\nfile 900\n");
  EXPECT_EQ(left(), Bytes{2500});
  write("groups/memory.max", "2000");
  write("groups/memory.current", "1900");
  EXPECT_EQ(left(), Bytes{100});
  write("groups/a/b/memory.max", "500");
  EXPECT_EQ(left(), Bytes{0});  // it has more than it may
}

TEST_F(MemoryLimits, OldGroupsWhosePathOnlyTheHostKnows) {
  write("proc/self/cgroup", "12:cpu,cpuacct:/docker/x\n7:memory:/docker/x\nnonsense\n0::/\n");
  write("proc/self/mountinfo",
        "33 24 0:30 /docker/x /groups/memory ro - cgroup cgroup rw,memory\n");
  write("groups/memory/memory.limit_in_bytes", "9223372036854771712");
  write("groups/memory/memory.usage_in_bytes", "10");
  EXPECT_EQ(left(), kNoMemoryLimit);
  write("groups/memory/memory.limit_in_bytes", "4096");
  write("groups/memory/memory.stat", "total_inactive_file 4\ninactive_file 1\n");
  EXPECT_EQ(left(), Bytes{4090});
}

TEST(ParallelFor, CallsEachIndexOnce) {
  for (const size_t n_threads : {0U, 1U, 3U, 16U}) {
    std::vector<std::atomic<int>> calls(100);
    parallel_for(calls.size(), n_threads, [&](size_t i) { ++calls[i]; });
    for (const auto& count : calls) EXPECT_EQ(count, 1);
  }
  parallel_for(0, 4, [](size_t) { FAIL(); });
}

}  // namespace
}  // namespace hotset
