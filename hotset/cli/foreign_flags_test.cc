#include "hotset/cli/foreign_flags.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "hotset/cli/bench_command.h"
#include "hotset/cli/command_line.h"
#include "hotset/cli/model_flags.h"
#include "hotset/cli/serve_flags.h"
#include "hotset/cli/tune_command.h"

namespace hotset::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// The commands as users have them.
const std::vector<CommandFlags>& commands() {
  static const std::vector<CommandFlags> all = [] {
    CommandLine line("hotset", "0");
    add_model_commands(line.program());
    add_bench_command(line.program());
    add_tune_command(line.program());
    add_serve_command(line.program(), "0");
    return line.commands();
  }();
  return all;
}

const CommandFlags& command(std::string_view name) {
  for (const CommandFlags& one : commands()) {
    if (one.command == name) return one;
  }
  ADD_FAILURE() << name;
  return commands().front();
}

Result<Translation> translate(std::string_view name, std::vector<std::string> arguments) {
  return translate_arguments(command(name), commands(), arguments);
}

// What the parser gets, in one line.
std::string said(std::string_view name, std::vector<std::string> arguments) {
  const auto result = translate(name, std::move(arguments));
  if (!result) return "error: " + result.error().message;
  return fmt::format("{}", fmt::join(result->arguments, " "));
}

std::string noted(std::string_view name, std::vector<std::string> arguments) {
  const auto result = translate(name, std::move(arguments));
  return result ? fmt::format("{}", fmt::join(result->notes, "\n")) : result.error().message;
}

