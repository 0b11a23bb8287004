#include "hotset/cli/command_reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "hotset/cli/completions.h"
#include "hotset/cli/reference_command.h"

namespace hotset::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// That a value is one of a few words, said as the commands say it.
CLI::Validator one_of_two() {
  return {[](std::string& text) {
            if (text == "a" || text == "b") return std::string();
            return "found '" + text + "', expected one of: a, b";
          },
          ""};
}

struct Declared {
  Declared() {
    CLI::App* run = app.add_subcommand("run", "Run's it");
    run->add_option("-w,--word", word, "A `word`; or none")
        ->check(one_of_two())
        ->capture_default_str()
        ->envname("HOTSET_WORD");
    CLI::Option* port = run->add_option("--port", port_value, "Port");
    port->check(CLI::Range(0, 65535))->capture_default_str();
    run->add_option("--out", text, ".begins with a dot \\ and goes on|")->type_name("FILE");
    run->add_option("--list", list, "Values")->capture_default_str();
    run->add_flag("--quiet", "Say nothing")->excludes(port);
    run->add_option("--secret", text, "Not shown")->group("");
    run->add_option("TRACE", traces, "Files")->required();
    app.add_subcommand("model", "Models")->add_subcommand("random", "A random one");
  }

  CLI::App app{"hotset runs models.\nStart it.", "hotset"};
  std::string word = "a";
  std::string text;
  int port_value = 8080;
  std::vector<int> list = {1, 2};
  std::vector<std::string> traces;
};

FlagReference flag(const CommandReference& command, const std::string& name) {
  for (const FlagGroup& group : command.groups) {
    for (const FlagReference& one : group.flags) {
      if (std::ranges::contains(one.names, name)) return one;
    }
  }
  throw std::runtime_error("no " + name);
}

TEST(ReferenceOf, HasWhatWasDeclared) {
  Declared declared;
  const CommandReference program = reference_of(declared.app);
  ASSERT_EQ(program.commands.size(), 2u);
  const CommandReference& run = program.commands[0];
  EXPECT_EQ(run.name, "hotset run");
  EXPECT_EQ(usage(run), "hotset run [FLAGS] TRACE...");
  EXPECT_EQ(program.commands[1].commands[0].name, "hotset model random");

  const FlagReference word = flag(run, "--word");
  EXPECT_THAT(word.names, ElementsAre("-w", "--word"));
  EXPECT_THAT(word.words, ElementsAre("a", "b"));
  EXPECT_EQ(word.kind, ValueKind::kWord);
  EXPECT_EQ(word.default_value, "a");
  EXPECT_EQ(word.variable, "HOTSET_WORD");
  EXPECT_EQ(flag(run, "--port").expected, "0 to 65535");
  EXPECT_EQ(flag(run, "--port").value, "INT");
  EXPECT_EQ(flag(run, "--port").kind, ValueKind::kText);
  EXPECT_EQ(flag(run, "--out").kind, ValueKind::kFile);
  EXPECT_EQ(flag(run, "--list").default_value, "1,2");
  EXPECT_TRUE(flag(run, "--list").repeats);
  EXPECT_EQ(flag(run, "--quiet").kind, ValueKind::kNone);
  EXPECT_THAT(flag(run, "--quiet").excludes, ElementsAre("--port"));
  EXPECT_ANY_THROW(flag(run, "--secret"));
  ASSERT_EQ(run.arguments.size(), 1u);
  EXPECT_EQ(run.arguments[0].value, "TRACE");
  EXPECT_EQ(run.arguments[0].kind, ValueKind::kFile);
}

TEST(ReferenceOf, IsTheSameAfterACommandLineWasParsed) {
  Declared fresh;
  Declared used;
  used.app.parse("run --word b --port 1 --list 7 8 --out x y.mct");
  EXPECT_EQ(markdown_page(reference_of(used.app)), markdown_page(reference_of(fresh.app)));
}

TEST(ManPage, EscapesWhatRoffGivesAMeaning) {
  Declared declared;
  const std::string page = man_page(reference_of(declared.app), "1.2");
  EXPECT_THAT(page,
              HasSubstr("\n\\fB\\-w\\fR, \\fB\\-\\-word\\fR \\fITEXT\\fR\nA \\fBword\\fR; or"));
  EXPECT_THAT(page, HasSubstr("\n\\&.begins with a dot \\e and goes on|.\n"));
  EXPECT_THAT(page, HasSubstr("\nRun\\(aqs it.\n"));
  EXPECT_THAT(page, HasSubstr("\nhotset \\- runs models\n"));
}

TEST(MarkdownPage, HasARowPerFlag) {
  Declared declared;
  const std::string page = markdown_page(reference_of(declared.app));
  EXPECT_THAT(
      page,
      HasSubstr("\n| `-w, --word TEXT` | a, b | `a` | `HOTSET_WORD` | A `word`; or none. |\n"));
  EXPECT_THAT(page, HasSubstr("| .begins with a dot \\\\ and goes on\\|. |\n"));
  EXPECT_THAT(page, HasSubstr("| Say nothing. Not with --port. |\n"));
  EXPECT_THAT(page, Not(HasSubstr("secret")));
}

TEST(Completions, QuoteWhatShellsGiveAMeaning) {
  Declared declared;
  const CommandReference program = reference_of(declared.app);
  EXPECT_THAT(bash_completion(program),
              HasSubstr("'hotset run -w' | 'hotset run --word') COMPREPLY=($(compgen -W 'a b'"));
  EXPECT_THAT(zsh_completion(program), HasSubstr("'run:Run'\\''s it'"));
  EXPECT_THAT(zsh_completion(program), HasSubstr("'(-w --word)-w+[A word]:TEXT:(a b)'"));
  EXPECT_THAT(fish_completion(program), HasSubstr("-a run -d 'Run\\'s it'\n"));
  EXPECT_THAT(fish_completion(program), HasSubstr(" -l out -r -F -d '.begins with a dot \\\\ and"));
}

}  // namespace
}  // namespace hotset::cli
