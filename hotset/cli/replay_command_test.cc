#include "hotset/cli/replay_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "hotset/report/replay_chart.h"
#include "hotset/report/replay_report.h"
#include "hotset/trace/synth.h"
#include "hotset/trace/trace_testing.h"

namespace hotset::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string synth_file(const trace::TestFolder& folder, const std::string& name,
                       uint64_t seed = 1) {
  const auto bytes = trace::synthesize_bytes({.n_layer = 2,
                                              .n_expert = 16,
                                              .experts_per_token = 2,
                                              .n_tokens = 400,
                                              .n_groups = 2,
                                              .tensor_expert_bytes = {{65536}},
                                              .seed = seed})
                         .value();
  std::ofstream out(folder.file(name), std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  return folder.file(name);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// The counts of the reference implementation (../shared/golden/README.md, "policy/"), every row.
class ReferenceCounts : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferenceCounts, AreMatchedExactly) {
  const char* shared = std::getenv("HOTSET_SHARED_DIR");
  const std::string folder = std::string(shared == nullptr ? "" : shared) + "/golden/policy/";
  if (!std::filesystem::exists(folder + "classlru-golden.json")) {
    GTEST_SKIP() << "HOTSET_SHARED_DIR has no golden/policy/classlru-golden.json";
  }
  std::ifstream in(folder + "classlru-golden.json");
  const auto golden = nlohmann::json::parse(in).at(GetParam());
  std::set<double> sizes;
  std::set<double> shares;
  for (const auto& row : golden) {
    sizes.insert(row.at("cache_mib").get<double>());
    shares.insert(row.at("cpu_share").get<double>());
  }
  ReplayCommandOptions options{.matrix = {.traces = {folder + GetParam() + ".mct"},
                                          .policies = {"class_lru"},
                                          .counted = {.compat_zero_slots = true}},
                               .cache_mib = {sizes.begin(), sizes.end()},
                               .shares = {},
                               .format = ReplayFormat::kJson};
  for (const double share : shares) options.shares.push_back(share);
  const auto text = run_replay(options);
  ASSERT_TRUE(text) << text.error().message;
  std::map<std::pair<double, double>, nlohmann::json> rows;
  for (const auto& row : nlohmann::json::parse(*text)) {
    rows[{row.at("cache_mib").get<double>(), row.at("share").get<double>()}] = row;
  }
  EXPECT_GE(golden.size(), 10U);
  for (const auto& expected : golden) {
    SCOPED_TRACE(expected.dump());
    const auto& row = rows.at({expected.at("cache_mib"), expected.at("cpu_share")});
    for (const char* field : {"slots", "hits", "uploads", "cpu", "bypassed_lookups"}) {
      EXPECT_EQ(row.at(field), expected.at(field)) << field;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ClassLru, ReferenceCounts,
                         ::testing::Values("decode-zipf", "two-groups-spec", "wide-uniform",
                                           "two-devices"),
                         [](const auto& trace) {
                           std::string name = trace.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(ReplayCommand, JsonHasTheAgreedFields) {
  trace::TestFolder folder;
  const std::string trace = synth_file(folder, "a.mct");
  const auto text =
      run_replay({.matrix = {.traces = {trace}, .policies = {"class_lru", "unbounded"}},
                  .cache_mib = {1.5},
                  .shares = {0.0, 0.25, std::nullopt},
                  .format = ReplayFormat::kJson});
  ASSERT_TRUE(text) << text.error().message;
  const auto rows = nlohmann::ordered_json::parse(*text);
  ASSERT_EQ(rows.size(), 6U);
  std::vector<std::string> fields;
  for (const auto& [name, value] : rows[0].items()) fields.push_back(name);
  EXPECT_EQ(fields, (std::vector<std::string>{
                        "trace", "policy", "cache_mib", "share", "slots", "lookups", "hits",
                        "uploads", "cpu", "evictions", "bypassed_lookups", "hit_rate",
                        "upload_gib_per_token", "cpu_gib_per_token", "belady_hit_rate"}));
  EXPECT_EQ(rows[0]["trace"], trace);
  EXPECT_EQ(rows[0]["cache_mib"], 1.5);
  EXPECT_EQ(rows[0]["slots"], (std::vector<int>{11, 11}));
  EXPECT_EQ(rows[0]["lookups"], 2 * 300);
  EXPECT_EQ(rows[0]["share"], 0);
  EXPECT_EQ(rows[2]["share"], 0.25);
  EXPECT_EQ(rows[4]["share"], "auto");
  EXPECT_EQ(rows[1]["slots"], (std::vector<int>{16, 16}));
  const double selected = rows[0]["hits"].get<double>() + rows[0]["uploads"].get<double>() +
                          rows[0]["cpu"].get<double>();
  EXPECT_DOUBLE_EQ(rows[0]["hit_rate"], rows[0]["hits"].get<double>() / selected);
  EXPECT_DOUBLE_EQ(rows[0]["upload_gib_per_token"],
                   rows[0]["uploads"].get<double>() * 65536 / (1 << 30) / 300);
}

TEST(ReplayCommand, SkipsTokensUnlessAskedNotTo) {
  trace::TestFolder folder;
  ReplayCommandOptions options{
      .matrix = {.traces = {synth_file(folder, "a.mct")}, .policies = {"lru"}}};
  EXPECT_EQ(matrix_options(options)->counted.n_skipped(), 100);
  options.matrix.counted.compat_zero_slots = true;
  EXPECT_EQ(matrix_options(options)->counted.n_skipped(), 0);
  options.matrix.counted.skip_tokens = 7;
  EXPECT_EQ(matrix_options(options)->counted.n_skipped(), 7);
  EXPECT_EQ(matrix_options(options)->sizes.size(), 5U);
}

TEST(ReplayCommand, TablesHaveARowPerReplay) {
  trace::TestFolder folder;
  ReplayCommandOptions options{
      .matrix = {.traces = {synth_file(folder, "a.mct"), synth_file(folder, "b,\"x.mct", 2)},
                 .policies = {"class_lru", "lru"}},
      .cache_pct = {25, 50}};
  const auto table = lines_of(run_replay(options).value());
  ASSERT_GE(table.size(), 9U);
  EXPECT_THAT(table[0], StartsWith("trace"));
  EXPECT_THAT(table[1], HasSubstr("class_lru"));
  EXPECT_EQ(table[1].size(), table[8].size());
  EXPECT_THAT(table[10], HasSubstr("first 100 tokens"));

  options.format = ReplayFormat::kMarkdown;
  const auto markdown = lines_of(run_replay(options).value());
  ASSERT_EQ(markdown.size(), 10U);
  for (const std::string& line : markdown) EXPECT_EQ(count_of(line, "|"), 13U) << line;

  options.format = ReplayFormat::kCsv;
  const auto csv = lines_of(run_replay(options).value());
  ASSERT_EQ(csv.size(), 9U);
  EXPECT_THAT(csv[0], StartsWith("trace,policy,cache_mib"));
  EXPECT_EQ(count_of(csv[1], ","), count_of(csv[0], ","));
  EXPECT_THAT(csv[8], HasSubstr("b,\"\"x.mct\","));
}

TEST(ReplayCommand, DrawsAPicture) {
  trace::TestFolder folder;
  const auto text =
      run_replay({.matrix = {.traces = {synth_file(folder, "a.mct"), synth_file(folder, "b&c.mct")},
                             .policies = {"class_lru", "lru"}},
                  .shares = {0.0, 0.5},
                  .svg_path = folder.file("out.svg")});
  ASSERT_TRUE(text) << text.error().message;
  std::ifstream in(folder.file("out.svg"));
  const std::string svg{std::istreambuf_iterator<char>(in), {}};
  EXPECT_THAT(svg, StartsWith("<svg xmlns"));
  EXPECT_THAT(svg, HasSubstr("b&amp;c"));
  EXPECT_THAT(svg, HasSubstr("hit rate, %"));
  EXPECT_THAT(svg, HasSubstr("cache, % of the bytes of all experts"));
  EXPECT_THAT(svg, HasSubstr("lru, share 0.5"));
  // Two panels of two bounds and four series.
  EXPECT_EQ(count_of(svg, "<polyline"), 12U);
  EXPECT_EQ(count_of(svg, "<text"), count_of(svg, "</text>"));
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(ReplayCommand, APictureOfOneSizeShowsPoints) {
  trace::TestFolder folder;
  ASSERT_TRUE(
      run_replay({.matrix = {.traces = {synth_file(folder, "a.mct")}, .policies = {"class_lru"}},
                  .cache_mib = {1},
                  .svg_path = folder.file("out.svg")}));
  std::ifstream in(folder.file("out.svg"));
  const std::string svg{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(count_of(svg, "<polyline"), 0U);
  EXPECT_EQ(count_of(svg, "<circle"), 4U);  // two bounds, the policy, its legend
  EXPECT_THAT(svg, HasSubstr("cache, MiB"));
}

TEST(ReplayCommand, SaysWhatIsWrong) {
  trace::TestFolder folder;
  const std::string trace = synth_file(folder, "a.mct");
  const auto message = [](const ReplayCommandOptions& options) {
    const auto text = run_replay(options);
    return text ? std::string("no error") : text.error().message;
  };
  for (const double share : {1.5, -0.1, std::nan("")}) {
    EXPECT_THAT(message({.matrix = {.traces = {trace}, .policies = {"lru"}}, .shares = {share}}),
                HasSubstr("--share: found "))
        << share;
  }
  EXPECT_THAT(message({.matrix = {.traces = {trace}, .policies = {"mru"}}}), HasSubstr("mru"));
  EXPECT_THAT(message({.matrix = {.traces = {trace}, .policies = {"lru"}}, .cache_mib = {-1}}),
              HasSubstr("-1 MiB"));
  EXPECT_THAT(message({.matrix = {.traces = {folder.file("none.mct")}, .policies = {"lru"}}}),
              HasSubstr("none.mct"));
  EXPECT_THAT(message({.matrix = {.traces = {trace}, .policies = {"lru"}},
                       .svg_path = folder.file("no/such/folder.svg")}),
              HasSubstr("folder.svg"));
}

}  // namespace
}  // namespace hotset::cli
