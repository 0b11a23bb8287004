#include "hotset/measure/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "hotset/measure/bench_run.h"
#include "hotset/report/text_table.h"

namespace hotset::measure {
namespace {

using testing::HasSubstr;
using testing::Not;

BenchResult two_rows() {
  BenchResult result;
  result.context.model = "a, \"b\".gguf";
  result.context.tokens = "text";
  result.context.n_repetitions = 2;
  result.rows.push_back({.what = {.device = "emu", .cache_mib = "4", .n_prompt = 64},
                         .device_name = "emu",
                         .n_threads = 2,
                         .virtual_clock = true,
                         .n_slots = 7,
                         .n_experts = 70,
                         .tokens_per_s = {100, 104},
                         .hit_rate = 0.25,
                         .bytes = {.reads = {.hits = 1e6, .misses = 2e6, .dense = 3e6},
                                   .all_known = true,
                                   .cpu_known = true,
                                   .linked = 5e6,
                                   .cpu = 7e6},
                         .rates = {.link = 10, .cpu = 20, .device = 200},
                         .bound_tokens_per_s = 204});
  result.rows.push_back({.what = {.cache_mib = "0", .n_gen = 16, .depth = 9, .n_parallel = 3},
                         .device_name = "none",
                         .n_threads = 2,
                         .tokens_per_s = {50}});
  return result;
}

TEST(BenchRow, HasMeanAndDeviationOfItsRepetitions) {
  BenchRow row;
  EXPECT_EQ(row.mean(), 0);
  EXPECT_EQ(row.deviation(), 0);
  row.tokens_per_s = {7};
  EXPECT_EQ(row.mean(), 7);
  EXPECT_EQ(row.deviation(), 0);
  row.tokens_per_s = {2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_EQ(row.mean(), 5);
  EXPECT_NEAR(row.deviation(), 2.13808993529939, 1e-12);  // of 8 - 1
}

TEST(BenchReport, TableHasARowPerTestAndDashesForWhatIsNotKnown) {
  const std::string table = bench_table(two_rows());
  EXPECT_THAT(table, HasSubstr("model: a, \"b\".gguf"));
  EXPECT_THAT(table, HasSubstr("rates: emu, 2 threads: link 10.0 GB/s, CPU 20.0 GB/s"));
  const auto line = [&](const std::string& start) {
    const size_t at = table.find("\n" + start);
    if (at == std::string::npos) return std::string();
    return table.substr(at + 1, table.find('\n', at + 1) - at - 1);
  };
  EXPECT_EQ(line("pp64"),
            "pp64           emu (virtual)        2     512          4   auto     102.0  2.83   "
            "25.0         0.41       0.51      0.71  204.0     50.0");
  EXPECT_EQ(line("tg16"),
            "tg16 @ d9 x 3  none                 2     512          -      -     50.00  0.00   "
            "   -            -          -         -      -        -");
}

TEST(BenchReport, RandomTokensAreLabelled) {
  BenchResult result = two_rows();
  EXPECT_THAT(bench_table(result), Not(HasSubstr("route unlike text")));
  result.context.tokens = "random";
  EXPECT_THAT(bench_table(result), HasSubstr("random, which route unlike text"));
  EXPECT_THAT(bench_markdown(result), HasSubstr("random, which route unlike text"));
}

TEST(BenchReport, JsonIsAnArrayOfRowsWithEverything) {
  const auto rows = nlohmann::json::parse(bench_json(two_rows()));
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0]["n_prompt"], 64);
  EXPECT_EQ(rows[0]["n_gen"], 0);
  EXPECT_EQ(rows[0]["tokens_per_s"], 102);
  EXPECT_EQ(rows[0]["hit_rate"], 0.25);
  EXPECT_EQ(rows[0]["percent_of_bound"], 50);
  EXPECT_EQ(rows[0]["clock"], "virtual");
  EXPECT_EQ(rows[0]["samples_tokens_per_s"], nlohmann::json({100, 104}));
  EXPECT_EQ(rows[1]["hit_rate"], nullptr);
  EXPECT_EQ(rows[1]["bound_tokens_per_s"], nullptr);
  EXPECT_EQ(rows[1]["cpu_gb_per_s"], nullptr);
  EXPECT_EQ(rows[1]["depth"], 9);
}

TEST(BenchReport, CsvHasAsManyFieldsInEveryLine) {
  const std::string csv = bench_csv(two_rows());
  EXPECT_EQ(std::ranges::count(csv, '\n'), 3);
  EXPECT_THAT(csv, HasSubstr("\"a, \"\"b\"\".gguf\""));
  const size_t end = csv.find('\n');
  const auto n_heads = std::ranges::count(csv.substr(0, end), ',');
  EXPECT_GT(n_heads, 30);
  // Outside quotes.
  std::string line = csv.substr(end + 1);
  line.resize(line.find('\n'));
  bool quoted = false;
  int n = 0;
  for (const char c : line) {
    if (c == '"') quoted = !quoted;
    if (c == ',' && !quoted) ++n;
  }
  EXPECT_EQ(n, n_heads);
}

TEST(CompareBench, PutsEqualTestsBesideEachOther) {
  BenchResult before = two_rows();
  BenchResult after = two_rows();
  after.rows[0].tokens_per_s = {200, 208};
  after.rows[1].what.depth = 10;  // another test
  const auto text =
      compare_bench("A", bench_json(before), "B", bench_json(after), BenchFormat::kTable);
  ASSERT_TRUE(text) << text.error().message;
  EXPECT_THAT(*text, HasSubstr("2.000  faster"));
  EXPECT_THAT(*text, HasSubstr("1 rows of A and 1 of B"));
  after.rows[0].tokens_per_s = {99, 107};
  const auto noisy =
      compare_bench("A", bench_json(before), "B", bench_json(after), BenchFormat::kMarkdown);
  ASSERT_TRUE(noisy);
  EXPECT_THAT(*noisy, HasSubstr("within the noise |"));
  const auto json =
      compare_bench("A", bench_json(before), "A", bench_json(before), BenchFormat::kJson);
  ASSERT_TRUE(json);
  EXPECT_EQ(nlohmann::json::parse(*json).size(), 2U);
}

TEST(CompareBench, RefusesWhatIsNoBenchmark) {
  const std::string good = bench_json(two_rows());
  const auto error = [&](const std::string& other) {
    const auto text = compare_bench("A.json", good, "B.json", other, BenchFormat::kTable);
    EXPECT_FALSE(text);
    return text ? std::string() : text.error().message;
  };
  EXPECT_THAT(error("nonsense"), HasSubstr("B.json: found no JSON array"));
  EXPECT_THAT(error("{}"), HasSubstr("found no JSON array"));
  EXPECT_THAT(error("[1]"), HasSubstr("B.json: row 0: n_prompt: found nothing, expected a number"));
  EXPECT_THAT(error(R"([{"n_prompt": "x"}])"), HasSubstr("n_prompt: found \"x\""));
  EXPECT_THAT(error("[]"), HasSubstr("found no test that both measured"));
}

TEST(TextTable, AlignsWordsLeftAndNumbersRight) {
  const report::TextTable table{
      .heads = {"a", "bb"}, .is_word = {true, false}, .rows = {{"xyz", "1"}, {"ü", "22"}}};
  EXPECT_EQ(table.text(), "a    bb\nxyz   1\nü    22\n");
  EXPECT_EQ(table.markdown(), "| a | bb |\n| --- | ---: |\n| xyz | 1 |\n| ü | 22 |\n");
}

}  // namespace
}  // namespace hotset::measure
