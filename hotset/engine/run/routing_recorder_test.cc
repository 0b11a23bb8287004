// What a recorder writes and keeps; tests/cache_counts_test.cc drives it by an engine.
#include "hotset/engine/run/routing_recorder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "hotset/base/temporary_folder.h"

namespace hotset::engine {
namespace {

trace::TraceHeader two_layers() {
  trace::TraceGroup group{.n_expert = 64,
                          .layers = {1, 2},
                          .group_host_bytes = {64 * 2 * 100},
                          .device_host_bytes = {64 * 2 * 100},
                          .tensor_expert_bytes = {{100}}};
  return {.n_layer = 4, .experts_per_token = 2, .groups = {group}};
}

std::vector<std::vector<int32_t>> read_all(Result<trace::TraceReader> reader) {
  EXPECT_TRUE(reader) << reader.error().message;
  std::vector<std::vector<int32_t>> lookups;
  while (reader) {
    const auto lookup = reader->next();
    EXPECT_TRUE(lookup) << lookup.error().message;
    if (!lookup || *lookup == nullptr) break;
    lookups.emplace_back((*lookup)->ids.begin(), (*lookup)->ids.end());
    lookups.back().insert(lookups.back().begin(), (*lookup)->layer);
  }
  return lookups;
}

using Lookups = std::vector<std::vector<int32_t>>;

TEST(RoutingRecorder, WritesTheLayersOfTheHeaderFromBeginToEnd) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "trace.mct";
  RoutingRecorder recorder({.path = path});
  const RoutingObserver observe = recorder.observer();
  const std::vector<int32_t> one = {5, 6};
  const std::vector<int32_t> two = {7, 8, 9, 10};
  observe(1, one, 1);  // of a warm-up
  ASSERT_TRUE(recorder.begin(two_layers(), {}));
  observe(0, one, 1);  // of no group
  observe(1, one, 1);
  observe(2, two, 2);
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_TRUE(recorder.end());
  observe(1, one, 1);
  EXPECT_TRUE(recorder.end());
  EXPECT_EQ(read_all(trace::TraceReader::open(path)), (Lookups{{1, 5, 6}, {2, 7, 8, 9, 10}}));
  EXPECT_EQ(recorder.n_kept(), 0);
}

TEST(RoutingRecorder, KeepsTheLastLookupsOfItsLayers) {
  RoutingRecorder recorder({.most_kept = mib(2)});
  const std::vector<int32_t> layers = {2};
  ASSERT_TRUE(recorder.begin(two_layers(), layers));
  const RoutingObserver observe = recorder.observer();
  std::vector<int32_t> ids(1024);
  Lookups expected;
  for (int32_t i = 0; i < 2000; ++i) {
    ids[0] = i % 64;
    ids[1] = i / 64;
    observe(1, ids, 512);
    observe(2, ids, 512);
    expected.push_back(ids);
    expected.back().insert(expected.back().begin(), 2);
  }
  EXPECT_TRUE(recorder.was_cut());
  EXPECT_EQ(recorder.n_recorded(), 2000);
  // Two chunks of 1 MiB, the last one not full.
  EXPECT_GT(recorder.n_kept(), 250);
  EXPECT_LT(recorder.n_kept(), 520);
  const Lookups kept = read_all(recorder.kept());
  ASSERT_EQ(std::ssize(kept), recorder.n_kept());
  EXPECT_TRUE(std::equal(kept.rbegin(), kept.rend(), expected.rbegin()));
  EXPECT_EQ(read_all(recorder.kept()), kept);  // again
}

TEST(RoutingRecorder, SaysWhatCannotBeWritten) {
  const test::TemporaryFolder folder;
  RoutingRecorder nowhere({.path = folder / "absent" / "trace.mct"});
  const Status status = nowhere.begin(two_layers(), {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kIo);

  RoutingRecorder recorder({.path = folder / "trace.mct"});
  ASSERT_TRUE(recorder.begin(two_layers(), {}));
  const std::vector<int32_t> wrong = {64, 0};
  recorder.observer()(1, wrong, 1);
  EXPECT_FALSE(recorder.status());
  EXPECT_FALSE(recorder.end());
}

}  // namespace
}  // namespace hotset::engine
