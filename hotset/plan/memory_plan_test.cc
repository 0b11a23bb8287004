#include "hotset/plan/memory_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "hotset/base/random.h"

namespace hotset::plan {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// 24 GiB with 23 free: 2 dense, 4 KV, 1/2 state, 1/2 compute, 1/4 pairs, 1/4 ring, and 1228.8 MiB
// (5%) of headroom leave 14.3 GiB.
DeviceDemand gpu(std::string name = "Vulkan0") {
  return {.name = std::move(name),
          .total_memory = gib(24),
          .free_memory = gib(23),
          .dense_weights = gib(2),
          .kv_cache = gib(4),
          .recurrent_state = mib(512),
          .compute_buffers = mib(512),
          .pairs_and_staging = mib(256),
          .upload_ring = mib(256),
          .all_experts = gib(60),
          .n_layers = 48};
}

MemoryPlan plan(const MemoryRequest& request) {
  auto result = plan_memory(request);
  EXPECT_TRUE(result) << result.error().message;
  return std::move(*result);
}

TEST(PairBuffers, AreTheFormula) {
  EXPECT_EQ(pair_buffer_bytes(512, 8, 2048), Bytes{2LL * 512 * 8 * 2048 * 4});
  EXPECT_FALSE(pair_buffer_bytes(0, 8, 2048));
  EXPECT_FALSE(pair_buffer_bytes(512, -1, 2048));
  EXPECT_FALSE(pair_buffer_bytes(512, 8, 0));
  EXPECT_FALSE(pair_buffer_bytes(INT64_MAX, INT64_MAX, INT64_MAX));
  EXPECT_FALSE(pair_buffer_bytes(int64_t{1} << 40, int64_t{1} << 20, 1));
}

TEST(DefaultHeadroom, IsTheLargerOfHalfAGibAndFivePercent) {
  EXPECT_EQ(default_headroom(gib(4)), mib(512));
  EXPECT_EQ(default_headroom(gib(10)), mib(512));
  EXPECT_EQ(default_headroom(gib(20)), gib(1));
}

TEST(MemoryPlan, PlacesItemsInOrderAndLeavesTheRestToTheBanks) {
  const MemoryPlan result = plan({.devices = {gpu()}});
  ASSERT_TRUE(result.fits());
  const DevicePlan& device = result.devices[0];
  const Bytes headroom{gib(24).count / 20};
  ASSERT_EQ(device.items.size(), 6U);
  const char* names[] = {"dense weights",   "KV and recurrent state",
                         "compute buffers", "pair buffers and staging",
                         "upload ring",     "headroom"};
  const Bytes sizes[] = {gib(2), mib(4608), mib(512), mib(256), mib(256), headroom};
  Bytes left = gib(23);
  for (size_t i = 0; i < 6; ++i) {
    left -= sizes[i];
    EXPECT_EQ(device.items[i].name, names[i]);
    EXPECT_EQ(device.items[i].bytes, sizes[i]);
    EXPECT_EQ(device.items[i].left, left);
  }
  EXPECT_EQ(device.left_for_banks, gib(23) - mib(7680) - headroom);
  EXPECT_EQ(device.banks, device.left_for_banks);
  EXPECT_TRUE(result.is_auto);
}

TEST(MemoryPlan, NeverTakesMoreThanAllExperts) {
  DeviceDemand device = gpu();
  device.all_experts = gib(3);
  EXPECT_EQ(plan({.devices = {device}}).devices[0].banks, gib(3));
  EXPECT_EQ(plan({.devices = {device}, .asked_cache = gib(500)}).devices[0].banks, gib(3));
}

TEST(MemoryPlan, TakesWhatWasAsked) {
  const MemoryPlan result = plan({.devices = {gpu()}, .asked_cache = gib(10)});
  ASSERT_TRUE(result.fits());
  EXPECT_FALSE(result.is_auto);
  EXPECT_EQ(result.devices[0].banks, gib(10));
  const MemoryPlan none = plan({.devices = {gpu()}, .asked_cache = Bytes{0}});
  ASSERT_TRUE(none.fits());
  EXPECT_EQ(none.devices[0].banks, Bytes{0});
}

TEST(MemoryPlan, TakesTheHeadroomItIsGiven) {
  const MemoryPlan result = plan({.devices = {gpu()}, .headroom = mib(100)});
  EXPECT_EQ(result.devices[0].items.back().bytes, mib(100));
  EXPECT_EQ(result.devices[0].banks, gib(23) - mib(7780));
}

TEST(MemoryPlan, DividesTheAskedCacheByTensorSplitOrFreeMemory) {
  DeviceDemand small = gpu("Vulkan1");
  small.free_memory = Bytes{gib(23).count / 2};
  const MemoryPlan by_memory = plan({.devices = {gpu(), small}, .asked_cache = gib(3)});
  ASSERT_TRUE(by_memory.fits());
  EXPECT_EQ(by_memory.devices[0].banks, gib(2));
  EXPECT_EQ(by_memory.devices[1].banks, gib(1));
  const MemoryPlan by_split =
      plan({.devices = {gpu(), small}, .tensor_split = {3, 1}, .asked_cache = gib(4)});
  ASSERT_TRUE(by_split.fits());
  EXPECT_EQ(by_split.devices[0].banks, gib(3));
  EXPECT_EQ(by_split.devices[1].banks, gib(1));
}

TEST(MemoryPlan, GivesNothingToADeviceThatTheSplitLeavesOut) {
  for (const auto asked : {std::optional<Bytes>(), std::optional<Bytes>(gib(4))}) {
    const MemoryPlan result =
        plan({.devices = {gpu(), gpu("Vulkan1")}, .tensor_split = {1, 0}, .asked_cache = asked});
    ASSERT_TRUE(result.fits());
    EXPECT_GT(result.devices[0].banks, Bytes{0});
    EXPECT_EQ(result.devices[1].banks, Bytes{0});
  }
}

TEST(MemoryPlan, RefusesWhatDoesNotFitWithWhatIsMissingAndWhatToChange) {
  DeviceDemand device = gpu();
  device.kv_cache = gib(20);
  const MemoryPlan result = plan({.devices = {device}, .n_ctx = 131072, .n_ubatch = 512});
  const DevicePlan& refused = result.devices[0];
  const Bytes missing = gib(2) + gib(20) + mib(1536) + Bytes{gib(24).count / 20} - gib(23);
  EXPECT_EQ(refused.missing, missing);
  EXPECT_EQ(refused.banks, Bytes{0});
  const Status status = result.fits();
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
  // 1.7 of 20 GiB of KV are too much: 18.3 / 20 * 131072 = 119,930, in steps of 256: 119,808. Of 48
  // layers with 2 GiB of dense weights 41 hold 1.7 GiB. The headroom of 1.2 GiB is not enough, nor
  // is the GiB that others hold.
  EXPECT_EQ(status.error().message,
            "Vulkan0: needs 24.70 GiB, 23.00 GiB is free, 1.70 GiB is missing (from pair "
            "buffers and staging on); change one of: -c 119808 (now 131072); -ngl with 41 of its "
            "48 layers fewer");
  device.kv_cache = gib(20) - (missing - mib(100));
  EXPECT_THAT(plan({.devices = {device}, .n_ctx = 131072, .n_ubatch = 512}).fits().error().message,
              AllOf(HasSubstr("100.0 MiB is missing (from headroom on)"),
                    HasSubstr("a smaller -ub (now 512, its buffers take 768.0 MiB)"),
                    HasSubstr("--memory-headroom-mib 1128 (now 1229)"),
                    HasSubstr("free some of the 1.00 GiB that other programs hold"),
                    Not(HasSubstr("--tensor-split"))));
}

TEST(MemoryPlan, AdviceIsEnough) {
  DeviceDemand device = gpu();
  device.kv_cache = gib(18);
  device.recurrent_state = gib(1);
  constexpr int64_t kContext = 100'000;
  const MemoryPlan refused = plan({.devices = {device}, .n_ctx = kContext});
  const std::string text = refused.devices[0].refusal;
  const size_t at = text.find("-c ");
  ASSERT_NE(at, std::string::npos) << text;
  const int64_t n_ctx = std::stoll(text.substr(at + 3));
  device.kv_cache = Bytes{gib(18).count / kContext * n_ctx};
  EXPECT_TRUE(plan({.devices = {device}, .n_ctx = n_ctx}).fits());
  device.kv_cache = Bytes{gib(18).count / kContext * (n_ctx + 512)};
  EXPECT_FALSE(plan({.devices = {device}, .n_ctx = n_ctx}).fits());
}

TEST(MemoryPlan, SaysSoWhenNoSingleChangeIsEnough) {
  DeviceDemand device = gpu();
  device.dense_weights = gib(200);
  device.n_layers = 0;
  EXPECT_THAT(plan({.devices = {device}, .n_ctx = 4096, .n_ubatch = 512}).fits().error().message,
              AllOf(HasSubstr("(from dense weights on)"), HasSubstr("no single change is enough")));
}

TEST(MemoryPlan, RefusesACacheThatIsTooLargeWithTheLargestThatFits) {
  MemoryRequest request = {
      .devices = {gpu(), gpu("Vulkan1")}, .tensor_split = {3, 1}, .asked_cache = gib(40)};
  const MemoryPlan refused = plan(request);
  EXPECT_EQ(refused.devices[0].missing, gib(30) - refused.devices[0].left_for_banks);
  EXPECT_EQ(refused.devices[0].banks, Bytes{0});
  EXPECT_EQ(refused.devices[1].banks, gib(10));
  const std::string text = refused.fits().error().message;
  EXPECT_THAT(text, AllOf(HasSubstr("Vulkan0: 30.00 GiB of experts asked for, 14.30 GiB is left"),
                          HasSubstr("a --tensor-split that gives Vulkan0 less"),
                          Not(HasSubstr("Vulkan1: "))));
  const size_t at = text.find("at most ");
  ASSERT_NE(at, std::string::npos) << text;
  const int64_t most_mib = std::stoll(text.substr(at + 8));
  request.asked_cache = mib(most_mib);
  EXPECT_TRUE(plan(request).fits());
  request.asked_cache = mib(most_mib + 2);
  EXPECT_FALSE(plan(request).fits());
}

TEST(MemoryPlan, ReportsEveryDeviceThatDoesNotFit) {
  DeviceDemand a = gpu();
  DeviceDemand b = gpu("Vulkan1");
  a.dense_weights = b.dense_weights = gib(30);
  const std::string text = plan({.devices = {a, b}}).fits().error().message;
  EXPECT_THAT(text, AllOf(HasSubstr("Vulkan0: needs"), HasSubstr("; Vulkan1: needs")));
}

TEST(MemoryPlan, SizesTheBanksAgainAfterTheWarmUp) {
  const MemoryPlan result = plan({.devices = {{.name = "Vulkan0",
                                               .total_memory = gib(24),
                                               .free_memory = gib(15),
                                               .all_experts = gib(60)}}});
  EXPECT_EQ(result.devices[0].banks, gib(15) - Bytes{gib(24).count / 20});
}

TEST(MemoryPlan, IsATable) {
  DeviceDemand device = gpu();
  EXPECT_THAT(plan({.devices = {device}, .headroom = gib(1)}).table(),
              ElementsAre("Vulkan0: 24.00 GiB, 23.00 GiB free",
                          "  dense weights                 2.00 GiB     21.00 GiB left",
                          "  KV and recurrent state        4.50 GiB     16.50 GiB left",
                          "  compute buffers              512.0 MiB     16.00 GiB left",
                          "  pair buffers and staging     256.0 MiB     15.75 GiB left",
                          "  upload ring                  256.0 MiB     15.50 GiB left",
                          "  headroom                      1.00 GiB     14.50 GiB left",
                          "  expert banks (auto)          14.50 GiB           0 B left"
                          "  cached, 24.2% of 60.00 GiB"));
  device.kv_cache = gib(30);
  const auto refused = plan({.devices = {device}, .headroom = gib(1)}).table();
  ASSERT_EQ(refused.size(), 9U);
  EXPECT_EQ(refused[6], "  headroom                      1.00 GiB    -11.50 GiB left");
  EXPECT_THAT(refused[8], HasSubstr("  refused: Vulkan0: needs 34.50 GiB"));
}

TEST(MemoryPlan, HandsOutNoByteTwice) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const auto any = [&](Bytes most) {
      return Bytes{static_cast<int64_t>(random.below(static_cast<uint64_t>(most.count)))};
    };
    MemoryRequest request;
    const uint64_t n_devices = 1 + random.below(4);
    for (uint64_t i = 0; i < n_devices; ++i) {
      request.devices.push_back({.name = std::to_string(i),
                                 .total_memory = gib(24),
                                 .free_memory = any(gib(25)),
                                 .dense_weights = any(gib(8)),
                                 .kv_cache = any(gib(8)),
                                 .recurrent_state = any(gib(1)),
                                 .compute_buffers = any(gib(1)),
                                 .pairs_and_staging = any(gib(1)),
                                 .upload_ring = any(gib(1)),
                                 .all_experts = any(gib(30))});
      if (seed % 2 == 0) request.tensor_split.push_back(0.01 + random.uniform());
    }
    if (random.below(3) > 0) request.asked_cache = any(gib(20));
    const MemoryPlan result = plan(request);
    Bytes banks{0};
    bool all_fit = true;
    for (size_t i = 0; i < result.devices.size(); ++i) {
      const DevicePlan& device = result.devices[i];
      const DeviceDemand& demand = request.devices[i];
      Bytes used = device.banks;
      for (const PlanItem& item : device.items) used += item.bytes;
      ASSERT_LE(device.banks, demand.all_experts);
      ASSERT_EQ(device.refusal.empty(), device.missing == Bytes{0});
      all_fit = all_fit && device.refusal.empty();
      if (device.refusal.empty()) {
        ASSERT_LE(used, device.free_memory);
        if (result.is_auto) {
          ASSERT_TRUE(used == device.free_memory || device.banks == demand.all_experts);
        }
      } else {
        ASSERT_EQ(device.banks, Bytes{0});
      }
      banks += device.banks;
    }
    ASSERT_EQ(result.fits().has_value(), all_fit);
    if (request.asked_cache) {
      ASSERT_LE(banks, *request.asked_cache);
    }
  }
}

