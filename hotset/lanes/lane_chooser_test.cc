#include "hotset/lanes/lane_chooser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/lanes/lanes_testing.h"

// Every operator new of the program is counted.
namespace {

std::atomic<int64_t> n_allocations = 0;

void* counted_allocation(size_t n_bytes) {
  ++n_allocations;
  if (void* memory = std::malloc(n_bytes == 0 ? 1 : n_bytes)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t n_bytes) { return counted_allocation(n_bytes); }
void* operator new[](size_t n_bytes) { return counted_allocation(n_bytes); }
void* operator new(size_t n_bytes, const std::nothrow_t&) noexcept {
  ++n_allocations;
  return std::malloc(n_bytes == 0 ? 1 : n_bytes);
}
void* operator new[](size_t n_bytes, const std::nothrow_t& nothrow) noexcept {
  return operator new(n_bytes, nothrow);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace hotset::lanes {

int64_t allocations_so_far() { return n_allocations; }

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An upload of a 1000-byte expert takes 10 + 100 us alone and 10 + 125 beside the CPU; the CPU
// takes 5 + 60 us an expert alone and 5 + 80 beside the link; rows 2 us; uploaded pairs 3 + 7 us
// each.
LaneCosts example_costs() {
  return {.upload_solo_us = {10, 0.1},
          .upload_concurrent_us = {10, 0.125},
          .cpu_solo = {.turn_us = 5, .expert_us = {50, 10}},
          .cpu_concurrent = {.turn_us = 5, .expert_us = {70, 10}},
          .rows_us = 2,
          .pairs = {.turn_us = 3, .expert_us = {5, 2}}};
}

LookupWork example_work() { return {.expert_bytes = Bytes{1000}, .shared_us = 20, .hit_us = 30}; }

// The formula of design.md section 5, u by u and sum by sum, in long double.
struct NaiveSplit {
  long double device_us = 0;
  long double cpu_us = 0;
  long double cost_us = 0;
};

std::vector<uint32_t> naive_order(const LaneCosts& costs,
                                  const std::vector<UploadCandidate>& misses) {
  std::vector<uint32_t> order(misses.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto rank = [&](uint32_t i) {
    return costs.cpu_concurrent.expert_us.at(misses[i].n_tokens) + misses[i].value_us;
  };
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (rank(a) != rank(b)) return rank(a) > rank(b);
    return misses[a].expert < misses[b].expert;
  });
  return order;
}

NaiveSplit naive_split(const LaneCosts& costs, const LookupWork& work,
                       const std::vector<UploadCandidate>& misses,
                       const std::vector<uint32_t>& order, size_t u) {
  const size_t n = misses.size();
  NaiveSplit split;
  long double link = 0;
  long double pairs = 0;
  long double value = 0;
  if (u > 0) {
    const LinearCost& line = u == n ? costs.upload_solo_us : costs.upload_concurrent_us;
    link = line.fixed + static_cast<long double>(u) *
                            static_cast<long double>(work.expert_bytes.count) * line.per_unit;
    pairs = costs.pairs.turn_us;
  }
  for (size_t i = 0; i < u; ++i) {
    pairs += costs.pairs.expert_us.at(misses[order[i]].n_tokens);
    value += misses[order[i]].value_us;
  }
  if (u < n) {
    const ExpertCost& cpu = u == 0 ? costs.cpu_solo : costs.cpu_concurrent;
    split.cpu_us = static_cast<long double>(cpu.turn_us) + costs.rows_us;
    for (size_t i = u; i < n; ++i) split.cpu_us += cpu.expert_us.at(misses[order[i]].n_tokens);
  }
  split.device_us = std::max(static_cast<long double>(work.shared_us) + work.hit_us, link) + pairs;
  split.cost_us = std::max(split.device_us, split.cpu_us) - value;
  return split;
}

TEST(LaneChooser, TakesTheSplitWorkedOutByHand) {
  LaneChooser chooser(8);
  const std::vector<UploadCandidate> misses = {
      {.expert = 3}, {.expert = 7, .value_us = 25}, {.expert = 9}};
  const auto choice = chooser.choose(example_costs(), example_work(), misses);
  ASSERT_TRUE(choice) << choice.error().message;
  // u=0: device 50; cpu 5 + 3 * 60 + 2 = 187
  // u=1: device max(50, 135) + 3 + 7 = 145; cpu 5 + 2 * 80 + 2 = 167; value 25: 142
  // u=2: device max(50, 260) + 3 + 14 = 277; cpu 5 + 80 + 2 = 87; value 25: 252
  // u=3: device max(50, 310) + 3 + 21 = 334; cpu 0; value 25: 309
  EXPECT_EQ(choice->n_uploads, 1U);
  EXPECT_THAT(choice->uploads(), ElementsAre(1));
  EXPECT_THAT(choice->cpu(), ElementsAre(0, 2));
  ASSERT_EQ(choice->candidates.size(), 4U);
  EXPECT_DOUBLE_EQ(choice->candidates[0].device_us, 50);
  EXPECT_DOUBLE_EQ(choice->candidates[0].cpu_us, 187);
  EXPECT_DOUBLE_EQ(choice->candidates[0].cost_us, 187);
  EXPECT_DOUBLE_EQ(choice->candidates[1].device_us, 145);
  EXPECT_DOUBLE_EQ(choice->candidates[1].cpu_us, 167);
  EXPECT_DOUBLE_EQ(choice->candidates[1].value_us, 25);
  EXPECT_DOUBLE_EQ(choice->candidates[1].cost_us, 142);
  EXPECT_DOUBLE_EQ(choice->candidates[2].cost_us, 252);
  EXPECT_DOUBLE_EQ(choice->candidates[3].cost_us, 309);
  EXPECT_EQ(choice->candidates[0].binding, BindingLane::kCpu);
  EXPECT_EQ(choice->candidates[1].binding, BindingLane::kCpu);
  EXPECT_EQ(choice->candidates[2].binding, BindingLane::kLink);
  EXPECT_EQ(choice->candidates[3].binding, BindingLane::kLink);
}

TEST(LaneChooser, SaysWhy) {
  LaneChooser chooser(8);
  const std::vector<UploadCandidate> misses = {{.expert = 3}, {.expert = 7, .value_us = 25}};
  const auto choice = chooser.choose(example_costs(), example_work(), misses);
  ASSERT_TRUE(choice);
  EXPECT_EQ(describe(*choice),
            "1 of 2 misses uploaded: J 120.0 us, done at 145.0 us, bound by link\n"
            "  u=0: J 127.0 us = max(device 50.0, cpu 127.0) - value 0.0, cpu\n"
            "* u=1: J 120.0 us = max(device 145.0, cpu 87.0) - value 25.0, link\n"
            "  u=2: J 202.0 us = max(device 227.0, cpu 0.0) - value 25.0, link");
  EXPECT_EQ(describe(LaneChoice{}), "no choice was made");
  for (const auto& [lane, name] :
       {std::pair{BindingLane::kHits, "hits"}, std::pair{BindingLane::kLink, "link"},
        std::pair{BindingLane::kCpu, "cpu"}}) {
    EXPECT_EQ(binding_lane_name(lane), name);
  }
}

TEST(LaneChooser, HasNothingToChooseWithoutMisses) {
  LaneChooser chooser(0);
  const auto choice = chooser.choose(example_costs(), example_work(), {});
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->n_uploads, 0U);
  EXPECT_THAT(choice->order, IsEmpty());
  EXPECT_DOUBLE_EQ(choice->cost().cost_us, 50);
  EXPECT_EQ(choice->cost().binding, BindingLane::kHits);
}

TEST(LaneChooser, LeavesAllToTheCpuOnASlowLinkAndNothingOnAFastOne) {
  LaneChooser chooser(16);
  const std::vector<UploadCandidate> misses(16);
  LaneCosts costs = example_costs();
  costs.upload_solo_us.per_unit = costs.upload_concurrent_us.per_unit = 100;
  EXPECT_EQ(chooser.choose(costs, example_work(), misses)->n_uploads, 0U);
  costs.upload_solo_us = costs.upload_concurrent_us = {0, 1e-6};
  costs.pairs = {};
  EXPECT_EQ(chooser.choose(costs, example_work(), misses)->n_uploads, 16U);
}

TEST(LaneChooser, UploadsWhatIsWorthItLaterEvenIfThisLookupWaits) {
  LaneChooser chooser(4);
  std::vector<UploadCandidate> misses = {{.expert = 1}, {.expert = 2}};
  EXPECT_EQ(chooser.choose(example_costs(), example_work(), misses)->n_uploads, 0U);
  misses[1].value_us = 1000;
  const auto choice = chooser.choose(example_costs(), example_work(), misses);
  EXPECT_EQ(choice->n_uploads, 1U);
  EXPECT_THAT(choice->uploads(), ElementsAre(1));
}

TEST(LaneChooser, CreditsAnUploadOnlyWithWhatAFillWouldNotBring) {
  const std::vector<UploadCandidate> misses = {{.expert = 1, .value_us = 150}};
  // By itself the upload takes 110 + 10 us where the CPU takes 67, and is worth it.
  auto choice = LaneChooser(1).choose(example_costs(), example_work(), misses);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->n_uploads, 1U);
  // While the CPU works and the layer goes on, the link brings the expert as a fill.
  LookupWork work = example_work();
  work.fill_us = 110;
  work.other_us = 50;
  LaneChooser chooser(1);
  choice = chooser.choose(example_costs(), work, misses);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->n_uploads, 0U);
  EXPECT_DOUBLE_EQ(choice->candidates[0].value_us, 150);
  // In part, if there is time for a part only; not at all behind others that are on their way.
  work.other_us = 0;
  choice = chooser.choose(example_costs(), work, misses);
  ASSERT_TRUE(choice);
  EXPECT_DOUBLE_EQ(choice->candidates[0].value_us, 150.0 * 67 / 110);
  work.fill_backlog_us = 67;
  choice = chooser.choose(example_costs(), work, misses);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->candidates[0].value_us, 0);
  EXPECT_EQ(choice->n_uploads, 1U);
}

