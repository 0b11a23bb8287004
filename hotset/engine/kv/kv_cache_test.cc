#include "hotset/engine/kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "hotset/base/random.h"
#include "hotset/device/backend.h"

namespace hotset::engine {
namespace {

constexpr int32_t kWindow = 10;

model::ModelSpec windowed_spec(int64_t window = kWindow) {
  model::ModelSpec spec;
  spec.n_layer = 4;
  spec.attention.n_head = spec.attention.n_head_kv = 1;
  spec.attention.head_dim_k = spec.attention.head_dim_v = 32;
  spec.attention.window = window;
  spec.attention.window_period = 2;
  return spec;
}

KvCache make(const model::ModelSpec& spec, const ContextOptions& options) {
  const auto cpu = device::Backend::cpu(1);
  auto cache = KvCache::create(spec, options, cpu->buffer_type());
  EXPECT_TRUE(cache) << cache.error().message;
  return *std::move(cache);
}

// The window and the ubatch, for every sequence, in whole buckets; nothing where that is no less.
TEST(WindowCells, AreWhatWindowsAndUbatchesNeed) {
  EXPECT_EQ(window_cells(windowed_spec(128), 4096, 512, 1), 768);
  EXPECT_EQ(window_cells(windowed_spec(128), 131072, 512, 8), 1536);
  EXPECT_EQ(window_cells(windowed_spec(128), 131072, 512, 64), 8704);
  EXPECT_EQ(window_cells(windowed_spec(128), 4096, 512, 64), 0);
  EXPECT_EQ(window_cells(windowed_spec(128), 512, 512, 1), 0);
  EXPECT_EQ(window_cells(windowed_spec(0), 4096, 512, 1), 0);
  EXPECT_EQ(window_cells(windowed_spec(INT32_MAX), 1 << 28, 512, 64), 0);
}

TEST(KvCache, WindowedLayersAreSmaller) {
  const KvCache full = make(windowed_spec(), {.n_ctx = 1024});
  EXPECT_FALSE(full.has_window_cells());
  EXPECT_EQ(full.n_kv_window(), kCellBucket);
  EXPECT_EQ(full.window_bytes(false), Bytes{});
  const KvCache own = make(windowed_spec(), {.n_ctx = 1024, .n_window_cells = 256});
  EXPECT_EQ(own.n_cell_kinds(), 2);
  EXPECT_EQ(own.max_n_kv_window(), 256);
  EXPECT_EQ(own.keys(0)->ne[1], 256);
  EXPECT_EQ(own.keys(1)->ne[1], 1024);
  // Two of four layers have a quarter of the cells; keys and values, F16.
  EXPECT_EQ(own.window_bytes(false).count, int64_t{2} * 2 * 256 * 32 * 2);
  EXPECT_EQ(own.n_bytes().count, full.n_bytes().count * 5 / 8);
  const KvCache none = make(windowed_spec(0), {.n_ctx = 1024, .n_window_cells = 256});
  EXPECT_EQ(none.n_kv_window(), 0);
  EXPECT_FALSE(none.has_window_cells());
}

// Random work on many sequences against what they must hold: every position that is there and that
// the next one sees has a cell of the windowed layers, which says so.
TEST(KvCache, WhatTheNextPositionSeesIsAlwaysThere) {
  constexpr int32_t kSequences = 4;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    Random random(seed);
    // Room for all windows and a ubatch of 8.
    KvCache kv =
        make(windowed_spec(), {.n_ctx = 1024, .n_window_cells = kSequences * (kWindow - 1) + 8});
    std::vector<int32_t> cells;
    int32_t n_dropped = 0;
    for (int step = 0; step < 400; ++step) {
      const auto s = static_cast<SequenceId>(random.below(kSequences));
      const int32_t next = kv.cells().last_position(s) + 1;
      const uint64_t action = random.below(10);
      if (action == 0) {
        const auto begin = static_cast<int32_t>(random.below(static_cast<uint64_t>(next) + 1));
        kv.forget(s, begin, INT32_MAX);
        const int32_t left = kv.cells().last_position(s) + 1;
        EXPECT_TRUE(left == begin || left == 0) << seed;
        if (left != begin) ++n_dropped;
      } else if (action == 1) {
        const auto to = static_cast<SequenceId>(random.below(kSequences));
        if (to == s) continue;
        kv.forget(to, 0, INT32_MAX);
        const auto end = static_cast<int32_t>(random.below(static_cast<uint64_t>(next) + 1));
        kv.share(s, to, end);
        const int32_t shared = kv.cells().last_position(to) + 1;
        EXPECT_TRUE(shared == end || shared == 0) << seed;
      } else {
        // A ubatch with tokens of several sequences.
        std::vector<BatchToken> ubatch;
        std::map<SequenceId, int32_t> at;
        for (uint64_t i = random.below(8) + 1; i > 0; --i) {
          const auto of =
              random.below(3) == 0 ? static_cast<SequenceId>(random.below(kSequences)) : s;
          at.try_emplace(of, kv.cells().last_position(of) + 1);
          ubatch.push_back({.token = 0, .position = at[of]++, .sequence = of});
        }
        if (kv.cells().n_used() + std::ssize(ubatch) > 1024) {
          kv.forget(s, 0, INT32_MAX);
          continue;
        }
        ASSERT_TRUE(kv.assign(ubatch, cells)) << seed << " step " << step;
        ASSERT_EQ(cells.size(), 2 * ubatch.size());
        EXPECT_EQ(std::set(cells.begin() + std::ssize(ubatch), cells.end()).size(), ubatch.size());
      }
      for (SequenceId of = 0; of < kSequences; ++of) {
        const int32_t then = kv.cells().last_position(of) + 1;
        EXPECT_EQ(kv.window_cells().last_position(of) + 1, then);
        const int32_t begin = std::max(0, then - kWindow + 1);
        ASSERT_EQ(kv.window_cells().count(of, begin, then), kv.cells().count(of, begin, then))
            << seed << " step " << step << " sequence " << of;
      }
    }
    EXPECT_GT(n_dropped, 0);
  }
}

// The oldest give way, and only when there is need.
TEST(KvCache, CellsThatLeftTheWindowAreReused) {
  KvCache kv = make(windowed_spec(), {.n_ctx = 1024, .n_window_cells = 16});
  std::vector<int32_t> cells;
  const auto add = [&](int32_t begin, int32_t n, SequenceId s = 0) {
    std::vector<BatchToken> ubatch;
    for (int32_t i = 0; i < n; ++i) ubatch.push_back({.position = begin + i, .sequence = s});
    return kv.assign(ubatch, cells);
  };
  for (int32_t i = 0; i < 16; ++i) ASSERT_TRUE(add(i, 1));
  EXPECT_EQ(kv.window_cells().count(0, 0, 16), 16);
  ASSERT_TRUE(add(16, 1));
  EXPECT_EQ(cells, (std::vector<int32_t>{16, 0}));
  EXPECT_EQ(kv.window_cells().count(0, 0, 16), 15);
  // Back to 10: its window begins at 1, which is still there; from 9 on it needs position 0.
  kv.forget(0, 10, INT32_MAX);
  EXPECT_EQ(kv.cells().last_position(0), 9);
  kv.forget(0, 9, INT32_MAX);
  EXPECT_EQ(kv.cells().last_position(0), -1);
  EXPECT_EQ(kv.window_cells().n_used(), 0);
  // Another sequence's window cannot be taken.
  for (int32_t i = 0; i < 16; ++i) ASSERT_TRUE(add(i, 1));
  ASSERT_TRUE(add(0, 7, 1));
  const auto full = add(7, 1, 1);
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, ErrorCode::kOutOfMemory);
  EXPECT_EQ(kv.cells().last_position(1), 6);
}

}  // namespace
}  // namespace hotset::engine