std::vector<std::string> words(std::string_view line) {
  std::vector<std::string> result;
  for (size_t begin = 0; begin < line.size();) {
    const size_t end = std::min(line.find(' ', begin), line.size());
    result.emplace_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return result;
}

TEST(ForeignFlags, ADashAndLettersAreOneName) {
  // The parser alone takes the first for -c with the value "moe".
  EXPECT_EQ(said("run", {"-cmoe"}), "--moe-cache-mib=0");
  EXPECT_EQ(said("run", {"-ngl", "99"}), "--n-gpu-layers 99");
  EXPECT_EQ(said("run", {"-ngl=99"}), "--n-gpu-layers 99");
  EXPECT_EQ(said("run", {"-ctk", "q8_0", "-ctv=f16"}), "--cache-type-k q8_0 --cache-type-v f16");
  EXPECT_THAT(said("run", {"-cx"}), HasSubstr("found '-cx', which nothing takes"));
  EXPECT_THAT(said("run", {"-mmodel.gguf"}), HasSubstr("a value stands apart: -m model.gguf"));
  EXPECT_THAT(said("run", {"-c4096", "-t8", "-n-1", "-t=2", "-m./x"}),
              "-c4096 -t 8 -n-1 -t 2 -m./x");
}

TEST(ForeignFlags, ValuesAreNotFlags) {
  EXPECT_EQ(said("run", {"-p", "-cmoe", "-n", "-1"}), "-p -cmoe -n -1");
  EXPECT_EQ(said("run", {"-p", "--nope"}), "-p --nope");
  EXPECT_EQ(said("run", {"--", "-cmoe"}), "-- -cmoe");
  EXPECT_EQ(said("tune", {"--", "llama-server", "-cmoe", "-c", "0"}), "-- llama-server -cmoe -c 0");
  EXPECT_EQ(said("run", {"-f", "-"}), "-f -");
  EXPECT_EQ(said("tokenize", {"-m", "x", "-5"}), "-m x -5");
  EXPECT_EQ(said("bench", {"--compare", "-a", "-b"}), "--compare -a -b");
  EXPECT_EQ(said("run", {"-m"}), "-m");  // the parser says what is missing
}

TEST(ForeignFlags, OptionalValues) {
  EXPECT_EQ(said("serve", {"-fa", "--jinja"}), "--flash-attn=on");
  EXPECT_EQ(said("serve", {"-fa"}), "--flash-attn=on");
  EXPECT_EQ(said("serve", {"-fa", "1"}), "--flash-attn=on");
  EXPECT_EQ(said("serve", {"-fa", "0"}), "--flash-attn=off");
  EXPECT_EQ(said("serve", {"-fa", "off"}), "--flash-attn off");
  EXPECT_EQ(said("serve", {"--flash-attn", "-t", "2"}), "-t 2 --flash-attn=on");
  EXPECT_EQ(said("serve", {"-fa", "maybe"}), "--flash-attn maybe");  // the parser refuses it
  EXPECT_EQ(said("info", {"-fa", "x.gguf"}), "x.gguf --flash-attn=on");
  EXPECT_EQ(said("serve", {"--repack", "-t", "2"}), "-t 2 --repack=auto");
  EXPECT_EQ(said("serve", {"--repack", "off"}), "--repack off");
  EXPECT_EQ(said("bench", {"-nkvo", "0", "-mmp", "0"}), "--load-mode=pinned");
}

TEST(ForeignFlags, MeaningsOfOneValue) {
  EXPECT_EQ(said("run", {"-t", "-1", "-ngl", "-1", "--seed", "-1"}),
            "--n-gpu-layers=auto --threads=0");
  EXPECT_EQ(said("run", {"--seed", "3407"}), "--seed 3407");
  EXPECT_THAT(noted("serve", {"--seed", "3407"}), HasSubstr("each request may have"));
  EXPECT_EQ(said("serve", {"-b", "2048", "-ub", "512"}), "--ubatch-size 512");
  EXPECT_EQ(said("serve", {"-b", "128"}), "--ubatch-size=128");
  EXPECT_EQ(said("serve", {"-np", "1"}), "--parallel 1");
  EXPECT_EQ(said("serve", {"--parallel", "1"}), "--parallel 1");
  EXPECT_EQ(said("serve", {"-np", "-1"}), "");
  EXPECT_EQ(said("run", {"-np", "1"}), "");
  EXPECT_THAT(said("run", {"-np", "2"}), HasSubstr("hotset run has no --parallel"));
  EXPECT_THAT(said("run", {"--parallel", "2"}), HasSubstr("a flag of hotset bench, serve"));
  EXPECT_EQ(said("serve", {"--mirostat", "0"}), "");
  EXPECT_THAT(said("serve", {"--mirostat", "2"}),
              HasSubstr("error: --mirostat: hotset's samplers"));
  EXPECT_THAT(said("serve", {"--dry-multiplier", "1"}), HasSubstr("error: "));
  EXPECT_THAT(said("serve", {"--load-mode", "mlock"}), "--load-mode=pinned");
  EXPECT_THAT(said("serve", {"--load-mode", "auto"}), "--load-mode auto");
  EXPECT_EQ(said("serve", {"--ctx_size", "8"}), "--ctx-size 8");
  EXPECT_EQ(said("serve", {"--cache-ram", "-1"}), "--cache-ram-mib=67108864");
}

TEST(ForeignFlags, ExpertsOnTheCpu) {
  for (const char* pattern :
       {"exps=CPU", ".ffn_.*_exps.=CPU", "\\.ffn_(up|down|gate)_exps\\.=CPU"}) {
    EXPECT_EQ(said("serve", {"-ot", pattern}), "--moe-cache-mib=0") << pattern;
  }
  EXPECT_EQ(said("serve", {"-ot", "blk\\.(2[0-9])\\.ffn_.*_exps.=CPU"}), "");
  EXPECT_THAT(said("serve", {"-ot", "exps=CUDA0"}), HasSubstr("error: -ot: hotset places "));
  EXPECT_EQ(said("serve", {"-ncmoe", "20"}), "");
  EXPECT_THAT(noted("serve", {"-ncmoe", "20"}), HasSubstr("-ncmoe is ignored: "));
  // Both together are what other programs call a cache for the experts in host memory.
  EXPECT_EQ(said("serve", {"-cmoe", "--moe-cache-mib", "4096"}), "--moe-cache-mib 4096");
  EXPECT_THAT(noted("serve", {"--moe-cache-mib=4096", "-cmoe"}),
              "-cmoe is ignored: --moe-cache-mib is given");
  EXPECT_THAT(noted("serve", {"-cmoe"}), HasSubstr("-cmoe is read as --moe-cache-mib 0: "));
  EXPECT_EQ(said("serve", {"-cmoe", "-ot", "exps=CPU"}), "--moe-cache-mib=0");
  EXPECT_EQ(said("tune", {"-cmoe"}), "");
}

TEST(ForeignFlags, SaysOnlyWhatIsSafeToSay) {
  const std::string note = noted("serve", {"-hft", "hf_secret"});
  EXPECT_THAT(note, HasSubstr("-hft is ignored"));
  EXPECT_THAT(note, testing::Not(HasSubstr("secret")));
  EXPECT_LT(noted("serve", {"--grammar", std::string(1 << 16, 'x')}).size(), 200U);
}

TEST(ForeignFlags, WholeCommandLines) {
  EXPECT_EQ(said("serve", words("-m M -c 32768 -ngl 99 -cmoe -fa on --jinja -b 2048 -ub 2048 "
                                "--no-mmap -np 1 --host 0.0.0.0 --port 8080 -a gpt-oss")),
            "-m M -c 32768 --n-gpu-layers 99 --flash-attn on --ubatch-size 2048 --parallel 1 "
            "--host 0.0.0.0 --port 8080 --alias gpt-oss --load-mode=pinned --moe-cache-mib=0");
  EXPECT_EQ(said("run", words("--model M --jinja -ngl 99 --threads -1 --ctx-size 16384 --temp 0.6 "
                              "--min-p 0.0 --top-p 0.95 --top-k 20 --presence-penalty 1.0 --seed "
                              "3407 --prio 3 -ot .ffn_.*_exps.=CPU -no-cnv -n 64 -p x")),
            "--model M --n-gpu-layers 99 --ctx-size 16384 --temp 0.6 --min-p 0.0 --top-p 0.95 "
            "--top-k 20 --presence-penalty 1.0 --seed 3407 -n 64 -p x --moe-cache-mib=0 "
            "--threads=0");
  EXPECT_EQ(said("bench", words("-m M -ngl 99 -ncmoe 36 -p 512 -n 128 -fa 1 -b 2048 -ub 512,2048 "
                                "-mmp 0 -r 3 -o json --no-warmup -t 8")),
            "-m M --n-gpu-layers 99 -p 512 -n 128 --ubatch-size 512,2048 -r 3 -t 8 --flash-attn=on "
            "--json --load-mode=pinned --no-warm-up");
  EXPECT_EQ(said("serve", words("-m M -mla 3 -fmoe -amb 512 -rtr -ctk q8_0 -t 16")),
            "-m M --cache-type-k q8_0 -t 16 --repack=auto");
  EXPECT_EQ(said("serve", words("-m M --cpu_infer 32 --max_new_tokens 512 --cache_lens 8192")),
            "-m M --threads 32 --predict 512 --ctx-size 8192");
  EXPECT_THAT(said("serve", words("-hf ggml-org/gpt-oss-20b-GGUF --jinja -c 0")),
              HasSubstr("error: -hf: hotset downloads nothing"));
}

TEST(ForeignFlags, AMisspeltOneNamesTheNearest) {
  EXPECT_THAT(said("run", {"--ctx-siz", "8"}), HasSubstr("did you mean --ctx-size?"));
  EXPECT_THAT(said("run", {"-ctx-size", "8"}), HasSubstr("did you mean --ctx-size?"));
  EXPECT_THAT(said("run", {"--n-gpu-layer", "8"}), HasSubstr("did you mean --n-gpu-layers?"));
  EXPECT_THAT(said("serve", {"--no-warmupp"}), HasSubstr("did you mean --no-warmup?"));
  EXPECT_THAT(said("serve", {"-cmo"}), HasSubstr("did you mean -cmoe?"));
  EXPECT_EQ(said("run", {"--nonsense"}), "error: found '--nonsense', which nothing takes");
  // Commands without a model have no use for other programs' flags.
  EXPECT_EQ(said("tokenize", {"--jinja"}), "error: found '--jinja', which nothing takes");
  EXPECT_THAT(translate("run", {"--nope", "--help"})->arguments, ElementsAre("--help"));
}

std::string in_code(std::string_view list, char separator) {
  std::string text;
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = std::min(list.find(separator, begin), list.size());
    text += fmt::format("{}`{}`", text.empty() ? "" : ", ", list.substr(begin, end - begin));
    begin = end + 1;
  }
  return text;
}