TEST(LaneChooser, PrefersFewerUploadsAndLowerExpertsAmongEquals) {
  LaneChooser chooser(4);
  // Nothing costs anything: every split is the same.
  const std::vector<UploadCandidate> equal = {
      {.expert = 9}, {.expert = 4}, {.expert = 4}, {.expert = 6}};
  const auto choice = chooser.choose({}, {.expert_bytes = Bytes{1}}, equal);
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->n_uploads, 0U);
  EXPECT_THAT(choice->order, ElementsAre(1, 2, 3, 0));
}

TEST(LaneChooser, NeverUploadsMoreThanTheSlotsAllow) {
  LaneChooser chooser(4);
  const std::vector<UploadCandidate> misses = {{.expert = 1, .value_us = 500},
                                               {.expert = 2, .value_us = 900},
                                               {.expert = 3, .value_us = 700}};
  for (size_t max_uploads = 0; max_uploads <= 4; ++max_uploads) {
    LookupWork work = example_work();
    work.max_uploads = max_uploads;
    const auto choice = chooser.choose(example_costs(), work, misses);
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->n_uploads, std::min<size_t>(max_uploads, 3));
    EXPECT_EQ(choice->candidates.size(), std::min<size_t>(max_uploads, 3) + 1);
    EXPECT_THAT(choice->order, ElementsAre(1, 2, 0));
  }
}

