#include "hotset/cli/replay_flags.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "hotset/base/log.h"
#include "hotset/cli/command_line.h"
#include "hotset/trace/trace_testing.h"

namespace hotset::cli {
namespace {

struct Outcome {
  int status = 0;
  std::string out;
  std::string messages;
};

// What `hotset ARGUMENTS` does.
Outcome run(std::vector<std::string> arguments) {
  CommandLine line("hotset", "0");
  add_replay_commands(line.program());
  Outcome outcome;
  set_log_sink([&](LogLevel, std::string_view message) { outcome.messages += message; });
  ::testing::internal::CaptureStdout();
  outcome.status = line.run(std::move(arguments));
  outcome.out = ::testing::internal::GetCapturedStdout();
  set_log_sink({});
  return outcome;
}

std::string small_trace(const trace::TestFolder& folder) {
  const std::string path = folder.file("small.mct");
  const Outcome made = run({"trace", "synth", "-o", path, "--layers", "2", "--experts", "8",
                            "--experts-used", "2", "--tokens", "150", "--expert-bytes", "100,200"});
  EXPECT_EQ(made.status, 0) << made.messages;
  return path;
}

TEST(ReplayFlags, ListsDoNotSwallowTheTrace) {
  trace::TestFolder folder;
  const std::string trace = small_trace(folder);
  for (const std::vector<std::string>& flag : std::vector<std::vector<std::string>>{
           {"--policy", "class_lru,lru"}, {"--policy=class_lru,lru"}}) {
    std::vector<std::string> arguments = {"replay", "--csv", "--cache-pct", "30,60"};
    arguments.insert(arguments.end(), flag.begin(), flag.end());
    arguments.insert(arguments.end(), {"--share", "0,auto", trace});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.messages;
    EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 1 + 2 * 2 * 2);
  }
}

TEST(ReplayFlags, OneFormatAtATime) {
  trace::TestFolder folder;
  const std::string trace = small_trace(folder);
  EXPECT_EQ(run({"replay", trace, "--policy", "lru", "--json"}).out.front(), '[');
  EXPECT_EQ(run({"replay", trace, "--policy", "lru", "--markdown"}).out.front(), '|');
  EXPECT_EQ(run({"replay", trace, "--json", "--csv"}).status, 2);
}

TEST(ReplayFlags, WrongUsageIsTwoAndFailureIsOne) {
  trace::TestFolder folder;
  const std::string trace = small_trace(folder);
  EXPECT_EQ(run({"replay"}).status, 2);
  EXPECT_EQ(run({"replay", trace, "--no-such-flag"}).status, 2);
  EXPECT_EQ(run({"replay", trace, "--cache-mib", "much"}).status, 2);
  EXPECT_EQ(run({"replay", trace, "--skip-tokens", "1.5"}).status, 2);
  // What is out of range, too, as for every other command.
  EXPECT_EQ(run({"replay", trace, "--share", "2"}).status, 2);
  for (const char* share : {"", "half", "0.5x", "1.5", "-0.1", "nan", "0,,1"}) {
    EXPECT_EQ(run({"replay", trace, "--share", share}).status, 2) << share;
  }
  EXPECT_EQ(run({"replay", trace, "--moe-cache-batch", "0"}).status, 2);
  EXPECT_EQ(run({"replay", trace, "--moe-cache-fills", "maybe"}).status, 2);
  EXPECT_EQ(run({"trace"}).status, 2);
  EXPECT_EQ(run({"trace", "cut", trace}).status, 2);
  const std::vector<std::vector<std::string>> failures = {
      {"replay", folder.file("none.mct")},
      {"replay", trace, "--policy", "none"},
      {"replay", trace, "--cache-mib", "nan"},
      {"replay", trace, "--skip-tokens", "-1"},
      {"replay", trace, "--skip-tokens", "150"},
      {"replay", trace, "--share", "auto", "--link-gbps", "0"},
      {"trace", "info", folder.file("none.mct")},
      {"trace", "cut", trace, "-o", folder.file("out.mct"), "--from-token", "150"},
      {"trace", "merge", trace, "-o", folder.file("no/such.mct")},
      {"trace", "synth", "-o", folder.file("out.mct"), "--experts", "1", "--experts-used", "2"}};
  for (const std::vector<std::string>& arguments : failures) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 1) << ::testing::PrintToString(arguments);
    EXPECT_FALSE(outcome.messages.empty());
    EXPECT_TRUE(outcome.out.empty());
  }
  EXPECT_EQ(folder.n_files(), 1U);
}

TEST(ReplayFlags, ReadTheEnvironment) {
  trace::TestFolder folder;
  const std::string trace = small_trace(folder);
  ASSERT_EQ(setenv("HOTSET_POLICY", "lru,unbounded", 1), 0);
  ASSERT_EQ(setenv("HOTSET_CACHE_PCT", "40", 1), 0);
  const Outcome outcome = run({"replay", trace, "--csv"});
  const Outcome overridden = run({"replay", trace, "--csv", "--policy", "lru"});
  unsetenv("HOTSET_POLICY");
  unsetenv("HOTSET_CACHE_PCT");
  EXPECT_EQ(std::ranges::count(outcome.out, '\n'), 3) << outcome.messages;
  EXPECT_EQ(std::ranges::count(overridden.out, '\n'), 2);
}

}  // namespace
}  // namespace hotset::cli
