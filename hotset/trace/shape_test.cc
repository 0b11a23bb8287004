#include "hotset/trace/shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>

#include "hotset/base/random.h"
#include "hotset/trace/trace_testing.h"

namespace hotset::trace {
namespace {

TraceShape shape_of(const TraceHeader& header, const std::vector<OwnedLookup>& lookups) {
  TraceShapeBuilder builder(header);
  for (const OwnedLookup& lookup : lookups) builder.add(lookup.view());
  return builder.shape();
}

TEST(TraceShape, OfNothing) {
  const TraceShape shape = shape_of(small_header(2, 4, 2), {});
  EXPECT_EQ(shape.total.n_lookups, 0);
  EXPECT_EQ(shape.total.n_experts, 8);
  EXPECT_EQ(shape.total.repeated_share, 0);
  EXPECT_EQ(shape.groups.at(0).n_uses, 0);
  EXPECT_EQ(shape.groups.at(0).reuse_distance.back(), 0);
}

TEST(TraceShape, CountsWhatIsThere) {
  // Layer 0: tokens {0,1}, {1,2}, {1,3}; layer 1: one token {0,3}.
  const TraceShape shape =
      shape_of(small_header(2, 4, 2), {{0, 2, {0, 1}}, {1, 2, {0, 3}}, {0, 2, {1, 2, 1, 3}}});
  EXPECT_EQ(shape.total.n_lookups, 3);
  EXPECT_EQ(shape.total.n_tokens, 3);
  EXPECT_EQ(shape.total.n_ids, 8);
  EXPECT_EQ(shape.total.n_experts_used, 6);
  EXPECT_EQ(shape.max_lookup_tokens, 2);
  EXPECT_EQ(shape.lookups_by_tokens, (std::array<int64_t, 4>{2, 1, 0, 0}));
  // Of the 4 experts of tokens 1 and 2 of layer 0, expert 1 was there before, twice.
  EXPECT_DOUBLE_EQ(shape.total.repeated_share, 0.5);
  EXPECT_DOUBLE_EQ(shape.layers.at(0).spread.top_tenth_share, 0.5);  // expert 1: 3 of 6
  EXPECT_DOUBLE_EQ(shape.layers.at(1).spread.effective_experts, 2);
  // Uses: 0 1 | 0' 3' | 1 2 3; expert 1 comes back after 0' and 3'.
  EXPECT_EQ(shape.groups.at(0).n_uses, 7);
  EXPECT_EQ(shape.groups.at(0).n_reuses, 1);
  EXPECT_EQ(shape.groups.at(0).reuse_distance.front(), 2);
}

TEST(TraceShape, GroupsHaveDistancesOfTheirOwn) {
  TraceHeader header = small_header(2, 4, 1);
  header.groups.push_back(header.groups[0]);
  header.groups[0].layers = {0};
  header.groups[1].layers = {1};
  const TraceShape shape =
      shape_of(header, {{0, 1, {0}}, {1, 1, {0}}, {1, 1, {1}}, {0, 1, {0}}, {1, 1, {0}}});
  EXPECT_EQ(shape.groups.at(0).n_reuses, 1);
  EXPECT_EQ(shape.groups.at(0).reuse_distance.back(), 0);
  EXPECT_EQ(shape.groups.at(1).n_reuses, 1);
  EXPECT_EQ(shape.groups.at(1).reuse_distance.back(), 1);
}

// Against a list that is searched from its front, over far more uses than the tree has times for.
TEST(TraceShape, ReuseDistancesAreThoseOfANaiveStack) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE(fmt::format("seed {}", kSeed));
  Random random(kSeed);
  const TraceHeader header = small_header(3, 7, 2);
  TraceShapeBuilder builder(header);
  std::list<int32_t> stack;
  std::vector<int64_t> distances;
  for (int i = 0; i < 2000; ++i) {
    OwnedLookup lookup{static_cast<int32_t>(random.below(3)), 2, {}};
    const auto first = static_cast<int32_t>(random.below(7));
    lookup.ids = {first,
                  static_cast<int32_t>((first + 1 + static_cast<int32_t>(random.below(6))) % 7)};
    builder.add(lookup.view());
    for (const int32_t id : lookup.ids) {
      const int32_t expert = lookup.layer * 7 + id;
      const auto found = std::find(stack.begin(), stack.end(), expert);
      if (found != stack.end()) {
        distances.push_back(std::distance(stack.begin(), found));
        stack.erase(found);
      }
      stack.push_front(expert);
    }
  }
  const GroupShape group = builder.shape().groups.at(0);
  ASSERT_EQ(group.n_reuses, std::ssize(distances));
  EXPECT_EQ(group.n_uses, 4000);
  std::ranges::sort(distances);
  for (size_t p = 0; p < kReusePercentiles.size(); ++p) {
    const int64_t wanted = (group.n_reuses * kReusePercentiles[p] + 99) / 100;
    EXPECT_EQ(group.reuse_distance[p], distances[wanted - 1]);
  }
}

}  // namespace
}  // namespace hotset::trace