TEST(LaneChooser, UsesTheConcurrentRatesOnlyWhereBothLanesRun) {
  LaneChooser chooser(4);
  const std::vector<UploadCandidate> misses(3);
  const auto costs_at = [&](LaneCosts costs) {
    const auto choice = chooser.choose(costs, example_work(), misses);
    std::vector<double> all;
    for (const SplitCost& split : choice->candidates) all.push_back(split.cost_us);
    return all;
  };
  const std::vector<double> before = costs_at(example_costs());
  LaneCosts costs = example_costs();
  costs.upload_concurrent_us.per_unit = 9;
  costs.cpu_concurrent.turn_us = 5000;
  const std::vector<double> after = costs_at(costs);
  EXPECT_EQ(after[0], before[0]);
  EXPECT_NE(after[1], before[1]);
  EXPECT_NE(after[2], before[2]);
  EXPECT_EQ(after[3], before[3]);
}

// Whole numbers are exact in either order of summation, so that choice and ties must agree exactly.
TEST(LaneChooser, EqualsTheNaiveFormulaExactlyOnWholeNumbers) {
  constexpr uint64_t kSeed = 20240117;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const auto whole = [&](uint64_t below) { return static_cast<double>(random.below(below)); };
  LaneChooser chooser(40);
  for (int round = 0; round < 20000; ++round) {
    const uint64_t scale = 1 + random.below(100);
    const LaneCosts costs = {.upload_solo_us = {whole(scale), whole(3)},
                             .upload_concurrent_us = {whole(scale), whole(3)},
                             .cpu_solo = {whole(scale), {whole(scale), whole(4)}},
                             .cpu_concurrent = {whole(scale), {whole(scale), whole(4)}},
                             .rows_us = whole(4),
                             .pairs = {whole(4), {whole(4), whole(3)}}};
    std::vector<UploadCandidate> misses(random.below(round % 10 == 0 ? 41 : 9));
    for (UploadCandidate& miss : misses) {
      miss = {.expert = static_cast<int32_t>(random.below(16)),
              .n_tokens = static_cast<int32_t>(1 + random.below(4)),
              .value_us = whole(scale)};
    }
    const LookupWork work = {.expert_bytes = Bytes{static_cast<int64_t>(1 + random.below(50))},
                             .shared_us = whole(scale),
                             .hit_us = whole(scale),
                             .max_uploads = random.below(4) == 0 ? random.below(10) : SIZE_MAX};
    const auto choice = chooser.choose(costs, work, misses);
    ASSERT_TRUE(choice) << choice.error().message;

    const std::vector<uint32_t> order = naive_order(costs, misses);
    ASSERT_THAT(choice->order, testing::ElementsAreArray(order));
    const size_t max_uploads = std::min(misses.size(), work.max_uploads);
    ASSERT_EQ(choice->candidates.size(), max_uploads + 1);
    size_t best = 0;
    long double best_us = std::numeric_limits<long double>::infinity();
    for (size_t u = 0; u <= max_uploads; ++u) {
      const NaiveSplit naive = naive_split(costs, work, misses, order, u);
      const SplitCost& split = choice->candidates[u];
      ASSERT_EQ(split.device_us, static_cast<double>(naive.device_us)) << "u " << u;
      ASSERT_EQ(split.cpu_us, static_cast<double>(naive.cpu_us)) << "u " << u;
      ASSERT_EQ(split.cost_us, static_cast<double>(naive.cost_us)) << "u " << u;
      ASSERT_EQ(split.binding == BindingLane::kCpu, naive.cpu_us > naive.device_us);
      if (naive.cost_us < best_us) {
        best_us = naive.cost_us;
        best = u;
      }
    }
    ASSERT_EQ(choice->n_uploads, best);
  }
}