TEST(MemoryPlan, RefusesWhatIsOutsideItsRange) {
  const auto message = [](const MemoryRequest& request) {
    const auto result = plan_memory(request);
    if (result) return std::string("accepted");
    EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
    return result.error().message;
  };
  EXPECT_EQ(message({}), "devices: found none, expected 1 or more");
  for (const Bytes bad : {Bytes{-1}, Bytes{INT64_MAX}, Bytes{INT64_MIN}}) {
    for (Bytes DeviceDemand::* field :
         {&DeviceDemand::total_memory, &DeviceDemand::free_memory, &DeviceDemand::dense_weights,
          &DeviceDemand::kv_cache, &DeviceDemand::recurrent_state, &DeviceDemand::compute_buffers,
          &DeviceDemand::pairs_and_staging, &DeviceDemand::upload_ring,
          &DeviceDemand::all_experts}) {
      DeviceDemand device = gpu();
      device.*field = bad;
      EXPECT_THAT(message({.devices = {device}}), testing::StartsWith("Vulkan0: "));
    }
    EXPECT_THAT(message({.devices = {gpu()}, .asked_cache = bad}),
                HasSubstr("--moe-cache-mib: found"));
    EXPECT_THAT(message({.devices = {gpu()}, .headroom = bad}),
                HasSubstr("--memory-headroom-mib: found"));
  }
  EXPECT_THAT(message({.devices = {gpu()}, .tensor_split = {1, 1}}),
              HasSubstr("--tensor-split: found 2 numbers, expected 1"));
  EXPECT_THAT(message({.devices = {gpu()}, .tensor_split = {0}}), HasSubstr("only zeros"));
  EXPECT_THAT(message({.devices = {gpu()}, .tensor_split = {-1}}), HasSubstr("found -1"));
  EXPECT_THAT(message({.devices = {gpu()}, .tensor_split = {1 / 0.0}}), HasSubstr("found inf"));
  EXPECT_THAT(message({.devices = {gpu()}, .n_ctx = -1}), HasSubstr("n_ctx, n_ubatch"));
  DeviceDemand device = gpu();
  device.n_layers = -1;
  EXPECT_THAT(message({.devices = {device}}), HasSubstr("n_layers: found -1"));
  // The largest sizes of all at once stay in range.
  device = {.name = "x",
            .total_memory = kMaxPlanBytes,
            .free_memory = Bytes{0},
            .dense_weights = kMaxPlanBytes,
            .kv_cache = kMaxPlanBytes,
            .recurrent_state = kMaxPlanBytes,
            .compute_buffers = kMaxPlanBytes,
            .pairs_and_staging = kMaxPlanBytes,
            .upload_ring = kMaxPlanBytes,
            .all_experts = kMaxPlanBytes,
            .n_layers = INT64_MAX};
  EXPECT_EQ(message({.devices = {device},
                     .asked_cache = kMaxPlanBytes,
                     .headroom = kMaxPlanBytes,
                     .n_ctx = INT64_MAX,
                     .n_ubatch = INT64_MAX}),
            "accepted");
}

}  // namespace
}  // namespace hotset::plan
