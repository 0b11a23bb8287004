#include "hotset/sim/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "hotset/policy/registry.h"
#include "hotset/sim/sim_testing.h"
#include "hotset/sim/trace_cache.h"

namespace hotset::sim {
namespace {

using ::testing::HasSubstr;

// One layer, one expert per token: the ids of the tokens.
MemoryTrace tokens(std::vector<int32_t> experts, uint32_t n_expert = 8) {
  std::vector<trace::OwnedLookup> lookups;
  for (const int32_t expert : experts) lookups.push_back({0, 1, {expert}});
  return MemoryTrace(trace::small_header(1, n_expert, 1), lookups);
}

trace::SynthOptions small_synth(uint64_t seed) {
  return {.n_layer = 4,
          .n_expert = 24,
          .experts_per_token = 4,
          .n_tokens = 600,
          .topic_tokens = 100,
          .tensor_expert_bytes = {{1 << 20}},
          .seed = seed};
}

ReplayResult run(const MemoryTrace& trace, const ReplayOptions& options) {
  auto result = replay(trace.opener(), options);
  EXPECT_TRUE(result) << result.error().message;
  return result ? *std::move(result) : ReplayResult{};
}

std::string error_of(const MemoryTrace& trace, const ReplayOptions& options) {
  const auto result = replay(trace.opener(), options);
  return result ? "no error" : result.error().message;
}

TEST(Replay, CountsWhatTheCacheDoes) {
  const ReplayResult result = run(
      tokens({0, 1, 0, 2, 1, 0}),
      {.rules = {.policy = "lru", .cpu_share = 0}, .slots = {2}, .counted = {.skip_tokens = 0}});
  // 0 and 1 enter, 0 hits, 2 takes 1's slot, 1 takes 0's, 0 takes 2's.
  EXPECT_EQ(result.slots, std::vector<int64_t>{2});
  EXPECT_EQ(result.counts.lookups, 6);
  EXPECT_EQ(result.tokens, 6);
  EXPECT_EQ(result.counts.hits, 1);
  EXPECT_EQ(result.uploads(), 5);
  EXPECT_EQ(result.counts.cpu, 0);
  EXPECT_EQ(result.counts.evictions, 3);
  EXPECT_EQ(result.bypassed_lookups, 0);
  EXPECT_EQ(result.upload_bytes(), Bytes{500});
  EXPECT_DOUBLE_EQ(result.hit_rate(), 1.0 / 6);
  EXPECT_DOUBLE_EQ(result.upload_gib_per_token(), 500.0 / 6 / (1 << 30));
}

TEST(Replay, SkippedTokensAreReplayedButNotCounted) {
  const ReplayResult result = run(
      tokens({0, 1, 0, 2, 1, 0}),
      {.rules = {.policy = "lru", .cpu_share = 0}, .slots = {2}, .counted = {.skip_tokens = 2}});
  EXPECT_EQ(result.counts.lookups, 4);
  EXPECT_EQ(result.tokens, 4);
  EXPECT_EQ(result.counts.hits, 1);
  EXPECT_EQ(result.uploads(), 3);
}

TEST(Replay, TokensAreThoseOfTheBusiestLayer) {
  const MemoryTrace trace(trace::small_header(2, 4, 1), {{0, 1, {0}}, {1, 1, {0}}, {0, 1, {1, 2}}});
  EXPECT_EQ(
      run(trace,
          {.rules = {.policy = "lru", .cpu_share = 0}, .slots = {8}, .counted = {.skip_tokens = 0}})
          .tokens,
      3);
}

TEST(Replay, AGroupWithoutSlotsIsLeftToTheCpu) {
  const ReplayResult result =
      run(tokens({0, 1, 0}), {.rules = {.policy = "class_lru", .cpu_share = 0},
                              .slots = {0},
                              .counted = {.skip_tokens = 0}});
  EXPECT_EQ(result.counts.cpu, 3);
  EXPECT_EQ(result.bypassed_lookups, 3);
  EXPECT_EQ(result.hit_rate(), 0);
  EXPECT_EQ(result.counts.cpu_bytes, Bytes{300});
}

TEST(Replay, APrefillEvictsNothingAndStreamsTheRest) {
  std::vector<int32_t> prompt(40);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i % 8);
  const MemoryTrace trace(trace::small_header(1, 8, 1),
                          {{0, 1, {6}}, {0, 1, prompt}, {0, 1, {6}}, {0, 1, {7}}});
  const ReplayResult result = run(
      trace,
      {.rules = {.policy = "lru", .cpu_share = 0}, .slots = {3}, .counted = {.skip_tokens = 0}});
  // 6; then 6 of 8 hit and two of the others fill the slots; then 6 hits; then 7 evicts one.
  EXPECT_EQ(result.counts.hits, 2);
  EXPECT_EQ(result.uploads(), 1 + 7 + 1);
  EXPECT_EQ(result.counts.evictions, 1);
  EXPECT_EQ(result.tokens, 43);
  EXPECT_EQ(result.counts.cpu, 0);
}

TEST(Replay, UnboundedMissesEachExpertOnce) {
  const auto bytes = trace::synthesize_bytes(small_synth(3)).value();
  auto reader = trace::read_bytes(bytes).value();
  const auto lookups = trace::all_lookups(reader).value();
  std::set<std::pair<int32_t, int32_t>> seen;
  for (const trace::OwnedLookup& lookup : lookups) {
    for (const int32_t id : lookup.ids) seen.insert({lookup.layer, id});
  }
  const ReplayResult result =
      run(MemoryTrace(bytes), {.rules = {.policy = "unbounded", .cpu_share = 0},
                               .slots = {5},
                               .counted = {.skip_tokens = 0}});
  EXPECT_EQ(result.slots, std::vector<int64_t>{96});
  EXPECT_EQ(result.uploads(), std::ssize(seen));
  EXPECT_EQ(result.counts.evictions, 0);
}

TEST(Replay, NoPolicyBeatsTheBounds) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    trace::SynthOptions synth = small_synth(seed);
    if (seed % 2 == 0) synth.tokens_per_step = {1, 2, 5};
    const MemoryTrace trace(trace::synthesize_bytes(synth).value());
    auto reader = trace.opener()().value();
    const auto profile = count_uses(reader).value();
    for (const int64_t n_slots : {6, 20, 48}) {
      ReplayOptions options{.rules = {.cpu_share = 0},
                            .slots = {n_slots},
                            .counted = {.skip_tokens = 0},
                            .profile = profile};
      options.rules.policy = "belady";
      const ReplayResult belady = run(trace, options);
      options.rules.policy = "belady-demand";
      const ReplayResult demand = run(trace, options);
      for (const std::string_view name : policy::policy_names()) {
        const policy::PolicyTraits traits = policy::policy_traits(name).value();
        if (traits.needs_all_slots) continue;
        SCOPED_TRACE(fmt::format("{} with {} slots", name, n_slots));
        options.rules.policy = name;
        const ReplayResult result = run(trace, options);
        EXPECT_EQ(result.counts.selected, belady.counts.selected);
        EXPECT_LE(result.counts.hits, belady.counts.hits);
        if (traits.always_inserts) {
          EXPECT_LE(result.counts.hits, demand.counts.hits);
        }
      }
    }
  }
}