TEST(LaneChooser, IsTheArgminOfTheNaiveFormulaOnRealNumbers) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Random random(kSeed);
  const auto real = [&](double most) { return most * random.uniform(); };
  LaneChooser chooser(512);
  for (int round = 0; round < 3000; ++round) {
    const LaneCosts costs = {.upload_solo_us = {real(30), real(1e-3)},
                             .upload_concurrent_us = {real(30), real(1e-3)},
                             .cpu_solo = {real(20), {real(300), real(50)}},
                             .cpu_concurrent = {real(20), {real(300), real(50)}},
                             .rows_us = real(10),
                             .pairs = {real(10), {real(30), real(10)}}};
    std::vector<UploadCandidate> misses(random.below(round % 50 == 0 ? 513 : 17));
    for (size_t i = 0; i < misses.size(); ++i) {
      misses[i] = {.expert = static_cast<int32_t>(i),
                   .n_tokens = static_cast<int32_t>(1 + random.below(32)),
                   .value_us = real(500)};
    }
    const LookupWork work = {
        .expert_bytes = Bytes{static_cast<int64_t>(1 + random.below(10'000'000))},
        .shared_us = real(100),
        .hit_us = real(200)};
    const auto choice = chooser.choose(costs, work, misses);
    ASSERT_TRUE(choice) << choice.error().message;
    const std::vector<uint32_t> order = naive_order(costs, misses);
    ASSERT_THAT(choice->order, testing::ElementsAreArray(order));
    long double best_us = std::numeric_limits<long double>::infinity();
    for (size_t u = 0; u <= misses.size(); ++u) {
      const NaiveSplit naive = naive_split(costs, work, misses, order, u);
      const auto scale = static_cast<double>(std::max(naive.device_us, naive.cpu_us)) + 1e6;
      ASSERT_NEAR(choice->candidates[u].cost_us, static_cast<double>(naive.cost_us), 1e-12 * scale);
      best_us = std::min(best_us, naive.cost_us);
    }
    ASSERT_NEAR(choice->cost().cost_us, static_cast<double>(best_us),
                1e-12 * (std::abs(static_cast<double>(best_us)) + 1e6));
  }
}

