#include "hotset/engine/kv/kv_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include "hotset/base/random.h"

namespace hotset::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The same promises, kept in the simplest way: what each used cell holds, everything else found by
// looking.
class NaiveCells {
 public:
  explicit NaiveCells(int32_t n_cells) : n_cells_(n_cells) {}

  struct Cell {
    int32_t position = 0;
    std::set<SequenceId> sequences;
  };

  std::vector<int32_t> free_cells() const {
    std::vector<int32_t> free;
    for (int32_t cell = 0; cell < n_cells_; ++cell) {
      if (!used.contains(cell)) free.push_back(cell);
    }
    return free;
  }
  void remove(SequenceId sequence, int32_t begin, int32_t end) {
    for (auto& [number, cell] : used) {
      if (cell.position >= begin && cell.position < end) cell.sequences.erase(sequence);
    }
    std::erase_if(used, [](const auto& entry) { return entry.second.sequences.empty(); });
  }
  void copy(SequenceId from, SequenceId to, int32_t begin, int32_t end) {
    for (auto& [number, cell] : used) {
      if (cell.position >= begin && cell.position < end && cell.sequences.contains(from)) {
        cell.sequences.insert(to);
      }
    }
  }
  int32_t last_position(SequenceId sequence) const {
    int32_t last = -1;
    for (const auto& [number, cell] : used) {
      if (cell.sequences.contains(sequence)) last = std::max(last, cell.position);
    }
    return last;
  }

  std::map<int32_t, Cell> used;

 private:
  int32_t n_cells_;
};

void expect_same(const KvCells& cells, const NaiveCells& naive) {
  ASSERT_EQ(cells.n_used(), static_cast<int32_t>(naive.used.size()));
  ASSERT_EQ(cells.used_end(), naive.used.empty() ? 0 : naive.used.rbegin()->first + 1);
  const std::vector<int32_t> free = naive.free_cells();
  for (const size_t n : {size_t{0}, size_t{1}, free.size() / 2, free.size()}) {
    if (n > free.size()) continue;
    std::vector<int32_t> found(n, -1);
    ASSERT_TRUE(cells.find_free(found));
    ASSERT_TRUE(std::ranges::equal(found, std::span(free).first(n)));
  }
  std::vector<int32_t> too_many(free.size() + 1);
  const Status status = cells.find_free(too_many);
  ASSERT_FALSE(status);
  ASSERT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  for (SequenceId sequence = 0; sequence < kMaxSequences; ++sequence) {
    ASSERT_EQ(cells.last_position(sequence), naive.last_position(sequence));
    std::multiset<int32_t> positions;
    for (int32_t cell = 0; cell < cells.n_cells(); ++cell) {
      const auto at = naive.used.find(cell);
      const bool belongs = at != naive.used.end() && at->second.sequences.contains(sequence);
      ASSERT_EQ(cells.belongs_to(cell, sequence), belongs);
      if (!belongs) {
        ASSERT_FALSE(cells.visible(cell, sequence, std::numeric_limits<int32_t>::max()));
        continue;
      }
      const int32_t position = at->second.position;
      positions.insert(position);
      ASSERT_EQ(cells.position(cell), position);
      ASSERT_TRUE(cells.visible(cell, sequence, position));
      ASSERT_TRUE(cells.visible(cell, sequence, position + 1));
      ASSERT_FALSE(cells.visible(cell, sequence, position - 1));
    }
    std::multiset<int32_t> in_order;
    int32_t last = -1;
    for (const int32_t cell : cells.cells_of(sequence)) {
      ASSERT_GE(cells.position(cell), last);
      last = cells.position(cell);
      in_order.insert(last);
    }
    ASSERT_EQ(in_order, positions);
  }
}

// One random operation on both.
void step(KvCells& cells, NaiveCells& naive, Random& random, int32_t n_sequences) {
  const auto sequence = [&] {
    // The highest number too, where bits could be lost.
    const auto n = static_cast<SequenceId>(random.below(static_cast<uint64_t>(n_sequences)));
    return n == n_sequences - 1 ? kMaxSequences - 1 : n;
  };
  const auto position = [&] { return static_cast<int32_t>(random.below(24)) - 2; };
  switch (random.below(4)) {
    case 0:
    case 1: {
      const std::vector<int32_t> free = naive.free_cells();
      if (free.empty()) return;
      // Not only the lowest: loaded states may fill cells in any order.
      const int32_t cell = random.below(3) > 0 ? free.front() : free[random.below(free.size())];
      const int32_t at = std::max(0, position());
      const SequenceId s = sequence();
      cells.occupy(cell, at, s);
      naive.used[cell] = {.position = at, .sequences = {s}};
      return;
    }
    case 2: {
      const SequenceId s = sequence();
      const int32_t begin = position();
      const int32_t end = random.below(4) == 0 ? std::numeric_limits<int32_t>::max() : position();
      cells.remove(s, begin, end);
      naive.remove(s, begin, end);
      return;
    }
    default: {
      const SequenceId from = sequence();
      const SequenceId to = sequence();
      const int32_t begin = position();
      const int32_t end = position();
      cells.copy(from, to, begin, end);
      naive.copy(from, to, begin, end);
    }
  }
}