TEST(Replay, TheSameTwice) {
  const MemoryTrace trace(trace::synthesize_bytes(small_synth(4)).value());
  const ReplayOptions options{
      .rules = {.policy = "class_lru"}, .slots = {20}, .counted = {.skip_tokens = 10}};
  const ReplayResult first = run(trace, options);
  const ReplayResult second = run(trace, options);
  EXPECT_EQ(first.counts.hits, second.counts.hits);
  EXPECT_EQ(first.counts.fills, second.counts.fills);
  EXPECT_EQ(first.modelled_us, second.modelled_us);
}

TEST(Replay, AShareOfOneFollowsTheTextByFills) {
  const MemoryTrace trace(trace::synthesize_bytes(small_synth(5)).value());
  ReplayOptions options{.rules = {.policy = "crf:8", .cpu_share = 1}, .slots = {24}};
  const ReplayResult result = run(trace, options);
  EXPECT_EQ(result.uploads(), 0);
  EXPECT_GT(result.counts.cpu, 0);
  EXPECT_GT(result.counts.fills, 0);
  EXPECT_EQ(result.upload_bytes(), Bytes{1 << 20} * result.counts.fills);
  options.rules.fills = false;
  EXPECT_EQ(run(trace, options).counts.fills, 0);
  EXPECT_LT(run(trace, options).counts.hits, result.counts.hits);
  options.rules.fills = true;
  options.counted.compat_zero_slots = true;
  EXPECT_EQ(run(trace, options).counts.fills, 0);
  EXPECT_LT(run(trace, options).counts.hits, result.counts.hits);
}

// All times are modelled, so this is exact: by the model that it decides by, `auto` is as fast as
// the best fixed share, whatever the machine. The tokens that fill the cache are left out: a fixed
// share pays for that in tokens that count nowhere.
TEST(Replay, AutoIsAsFastAsTheBestFixedShare) {
  const MemoryTrace trace(trace::synthesize_bytes(small_synth(6)).value());
  for (const double link_gb_per_s : {1.0, 6.0, 24.0, 100.0}) {
    for (const int64_t n_slots : {10, 40}) {
      SCOPED_TRACE(fmt::format("link {} GB/s, {} slots", link_gb_per_s, n_slots));
      ReplayOptions options{.rules = {.policy = "crf:32", .cpu_share = 0},
                            .slots = {n_slots},
                            .counted = {.skip_tokens = 300}};
      options.rules.rates = lanes::kTypicalRates;
      options.rules.rates->link_gb_per_s = link_gb_per_s;
      double best_us = 1e300;
      for (const double share : {0.0, 0.5, 1.0}) {
        options.rules.cpu_share = share;
        best_us = std::min(best_us, run(trace, options).modelled_us);
      }
      options.rules.cpu_share = {};
      EXPECT_LE(run(trace, options).modelled_us, 1.02 * best_us);
    }
  }
}