TEST(LaneChooser, AllocatesNothing) {
  LaneChooser chooser(64);
  std::vector<UploadCandidate> misses(64);
  for (size_t i = 0; i < misses.size(); ++i) {
    misses[i] = {.expert = static_cast<int32_t>(i), .value_us = static_cast<double>(i * 37 % 64)};
  }
  const LaneCosts costs = example_costs();
  const LookupWork work = example_work();
  const int64_t before = n_allocations;
  size_t n_uploads = 0;
  for (size_t n = 0; n <= misses.size(); ++n) {
    n_uploads += chooser.choose(costs, work, std::span(misses).first(n))->n_uploads;
  }
  const int64_t after = n_allocations;
  EXPECT_EQ(after - before, 0);
  EXPECT_GT(n_uploads, 0U);
}

TEST(LaneChooser, RefusesWhatIsOutsideItsRange) {
  LaneChooser chooser(2);
  const auto message = [&](const LaneCosts& costs, const LookupWork& work,
                           const std::vector<UploadCandidate>& misses) {
    const auto choice = chooser.choose(costs, work, misses);
    if (choice) return std::string("accepted");
    EXPECT_EQ(choice.error().code, ErrorCode::kInvalidArgument);
    return choice.error().message;
  };
  const LaneCosts costs = example_costs();
  const LookupWork work = example_work();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();

  EXPECT_EQ(message(costs, work, {{}, {}}), "accepted");
  EXPECT_EQ(message(costs, work, {{}, {}, {}}), "misses: found 3, expected at most 2");
  EXPECT_THAT(message(costs, work, {{}, {.expert = -1}}), HasSubstr("miss 1: found expert -1"));
  EXPECT_THAT(message(costs, work, {{.n_tokens = 0}}), HasSubstr("n_tokens 0"));
  for (const double bad : {-1.0, nan, infinity, 1e30}) {
    EXPECT_THAT(message(costs, work, {{.value_us = bad}}), HasSubstr("value_us"));
    LookupWork bad_work = work;
    bad_work.shared_us = bad;
    EXPECT_THAT(message(costs, bad_work, {}), HasSubstr("shared_us, hit_us: found"));
    bad_work = work;
    bad_work.hit_us = bad;
    EXPECT_THAT(message(costs, bad_work, {}), HasSubstr("shared_us, hit_us: found"));
    LaneCosts bad_costs = costs;
    bad_costs.upload_solo_us.fixed = bad;
    EXPECT_THAT(message(bad_costs, work, {}), HasSubstr("upload_solo_us.fixed: found"));
  }
  LookupWork no_bytes = work;
  no_bytes.expert_bytes = Bytes{0};
  EXPECT_EQ(message(costs, no_bytes, {}), "expert_bytes: found 0, expected 1 or more");
}

TEST(LaneChooser, StaysFiniteAtTheLargestCosts) {
  LaneChooser chooser(8);
  const LinearCost most = {kMaxCost, kMaxCost};
  const LaneCosts costs = {.upload_solo_us = most,
                           .upload_concurrent_us = most,
                           .cpu_solo = {kMaxCost, most},
                           .cpu_concurrent = {kMaxCost, most},
                           .rows_us = kMaxCost,
                           .pairs = {kMaxCost, most}};
  const std::vector<UploadCandidate> misses(
      8, {.expert = INT32_MAX, .n_tokens = INT32_MAX, .value_us = kMaxCost});
  const auto choice = chooser.choose(
      costs, {.expert_bytes = Bytes{INT64_MAX}, .shared_us = kMaxCost, .hit_us = kMaxCost}, misses);
  ASSERT_TRUE(choice);
  for (const SplitCost& split : choice->candidates) EXPECT_TRUE(std::isfinite(split.cost_us));
}

}  // namespace
}  // namespace hotset::lanes