std::string values_text(const ForeignFlag& row) {
  if (row.values.empty()) return {};
  if (row.applies != nullptr) return fmt::format(" ({})", row.values);
  if (row.values.starts_with('~')) return fmt::format(" (with `{}`)", row.values.substr(1));
  if (row.values.starts_with('<')) return fmt::format(" (below {})", row.values.substr(1));
  std::string text;
  for (const std::string& one : words(row.values)) text += one;
  std::ranges::replace(text, '|', ' ');
  std::string list;
  for (const std::string& one : words(text)) {
    list += fmt::format("{}{}", list.empty() ? "" : ", ",
                        one == "()" ? "no value" : fmt::format("`{}`", one));
  }
  return fmt::format(" ({})", list);
}

std::string meaning_text(const ForeignFlag& row) {
  switch (row.does) {
    case Does::kSame:
      return fmt::format("`{}`", row.flag);
    case Does::kSet: {
      const std::string value =
          row.value.empty() ? "" : fmt::format(" {}", row.value == "$" ? "VALUE" : row.value);
      return fmt::format("`{}{}`{}{}", row.flag, value, row.note.empty() ? "" : ": ", row.note);
    }
    case Does::kIgnored:
      return fmt::format("ignored: {}", row.note);
    case Does::kRefused:
      return fmt::format("refused: {}", row.note);
  }
  return {};
}

