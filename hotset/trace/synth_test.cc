#include "hotset/trace/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "hotset/trace/shape.h"
#include "hotset/trace/trace_testing.h"

namespace hotset::trace {
namespace {

using ::testing::HasSubstr;

TraceShape shape_of(const SynthOptions& options) {
  TraceShapeBuilder builder(synth_header(options).value());
  EXPECT_TRUE(synthesize(options, [&](const TraceLookup& lookup) -> Status {
    builder.add(lookup);
    return {};
  }));
  return builder.shape();
}

TEST(Synth, TheSameOptionsGiveTheSameTrace) {
  const SynthOptions options{.n_layer = 3, .n_tokens = 50, .seed = 5};
  SynthOptions other = options;
  other.seed = 6;
  EXPECT_EQ(synthesize_bytes(options).value(), synthesize_bytes(options).value());
  EXPECT_NE(synthesize_bytes(options).value(), synthesize_bytes(other).value());
}

TEST(Synth, IsAWholeTraceWithDistinctExpertsPerToken) {
  const SynthOptions options{.n_layer = 4,
                             .n_expert = 16,
                             .experts_per_token = 5,
                             .n_tokens = 101,
                             .tokens_per_step = {1, 3, 40},
                             .n_groups = 3,
                             .n_devices = 2};
  const auto bytes = synthesize_bytes(options).value();
  auto reader = read_bytes(bytes).value();
  EXPECT_EQ(reader.header().groups.size(), 3U);
  EXPECT_EQ(reader.header().groups[2].device, 1U);
  EXPECT_EQ(reader.header().host_bytes(), (64 * Bytes{3LL * 884736}));
  std::vector<int64_t> n_tokens(4);
  const auto lookups = all_lookups(reader).value();
  for (const OwnedLookup& lookup : lookups) {
    n_tokens[lookup.layer] += lookup.view().n_tokens();
    for (size_t i = 0; i < lookup.ids.size(); i += 5) {
      EXPECT_EQ(std::set<int32_t>(lookup.ids.begin() + static_cast<ptrdiff_t>(i),
                                  lookup.ids.begin() + static_cast<ptrdiff_t>(i) + 5)
                    .size(),
                5U);
    }
  }
  EXPECT_EQ(n_tokens, std::vector<int64_t>(4, 101));
}

TEST(Synth, LocalityAndSkewFollowTheOptions) {
  const SynthOptions flat{
      .n_layer = 2, .n_expert = 100, .n_tokens = 3000, .zipf_exponent = 0, .repeat = 0};
  SynthOptions local = flat;
  local.repeat = 0.6;
  SynthOptions skewed = flat;
  skewed.zipf_exponent = 1.5;
  skewed.n_topics = 1;
  // 8 of 100 experts drawn alike: a token repeats 8% of them by chance.
  EXPECT_NEAR(shape_of(flat).total.repeated_share, 0.08, 0.01);
  EXPECT_NEAR(shape_of(local).total.repeated_share, 0.6 + 0.4 * 0.08, 0.02);
  EXPECT_NEAR(shape_of(flat).layers[0].spread.top_tenth_share, 0.1, 0.02);
  EXPECT_GT(shape_of(skewed).layers[0].spread.top_tenth_share, 0.4);
  EXPECT_NEAR(shape_of(flat).layers[0].spread.effective_experts, 100, 2);
}

TEST(Synth, ExtremeSkewEnds) {
  const TraceShape shape = shape_of({.n_layer = 1,
                                     .n_expert = 200,
                                     .experts_per_token = 200,
                                     .n_tokens = 20,
                                     .zipf_exponent = 8,
                                     .repeat = 0});
  EXPECT_EQ(shape.total.n_experts_used, 200);
  EXPECT_EQ(shape.total.n_ids, 4000);
}

TEST(Synth, RefusesOptionsOutOfRange) {
  const auto message = [](const SynthOptions& options) {
    const auto header = synth_header(options);
    if (header) return std::string("accepted");
    EXPECT_EQ(header.error().code, ErrorCode::kInvalidArgument);
    return header.error().message;
  };
  EXPECT_THAT(message({.n_layer = 0}), HasSubstr("groups"));
  EXPECT_THAT(message({.n_layer = 1 << 20}), HasSubstr("number of layers is 1048576"));
  EXPECT_THAT(message({.n_expert = 1 << 20}), HasSubstr("number of experts is 1048576"));
  EXPECT_THAT(message({.experts_per_token = 0}), HasSubstr("experts per token is 0"));
  EXPECT_THAT(message({.experts_per_token = 65}), HasSubstr("experts per token is 65"));
  EXPECT_THAT(message({.n_tokens = 0}), HasSubstr("number of tokens is 0"));
  EXPECT_THAT(message({.tokens_per_step = {}}), HasSubstr("step sizes is 0"));
  EXPECT_THAT(message({.tokens_per_step = {1, 0}}), HasSubstr("tokens per step is 0"));
  EXPECT_THAT(message({.zipf_exponent = -1}), HasSubstr("zipf exponent is -1"));
  EXPECT_THAT(message({.repeat = 1.5}), HasSubstr("repeat is 1.5"));
  EXPECT_THAT(message({.n_topics = 0}), HasSubstr("topics is 0"));
  EXPECT_THAT(message({.topic_tokens = 0}), HasSubstr("topic is 0"));
  EXPECT_THAT(message({.n_groups = 17}), HasSubstr("groups is 17"));
  EXPECT_THAT(message({.n_devices = 2}), HasSubstr("devices is 2"));
  EXPECT_THAT(message({.alignment_bytes = 0}), HasSubstr("alignment is 0"));
  EXPECT_THAT(message({.tensor_expert_bytes = {{1LL << 40}}}), HasSubstr("group host bytes"));
}

}  // namespace
}  // namespace hotset::trace
