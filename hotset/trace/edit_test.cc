#include "hotset/trace/edit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "hotset/trace/trace_testing.h"

namespace hotset::trace {
namespace {

using ::testing::HasSubstr;

// `n_steps` token steps over two layers; the ids tell step and layer.
std::vector<OwnedLookup> steps(int32_t first, int32_t n_steps) {
  std::vector<OwnedLookup> lookups;
  for (int32_t step = first; step < first + n_steps; ++step) {
    for (int32_t layer = 0; layer < 2; ++layer) lookups.push_back({layer, 1, {2 * step + layer}});
  }
  return lookups;
}

std::vector<OwnedLookup> read_trace(const std::string& path) {
  auto reader = TraceReader::open(path);
  EXPECT_TRUE(reader);
  return reader ? all_lookups(*reader).value() : std::vector<OwnedLookup>{};
}

const TraceHeader kHeader = small_header(2, 64, 1);

TEST(CutTrace, KeepsARangeOfTokens) {
  TestFolder folder;
  const std::string in = folder.trace("in.mct", kHeader, steps(0, 10));
  const auto counts = cut_trace(in, folder.file("out.mct"), {.first_token = 3, .n_tokens = 4});
  ASSERT_TRUE(counts) << counts.error().message;
  EXPECT_EQ(counts->n_lookups, 8);
  EXPECT_EQ(counts->n_ids, 8);
  EXPECT_EQ(read_trace(folder.file("out.mct")), steps(3, 4));
}

TEST(CutTrace, KeepsTheRestAndMayReplaceItsInput) {
  TestFolder folder;
  const std::string in = folder.trace("in.mct", kHeader, steps(0, 10));
  ASSERT_TRUE(cut_trace(in, in, {.first_token = 8}));
  EXPECT_EQ(read_trace(in), steps(8, 2));
  EXPECT_EQ(folder.n_files(), 1U);
}

TEST(CutTrace, NeverSplitsALookup) {
  TestFolder folder;
  const TraceHeader header = small_header(1, 8, 1);
  const std::string in =
      folder.trace("in.mct", header, {{0, 1, {0, 1, 2}}, {0, 1, {3, 4, 5}}, {0, 1, {6}}});
  ASSERT_TRUE(cut_trace(in, folder.file("out.mct"), {.first_token = 1, .n_tokens = 4}));
  EXPECT_EQ(read_trace(folder.file("out.mct")), (std::vector<OwnedLookup>{{0, 1, {3, 4, 5}}}));
}

TEST(CutTrace, KeepsSomeLayers) {
  TestFolder folder;
  const std::string in = folder.trace("in.mct", kHeader, steps(0, 2));
  ASSERT_TRUE(cut_trace(in, folder.file("out.mct"), {.layers = {1}}));
  EXPECT_EQ(read_trace(folder.file("out.mct")),
            (std::vector<OwnedLookup>{{1, 1, {1}}, {1, 1, {3}}}));
  const auto reader = TraceReader::open(folder.file("out.mct")).value();
  EXPECT_EQ(reader.header().groups.at(0).layers, std::vector<uint32_t>{1});
  EXPECT_EQ(reader.header().groups.at(0).group_host_bytes, Bytes{6400});
  EXPECT_EQ(reader.header().groups.at(0).device_host_bytes, Bytes{6400});
}

TEST(CutTrace, SavesTheStartOfADamagedTrace) {
  TestFolder folder;
  const std::string in = folder.trace("in.mct", kHeader, steps(0, 10));
  std::filesystem::resize_file(in, std::filesystem::file_size(in) - 2);
  const auto all = cut_trace(in, folder.file("out.mct"), {});
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(folder.n_files(), 1U);
  ASSERT_TRUE(cut_trace(in, folder.file("out.mct"), {.n_tokens = 9}));
  EXPECT_EQ(read_trace(folder.file("out.mct")), steps(0, 9));
}

TEST(CutTrace, RefusesWhatLeavesNothing) {
  TestFolder folder;
  const std::string in = folder.trace("in.mct", kHeader, steps(0, 3));
  const auto error = [&](const CutOptions& options) {
    return cut_trace(in, folder.file("out.mct"), options).error();
  };
  EXPECT_EQ(error({.first_token = -1}).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(error({.n_tokens = -1}).code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(error({.first_token = 3}).message, HasSubstr("no lookups from token 3"));
  EXPECT_THAT(error({.layers = {2}}).message, HasSubstr("layer 2"));
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(error({.cancelled = &cancelled}).code, ErrorCode::kCancelled);
  EXPECT_EQ(folder.n_files(), 1U);
}

TEST(MergeTraces, Concatenates) {
  TestFolder folder;
  const std::string a = folder.trace("a.mct", kHeader, steps(0, 3));
  const std::string b = folder.trace("b.mct", kHeader, steps(3, 2));
  const auto counts = merge_traces({a, b}, folder.file("out.mct"), {});
  ASSERT_TRUE(counts) << counts.error().message;
  EXPECT_EQ(counts->n_lookups, 10);
  EXPECT_EQ(read_trace(folder.file("out.mct")), steps(0, 5));
}

TEST(MergeTraces, InterleavesSteps) {
  TestFolder folder;
  const std::string a = folder.trace("a.mct", kHeader, steps(0, 5));
  const std::string b = folder.trace("b.mct", kHeader, steps(10, 2));
  ASSERT_TRUE(merge_traces({a, b}, folder.file("out.mct"),
                           {.mode = MergeMode::kInterleave, .interleave_steps = 2}));
  std::vector<OwnedLookup> expected;
  for (const auto& part : {steps(0, 2), steps(10, 2), steps(2, 3)}) {
    expected.insert(expected.end(), part.begin(), part.end());
  }
  EXPECT_EQ(read_trace(folder.file("out.mct")), expected);
}

TEST(MergeTraces, JoinsLookupsToBatches) {
  TestFolder folder;
  const std::string a = folder.trace("a.mct", kHeader, steps(0, 2));
  const std::string b = folder.trace("b.mct", kHeader, steps(10, 1));
  ASSERT_TRUE(merge_traces({a, b}, folder.file("out.mct"), {.mode = MergeMode::kBatch}));
  EXPECT_EQ(read_trace(folder.file("out.mct")),
            (std::vector<OwnedLookup>{{0, 1, {0, 20}}, {1, 1, {1, 21}}, {0, 1, {2}}, {1, 1, {3}}}));
}

TEST(MergeTraces, RefusesLookupsThatAreOutOfStep) {
  TestFolder folder;
  const std::string a = folder.trace("a.mct", kHeader, steps(0, 2));
  const std::string b = folder.trace("b.mct", kHeader, {{1, 1, {0}}});
  const auto merged = merge_traces({a, b}, folder.file("out.mct"), {.mode = MergeMode::kBatch});
  ASSERT_FALSE(merged);
  EXPECT_EQ(merged.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(merged.error().message, HasSubstr("a batch needs equal steps"));
  EXPECT_EQ(folder.n_files(), 2U);
}

TEST(MergeTraces, RefusesTracesOfAnotherModel) {
  TestFolder folder;
  const std::string a = folder.trace("a.mct", kHeader, steps(0, 2));
  const std::string b = folder.trace("b.mct", small_header(2, 32, 1), {});
  const auto merged = merge_traces({a, b}, folder.file("out.mct"), {});
  ASSERT_FALSE(merged);
  EXPECT_THAT(merged.error().message, HasSubstr("64 experts and 32 in group 0"));
  EXPECT_EQ(merge_traces({}, folder.file("out.mct"), {}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(merge_traces({a}, folder.file("out.mct"), {.interleave_steps = 0}).error().code,
            ErrorCode::kInvalidArgument);
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(merge_traces({a}, folder.file("out.mct"), {.cancelled = &cancelled}).error().code,
            ErrorCode::kCancelled);
}

}  // namespace
}  // namespace hotset::trace