TEST(Replay, CompatLeavesOutWhatTheReferenceBypasses) {
  const MemoryTrace trace(trace::small_header(1, 8, 2),
                          {{0, 2, {0, 1}}, {0, 2, {2, 3, 4, 5}}, {0, 2, {0, 1}}, {0, 2, {6, 7}}});
  const ReplayResult result =
      run(trace, {.rules = {.policy = "class_lru", .cpu_share = 0},
                  .slots = {3},
                  .counted = {.skip_tokens = 0, .compat_zero_slots = true}});
  EXPECT_EQ(result.counts.lookups, 4);
  EXPECT_EQ(result.bypassed_lookups, 1);
  EXPECT_EQ(result.counts.hits, 2);
  EXPECT_EQ(result.uploads(), 4);
  // The bounds see the same lookups.
  EXPECT_EQ(run(trace, {.rules = {.policy = "belady", .cpu_share = 0},
                        .slots = {3},
                        .counted = {.skip_tokens = 0, .compat_zero_slots = true}})
                .counts.hits,
            2);
}

TEST(Replay, SaysWhatIsWrong) {
  const MemoryTrace trace = tokens({0, 1, 0});
  EXPECT_THAT(error_of(trace, {.rules = {.policy = "fifo", .cpu_share = 0}, .slots = {2}}),
              HasSubstr("fifo"));
  EXPECT_THAT(error_of(trace, {.rules = {.policy = "lru", .cpu_share = 0}, .slots = {}}),
              HasSubstr("0 groups, expected 1"));
  EXPECT_THAT(error_of(trace, {.rules = {.policy = "lru", .cpu_share = 0},
                               .slots = {9},
                               .counted = {.skip_tokens = 0}}),
              HasSubstr("9"));
  EXPECT_THAT(error_of(trace, {.rules = {.policy = "lru", .cpu_share = 0},
                               .slots = {2},
                               .counted = {.skip_tokens = -1}}),
              HasSubstr("-1"));
  EXPECT_THAT(error_of(trace, {.rules = {.policy = "lru", .cpu_share = 0},
                               .slots = {2},
                               .counted = {.skip_tokens = 3}}),
              HasSubstr("has 3 tokens, of which the first 3 are skipped"));
  EXPECT_THAT(error_of(trace, {.rules = {.policy = "lru", .cpu_share = 1.5}, .slots = {2}}),
              HasSubstr("1.5"));
  EXPECT_THAT(
      error_of(trace,
               {.rules = {.policy = "lru"}, .slots = {2}, .counted = {.compat_zero_slots = true}}),
      HasSubstr("compat-zero-slots"));
  EXPECT_NE(error_of(trace, {.rules = {.policy = "static", .cpu_share = 0}, .slots = {2}}),
            "no error");
  const std::atomic<bool> cancelled = true;
  const auto stopped =
      replay(trace.opener(),
             {.rules = {.policy = "lru", .cpu_share = 0}, .slots = {2}, .cancelled = &cancelled});
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code, ErrorCode::kCancelled);
}

TEST(Replay, ADamagedTraceIsAnError) {
  auto bytes = trace::synthesize_bytes(small_synth(7)).value();
  bytes.resize(bytes.size() - 3);
  for (const char* policy : {"lru", "belady"}) {
    const auto result = replay(MemoryTrace(bytes).opener(),
                               {.rules = {.policy = policy, .cpu_share = 0}, .slots = {20}});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  }
}

TEST(SlotsForTrace, DividesTheBudgetAsTheHeaderSays) {
  const trace::TraceHeader header = trace::synth_header({.n_layer = 6,
                                                         .n_expert = 10,
                                                         .experts_per_token = 2,
                                                         .n_groups = 3,
                                                         .n_devices = 2,
                                                         .alignment_bytes = 1,
                                                         .tensor_expert_bytes = {{100}}})
                                        .value();
  // Device 0 has groups 0 and 1 of two layers each, device 1 group 2; halves by split.
  EXPECT_EQ(slots_for_trace(header, {4000}, 0).value(), (std::vector<int64_t>{9, 9, 19}));
  EXPECT_EQ(slots_for_trace(header, {4000}, 2).value(), (std::vector<int64_t>{7, 7, 17}));
  EXPECT_EQ(slots_for_trace(header, {0}, 0).value(), (std::vector<int64_t>{0, 0, 0}));
  EXPECT_FALSE(slots_for_trace(header, {-1}, 0));
}

TEST(CountUses, CountsAnExpertOncePerLookup) {
  const MemoryTrace trace(trace::small_header(2, 4, 2),
                          {{1, 2, {0, 3, 3, 1}}, {0, 2, {0, 3}}, {1, 1, {3}}});
  auto reader = trace.opener()().value();
  EXPECT_EQ(count_uses(reader).value(),
            (std::vector<std::vector<uint64_t>>{{1, 0, 0, 1, 1, 1, 0, 2}}));
}

}  // namespace
}  // namespace hotset::sim
