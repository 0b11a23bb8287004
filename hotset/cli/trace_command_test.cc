#include "hotset/cli/trace_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "hotset/trace/reader.h"
#include "hotset/trace/trace_testing.h"

namespace hotset::cli {
namespace {

using ::testing::HasSubstr;

std::string make(const trace::TestFolder& folder, const std::string& name, uint64_t seed = 1) {
  TraceSynthOptions options{.out = folder.file(name), .expert_bytes = {1000, 500}};
  options.synth.n_layer = 3;
  options.synth.n_expert = 8;
  options.synth.experts_per_token = 2;
  options.synth.n_tokens = 50;
  options.synth.seed = seed;
  const auto text = trace_synth(options);
  EXPECT_TRUE(text) << text.error().message;
  return folder.file(name);
}

TEST(ParseLayers, NumbersAndRanges) {
  EXPECT_EQ(parse_layers("0-3,7").value(), (std::vector<int32_t>{0, 1, 2, 3, 7}));
  EXPECT_EQ(parse_layers("5").value(), std::vector<int32_t>{5});
  EXPECT_EQ(parse_layers("2-2,1,2").value(), (std::vector<int32_t>{1, 2}));
  for (const char* bad : {"", ",", "1,", "a", "1-", "-1", "3-1", "1-2-3", "1 2", "0-999999999"}) {
    EXPECT_FALSE(parse_layers(bad)) << bad;
  }
}

TEST(TraceSynthCommand, SaysItsSeed) {
  trace::TestFolder folder;
  TraceSynthOptions options{.out = folder.file("a.mct")};
  options.synth.n_tokens = 5;
  options.synth.seed = 77;
  EXPECT_THAT(trace_synth(options).value(), HasSubstr("seed 77"));
  options.expert_bytes = {0};
  EXPECT_THAT(trace_synth(options).error().message, HasSubstr("bytes of one expert"));
}

TEST(TraceInfoCommand, ShowsTheShape) {
  trace::TestFolder folder;
  const std::string trace = make(folder, "a.mct");
  const std::string text = trace_info({.traces = {trace}, .layers = true}).value();
  EXPECT_THAT(text, HasSubstr("3 of 3 layers with experts, 2 experts per token"));
  EXPECT_THAT(text, HasSubstr("150 lookups, 50 tokens, 300 ids"));
  EXPECT_THAT(text, HasSubstr("reuse distance"));
  EXPECT_THAT(text, HasSubstr("effective experts"));
  const auto json =
      nlohmann::json::parse(trace_info({.traces = {trace, trace}, .json = true}).value());
  ASSERT_EQ(json.size(), 2U);
  EXPECT_EQ(json[0]["total"]["lookups"], 150);
  EXPECT_EQ(json[0]["layers"].size(), 3U);
  EXPECT_EQ(json[0]["groups"][0]["uses"], 300);
  EXPECT_GE(json[0]["groups"][0]["reuse_distance"]["p99"],
            json[0]["groups"][0]["reuse_distance"]["p50"]);
  EXPECT_THAT(trace_info({.traces = {folder.file("none")}}).error().message, HasSubstr("none"));
}

TEST(TraceCutCommand, CutsTokensAndLayers) {
  trace::TestFolder folder;
  const std::string trace = make(folder, "a.mct");
  TraceCutOptions options{.in = trace, .out = folder.file("b.mct"), .layers = "1-2"};
  options.cut.first_token = 10;
  options.cut.n_tokens = 5;
  EXPECT_THAT(trace_cut(options).value(), HasSubstr("10 lookups, 20 ids"));
  EXPECT_EQ(trace::TraceReader::open(options.out)->header().groups[0].layers,
            (std::vector<uint32_t>{1, 2}));
  options.layers = "9";
  EXPECT_THAT(trace_cut(options).error().message, HasSubstr("layer 9"));
  options.layers = "x";
  EXPECT_THAT(trace_cut(options).error().message, HasSubstr("--layers"));
}

TEST(TraceMergeCommand, KnowsItsModes) {
  trace::TestFolder folder;
  TraceMergeOptions options{.in = {make(folder, "a.mct"), make(folder, "b.mct", 2)},
                            .out = folder.file("c.mct")};
  for (const char* mode : {"concatenate", "interleave"}) {
    options.mode = mode;
    EXPECT_THAT(trace_merge(options).value(), HasSubstr("300 lookups, 600 ids")) << mode;
  }
  options.mode = "batch";
  EXPECT_THAT(trace_merge(options).value(), HasSubstr("150 lookups, 600 ids"));
  options.mode = "shuffle";
  EXPECT_THAT(trace_merge(options).error().message, HasSubstr("\"shuffle\""));
}

}  // namespace
}  // namespace hotset::cli