TEST(KvCells, AgreeWithTheNaiveOnes) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const auto n_cells = static_cast<int32_t>(1 + random.below(20));
    const auto n_sequences = static_cast<int32_t>(1 + random.below(4));
    KvCells cells(n_cells);
    NaiveCells naive(n_cells);
    for (int i = 0; i < 120; ++i) {
      step(cells, naive, random, n_sequences);
      expect_same(cells, naive);
      if (testing::Test::HasFatalFailure()) FAIL() << "after step " << i;
    }
  }
}

TEST(KvCells, StartEmpty) {
  const KvCells cells(4);
  EXPECT_EQ(cells.n_cells(), 4);
  EXPECT_EQ(cells.n_used(), 0);
  EXPECT_EQ(cells.used_end(), 0);
  EXPECT_EQ(cells.last_position(0), -1);
  EXPECT_EQ(cells.last_position(kMaxSequences - 1), -1);
  EXPECT_THAT(cells.cells_of(3), IsEmpty());
  EXPECT_FALSE(cells.visible(0, 0, 100));
}

TEST(KvCells, SayHowManyPositionsAreUsedWhenFull) {
  KvCells cells(4);
  for (int32_t i = 0; i < 3; ++i) cells.occupy(i, i, 0);
  std::vector<int32_t> two(2);
  const Status status = cells.find_free(two);
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("3 of 4 positions are used, 2 more were needed"));
}

TEST(KvCells, ASharedPrefixOutlivesItsFirstOwner) {
  KvCells cells(8);
  for (int32_t i = 0; i < 4; ++i) cells.occupy(i, i, 0);
  cells.copy(0, 1, 0, 3);
  cells.remove(0, 0, 100);
  EXPECT_EQ(cells.n_used(), 3);
  EXPECT_EQ(cells.last_position(0), -1);
  EXPECT_EQ(cells.last_position(1), 2);
  EXPECT_THAT(cells.cells_of(1), ElementsAre(0, 1, 2));
  EXPECT_FALSE(cells.visible(0, 0, 5));
  EXPECT_TRUE(cells.visible(0, 1, 0));
}

TEST(KvCells, CellsOfASequenceComeByPosition) {
  KvCells cells(4);
  cells.occupy(2, 0, 5);
  cells.occupy(0, 2, 5);
  cells.occupy(3, 1, 5);
  EXPECT_THAT(cells.cells_of(5), ElementsAre(2, 3, 0));
}

TEST(KvCellsDeathTest, MisuseIsABug) {
  KvCells cells(2);
  cells.occupy(0, 0, 0);
  EXPECT_DEATH(cells.occupy(0, 1, 0), "");
  EXPECT_DEATH(cells.occupy(2, 1, 0), "");
  EXPECT_DEATH(cells.occupy(1, -1, 0), "");
  EXPECT_DEATH(cells.occupy(1, 1, kMaxSequences), "");
  EXPECT_DEATH(cells.remove(-1, 0, 1), "");
  EXPECT_DEATH(cells.copy(0, kMaxSequences, 0, 1), "");
  EXPECT_DEATH(KvCells(0), "");
}

TEST(KvCells, NextCellsFollowOnTheSequencesOwn) {
  KvCells cells(10);
  // Sequence 0 at even cells, 1 at odd ones.
  for (int32_t i = 0; i < 6; ++i) cells.occupy(i, i / 2, i % 2);
  cells.remove(0, 0, 100);
  // Sequence 1 does not go back to what 0 has left; a new one begins there.
  EXPECT_EQ(cells.find_next(1), 6);
  EXPECT_EQ(cells.find_next(2), 0);
  cells.copy(1, 2, 0, 2);
  EXPECT_EQ(cells.find_next(2), 4);
  for (int32_t i = 0; i < 4; ++i) {
    const int32_t cell = cells.find_next(1).value();
    EXPECT_EQ(cell, 6 + i);
    cells.occupy(cell, 3 + i, 1);
  }
  // Nothing is free behind them.
  for (const int32_t expected : {0, 2, 4}) {
    const int32_t cell = cells.find_next(1).value();
    EXPECT_EQ(cell, expected);
    cells.occupy(cell, 7 + expected, 1);
  }
  const auto full = cells.find_next(1);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kOutOfMemory);
  // What is taken back can be taken again.
  cells.remove(1, 6, 100);
  EXPECT_EQ(cells.find_next(1), 9);
}

}  // namespace
}  // namespace hotset::engine
