#include "hotset/cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "hotset/base/log.h"
#include "hotset/cli/command_line.h"
#include "hotset/cli/replay_command.h"
#include "hotset/cli/replay_flags.h"
#include "hotset/cli/serve_command.h"
#include "hotset/cli/serve_flags.h"

namespace hotset::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Options {
  int32_t n_threads = 4;
  float top_p = 0.95F;
  std::optional<double> share = {};
  bool json = false;
  std::vector<int32_t> sizes = {1, 2};
  std::vector<std::string> keys = {};
  std::string file = {};
  std::optional<std::string> text = {};
  std::vector<std::string> traces = {};
  int format = 0;
};

struct Outcome {
  int status = 0;
  bool ran = false;
  std::string out;
  std::string messages;
  Options options;
};

Outcome run(std::vector<std::string> arguments) {
  Outcome outcome;
  Options& o = outcome.options;
  CommandLine line("hotset", "1.2.3");
  Command command = line.program().add_command("do", "Does it");
  command.add(
      {.name = "threads", .letters = "t", .help = "CPU threads", .range = SettingRange{0, 512}},
      o.n_threads);
  command.add({.name = "top-p", .range = SettingRange{0, 1}}, o.top_p);
  command.add({.name = "share", .range = SettingRange{0, 1}, .auto_words = {"auto"}}, o.share);
  command.add({.name = "json"}, o.json);
  command.add({.name = "sizes", .value_name = "LIST", .range = SettingRange{0, 9}}, o.sizes);
  command.add_repeated({.name = "key", .value_name = "KEY"}, o.keys);
  Flag file = command.add({.name = "file", .letters = "f", .value_name = "FILE"}, o.file);
  command.add({.name = "text"}, o.text).excludes(file);
  command.add_argument("TRACE", "Traces", o.traces);
  command.add_choices<int>(o.format, {{"csv", 1, "CSV"}, {"markdown", 2, "Markdown"}});
  command.require([&o] { return std::string(o.file == "none" ? "a file" : ""); });
  command.on_run([&outcome] {
    outcome.ran = true;
    return 7;
  });
  set_log_sink([&](LogLevel, std::string_view message) { outcome.messages += message; });
  testing::internal::CaptureStdout();
  outcome.status = line.run(std::move(arguments));
  outcome.out = testing::internal::GetCapturedStdout();
  set_log_sink({});
  return outcome;
}

TEST(Flags, SetWhatTheySay) {
  const Outcome outcome =
      run({"do", "-t", "2", "--top-p=0.5", "--share", "0.25", "--json", "--sizes", "3,4", "a.mct",
           "--key", "a", "--key=b", "b.mct", "-f", "x", "--markdown"});
  EXPECT_EQ(outcome.status, 7) << outcome.messages;
  const Options& o = outcome.options;
  EXPECT_EQ(o.n_threads, 2);
  EXPECT_EQ(o.top_p, 0.5F);
  EXPECT_EQ(o.share, 0.25);
  EXPECT_TRUE(o.json);
  EXPECT_THAT(o.sizes, ElementsAre(3, 4));
  EXPECT_THAT(o.keys, ElementsAre("a", "b"));
  EXPECT_THAT(o.traces, ElementsAre("a.mct", "b.mct"));
  EXPECT_EQ(o.file, "x");
  EXPECT_EQ(o.text, std::nullopt);
  EXPECT_EQ(o.format, 2);
  EXPECT_EQ(run({"do", "--share", "auto"}).options.share, std::nullopt);
  EXPECT_THAT(run({"do", "--sizes", "3", "--sizes", "4,5"}).options.sizes, ElementsAre(3, 4, 5));
}

TEST(Flags, DefaultsStay) {
  const Outcome outcome = run({"do"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_EQ(outcome.options.n_threads, 4);
  EXPECT_EQ(outcome.options.top_p, 0.95F);
  EXPECT_FALSE(outcome.options.json);
  EXPECT_THAT(outcome.options.sizes, ElementsAre(1, 2));
}

TEST(Flags, WrongValuesAreWrongUsage) {
  const auto why = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "do");
    const Outcome outcome = run(std::move(arguments));
    EXPECT_EQ(outcome.status, 2);
    EXPECT_FALSE(outcome.ran);
    return outcome.messages;
  };
  EXPECT_THAT(why({"-t", "513"}), HasSubstr("--threads: found 513, expected 0 to 512 (see hotset"));
  EXPECT_THAT(why({"--top-p=nan"}), HasSubstr("--top-p: found nan, expected 0 to 1"));
  EXPECT_THAT(why({"--top-p="}), HasSubstr("--top-p"));
  EXPECT_THAT(why({"--share", "2"}),
              HasSubstr("--share: found 2, expected auto, or a number from 0 to 1"));
  EXPECT_THAT(why({"--sizes", "1,10"}), HasSubstr("--sizes: found 10, expected 0 to 9"));
  EXPECT_THAT(why({"--sizes", "1", "--sizes", "x"}),
              HasSubstr("--sizes: found x, expected 0 to 9"));
  EXPECT_THAT(why({"-f", "x", "--text", "y"}), HasSubstr("excludes"));
  EXPECT_THAT(why({"--csv", "--markdown"}), HasSubstr("excludes"));
  EXPECT_THAT(why({"-f", "none"}), HasSubstr("a file is required"));
  EXPECT_THAT(why({"--nope"}), HasSubstr("found '--nope', which nothing takes"));
}