std::string table_text() {
  std::string text;
  for (const ForeignFlagSection& section : foreign_flags()) {
    text += fmt::format("\n### {}\n\n| flag | here |\n| --- | --- |\n", section.title);
    for (const ForeignFlag& row : section.rows) {
      std::string where;
      if (!row.command.empty()) where = fmt::format("{}: ", row.command);
      if (!row.missing.empty()) where = fmt::format("commands without `{}`: ", row.missing);
      std::string meaning = where + meaning_text(row);
      for (size_t at = 0; (at = meaning.find('|', at)) != std::string::npos; at += 2) {
        meaning.insert(at, "\\");
      }
      text += fmt::format("| {}{} | {} |\n", in_code(row.names, ' '), values_text(row), meaning);
    }
  }
  return text;
}

TEST(ForeignFlags, TheDocumentShowsTheTable) {
  const char* assets = std::getenv("HOTSET_ASSETS_DIR");
  ASSERT_NE(assets, nullptr);
  const auto path =
      std::filesystem::path(assets).parent_path() / "docs" / "coming-from-llama-cpp.md";
  std::ifstream in(path);
  std::string document((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string begin_mark = "<!-- generated: flags -->\n";
  const std::string end_mark = "\n<!-- end of generated -->";
  const size_t begin = document.find(begin_mark);
  const size_t end = document.find(end_mark);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << path;
  const size_t table = begin + begin_mark.size();
  const std::string expected = table_text();
  if (std::getenv("HOTSET_WRITE_DOCS") != nullptr) {
    document.replace(table, end - table, expected);
    std::ofstream(path) << document;
    return;
  }
  EXPECT_EQ(document.substr(table, end - table), expected)
      << "HOTSET_WRITE_DOCS=1 writes the table into " << path;
}

TEST(ForeignFlags, TheTableHoldsTogether) {
  for (const ForeignFlagSection& section : foreign_flags()) {
    for (const ForeignFlag& row : section.rows) {
      const bool has_target = std::ranges::any_of(commands(), [&](const CommandFlags& one) {
        return one.knows_foreign_flags() && one.find(row.flag) != nullptr;
      });
      const bool names_flag = row.does == Does::kSame || row.does == Does::kSet;
      EXPECT_EQ(has_target, names_flag) << row.names << ": " << row.flag;
      EXPECT_TRUE(names_flag || !row.note.empty()) << row.names;
      EXPECT_FALSE(row.does == Does::kSame && row.takes == Takes::kNothing) << row.names;
      for (const std::string& name : words(row.names)) {
        EXPECT_TRUE(name.starts_with('-') && name.size() > 1) << row.names;
        // Rows of one name read one value.
        for (const ForeignFlagSection& others : foreign_flags()) {
          for (const ForeignFlag& other : others.rows) {
            const bool shares_it = std::ranges::contains(words(other.names), name);
            EXPECT_TRUE(!shares_it || row.takes == other.takes) << name;
          }
        }
        // What hotset has itself is passed through for values that no row names: it must read as
        // many.
        for (const CommandFlags& one : commands()) {
          const OwnFlag* own = one.knows_foreign_flags() ? one.find(name) : nullptr;
          if (own == nullptr) continue;
          EXPECT_EQ(own->n_values, row.takes == Takes::kNothing ? 0 : 1)
              << one.command << " " << name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hotset::cli