TEST(Flags, HelpShowsRangesAndDefaults) {
  const std::string help = run({"do", "--help"}).out;
  EXPECT_THAT(help, AllOf(HasSubstr("-t,--threads INT:0 to 512 [4]"),
                          HasSubstr("--top-p FLOAT:0 to 1 [0.95]"),
                          HasSubstr("--share FLOAT [auto]"), HasSubstr("--sizes LIST:0 to 9 [1,2]"),
                          HasSubstr("--key KEY"), HasSubstr("HOTSET_THREADS")));
  EXPECT_EQ(run({"--version"}).out, "hotset 1.2.3\n");
}

// Sets a variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(Flags, VariablesAreReadAsFlagsAre) {
  {
    const Variable threads("HOTSET_THREADS", "9");
    const Variable sizes("HOTSET_SIZES", "7,8");
    const Variable share("HOTSET_SHARE", "AUTO");
    const Variable text("HOTSET_TEXT", "not read: it excludes another");
    const Outcome outcome = run({"do"});
    EXPECT_EQ(outcome.options.n_threads, 9) << outcome.messages;
    EXPECT_THAT(outcome.options.sizes, ElementsAre(7, 8));
    EXPECT_EQ(outcome.options.text, std::nullopt);
    EXPECT_EQ(run({"do", "-t", "3"}).options.n_threads, 3);
  }
  for (const auto& [value, is_on] : std::vector<std::pair<const char*, bool>>{{"1", true},
                                                                              {"true", true},
                                                                              {"on", true},
                                                                              {"0", false},
                                                                              {"false", false},
                                                                              {"", false}}) {
    const Variable json("HOTSET_JSON", value);
    const Outcome outcome = run({"do"});
    EXPECT_EQ(outcome.status, 7) << value << outcome.messages;
    EXPECT_EQ(outcome.options.json, is_on) << value;
  }
  const Variable threads("HOTSET_THREADS", "many");
  const Outcome outcome = run({"do"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.messages, HasSubstr("HOTSET_THREADS: found many, expected 0 to 512"));
}

TEST(Flags, CommandsSayWhatTheyTake) {
  CommandLine line("hotset", "1");
  add_serve_command(line.program(), "1");
  const std::vector<CommandFlags> commands = line.commands();
  ASSERT_EQ(commands.size(), 1U);
  ASSERT_NE(commands[0].find("--threads"), nullptr);
  EXPECT_EQ(commands[0].find("--threads")->n_values, 1);
  EXPECT_EQ(commands[0].find("--stats")->n_values, 0);
  EXPECT_THAT(commands[0].find("-t")->names, ElementsAre("-t", "--threads"));
}

template <typename T>
void expect_defaults_are_read_again(const Settings<T>& table) {
  std::set<std::string> names;
  for (const auto& one : table) {
    SCOPED_TRACE(one.info.name);
    EXPECT_TRUE(names.insert(one.info.name).second);
    EXPECT_FALSE(one.info.help.empty());
    const std::string text = one.text(T{});
    if (text.empty() && one.is_list()) continue;
    EXPECT_TRUE(one.check(text)) << text;
  }
  EXPECT_TRUE(check_settings(table, T{}));
}

TEST(Flags, DefaultsOfTablesAreReadAgain) {
  expect_defaults_are_read_again(serve_settings());
  expect_defaults_are_read_again(replay_settings());
  ReplayCommandOptions replay;
  for (const auto& one : replay_settings()) {
    const std::string text = one.text({});
    if (text.empty()) continue;
    ASSERT_TRUE(one.set(replay, text)) << one.info.name;
    EXPECT_EQ(one.text(replay), text);
  }
  EXPECT_THAT(replay.cache_mib, IsEmpty());
}

}  // namespace
}  // namespace hotset::cli
