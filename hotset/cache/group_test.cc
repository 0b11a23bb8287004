#include "hotset/cache/group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "hotset/policy/policy_testing.h"

namespace hotset::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The group of the golden trace decode-zipf.
GroupSpec zipf_group() {
  return {.n_expert = 64,
          .layers = {0, 1, 2, 3, 4, 5, 6, 7},
          .group_host_bytes = {28311552},
          .device_host_bytes = {28311552},
          .alignment = 128,
          .expert_bytes = {{18432}, {18432}, {18432}}};
}

TEST(SlotsForBudget, GivesTheSlotsOfTheGoldenCounts) {
  const GroupSpec group = zipf_group();
  EXPECT_EQ(slots_for_budget(mib(2), group, 4), 36);
  EXPECT_EQ(slots_for_budget(mib(2), group, 4, 4), 32) << "four zero slots more";
  EXPECT_EQ(slots_for_budget(mib(6), group, 4), 112);
  EXPECT_EQ(slots_for_budget(mib(20), group, 4), 378);
}

// The formula, by trying every n.
int64_t slots_by_trying(Bytes budget, const GroupSpec& group, int32_t k, int32_t n_zero) {
  int64_t slots = 0;
  for (int64_t n = 1; n <= std::min(group.n_experts(), group.max_slots); n++) {
    int64_t sum = 0;
    for (const Bytes& bytes : group.expert_bytes) {
      const int64_t bank = bytes.count * (n + 1 + n_zero);
      sum += (bank + group.alignment - 1) / group.alignment * group.alignment;
    }
    if (sum <= budget.count) slots = n;
  }
  return slots < k ? 0 : slots;
}

TEST(SlotsForBudget, IsTheLargestNumberThatFits) {
  Random random(policy::test::test_seed());
  for (int round = 0; round < 3000; round++) {
    GroupSpec group{.n_expert = 1 + static_cast<int32_t>(random.below(40)),
                    .layers = {0, 1, 2},
                    .group_host_bytes = {1},
                    .device_host_bytes = {1},
                    .alignment = 1 + static_cast<int64_t>(random.below(300)),
                    .expert_bytes = {{1 + static_cast<int64_t>(random.below(1000))}}};
    if (round % 2 == 0) group.expert_bytes.push_back({17});
    if (round % 3 == 0) group.max_slots = static_cast<int64_t>(random.below(100));
    const auto k = static_cast<int32_t>(1 + random.below(8));
    const auto n_zero = static_cast<int32_t>(random.below(5));
    const Bytes budget{static_cast<int64_t>(random.below(60'000))};
    const int64_t slots = slots_for_budget(budget, group, k, n_zero);
    ASSERT_EQ(slots, slots_by_trying(budget, group, k, n_zero));
    if (slots > 0 && n_zero == 0) {
      ASSERT_LE(bank_bytes(group, slots), budget);
    }
  }
}

TEST(SlotsForBudget, HoldsForTheLargestSizesAccepted) {
  GroupSpec group = zipf_group();
  group.n_expert = static_cast<int32_t>(kMaxGroupExperts);
  group.layers = {0};
  group.expert_bytes.assign(kMaxExpertTensors, Bytes{1 << 20});
  group.alignment = kMaxAlignment;
  ASSERT_TRUE(check_group(group));
  EXPECT_EQ(slots_for_budget({0}, group, 1), 0);
  EXPECT_EQ(slots_for_budget({std::numeric_limits<int64_t>::max()}, group, 1), kMaxGroupExperts);
}

TEST(GroupBudget, IsDividedBySplitAndByBytes) {
  GroupSpec group = zipf_group();
  EXPECT_EQ(group_budget(mib(7), group), mib(7));
  group.split = 1;
  group.split_sum = 4;
  EXPECT_EQ(group_budget(mib(8), group), mib(2));
  group.device_host_bytes = {group.group_host_bytes.count * 3};
  EXPECT_EQ(group_budget({1000}, group), Bytes{83}) << "1000 / 4 / 3 rounded down";
  group.split = 0;
  EXPECT_EQ(group_budget(mib(8), group), Bytes{0});
  const Bytes all{std::numeric_limits<int64_t>::max()};
  EXPECT_LE(group_budget(all, zipf_group()), all);
}

std::string refusal(const GroupSpec& group) {
  const Status status = check_group(group);
  if (status) return "";
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  return status.error().message;
}

TEST(CheckGroup, NamesTheFieldThatIsWrong) {
  EXPECT_EQ(refusal(zipf_group()), "");
  const auto with = [](auto change) {
    GroupSpec group = zipf_group();
    change(group);
    return refusal(group);
  };
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(with([](GroupSpec& g) { g.layers.clear(); }), HasSubstr("number of layers is 0"));
  EXPECT_THAT(with([](GroupSpec& g) { g.layers[1] = -1; }), HasSubstr("a layer is -1"));
  EXPECT_THAT(with([](GroupSpec& g) { g.layers[1] = kMaxLayers; }), HasSubstr("a layer is 65536"));
  EXPECT_THAT(with([](GroupSpec& g) { g.n_expert = 0; }), HasSubstr("n_expert is 0"));
  EXPECT_THAT(with([](GroupSpec& g) { g.n_expert = INT32_MAX; }), HasSubstr("layers * n_expert"));
  EXPECT_THAT(with([](GroupSpec& g) { g.split_sum = 0; }), HasSubstr("split_sum is 0"));
  EXPECT_THAT(with([](GroupSpec& g) { g.split_sum = kNan; }), HasSubstr("split_sum is nan"));
  EXPECT_THAT(with([](GroupSpec& g) { g.split = 2; }), HasSubstr("split is 2"));
  EXPECT_THAT(with([](GroupSpec& g) { g.split = -1; }), HasSubstr("split is -1"));
  EXPECT_THAT(with([](GroupSpec& g) { g.split = kNan; }), HasSubstr("split is nan"));
  EXPECT_THAT(with([](GroupSpec& g) { g.group_host_bytes = {0}; }),
              HasSubstr("group_host_bytes is 0"));
  EXPECT_THAT(with([](GroupSpec& g) { g.device_host_bytes = {1}; }),
              HasSubstr("device_host_bytes is 1"));
  EXPECT_THAT(with([](GroupSpec& g) { g.alignment = 0; }), HasSubstr("alignment is 0"));
  EXPECT_THAT(with([](GroupSpec& g) { g.alignment = kMaxAlignment + 1; }), HasSubstr("alignment"));
  EXPECT_THAT(with([](GroupSpec& g) { g.expert_bytes.clear(); }),
              HasSubstr("number of tensors is 0"));
  EXPECT_THAT(with([](GroupSpec& g) { g.expert_bytes.resize(9, Bytes{1}); }),
              HasSubstr("number of tensors is 9"));
  EXPECT_THAT(with([](GroupSpec& g) { g.expert_bytes[2] = {0}; }), HasSubstr("tensor is 0"));
  EXPECT_THAT(with([](GroupSpec& g) { g.expert_bytes[2] = {-5}; }), HasSubstr("tensor is -5"));
  EXPECT_THAT(with([](GroupSpec& g) { g.max_slots = -1; }), HasSubstr("max_slots is -1"));
}

TEST(CheckGroup, ALayerIsInOneGroupOnly) {
  GroupSpec other = zipf_group();
  other.layers = {8, 3};
  const Status status = check_groups(std::vector<GroupSpec>{zipf_group(), other});
  ASSERT_FALSE(status);
  EXPECT_THAT(status.error().message, HasSubstr("layer 3"));
  EXPECT_TRUE(check_groups({}));
}

// A layer with two tensors of 1 KiB per expert.
MoeLayer layer_of(int32_t layer, uint32_t device = 0, int32_t type = 2, int32_t n_expert = 8) {
  const ExpertTensor tensor{.type = type, .n_rows = 32, .n_columns = 32, .expert_bytes = {1024}};
  return {.layer = layer, .device = device, .n_expert = n_expert, .tensors = {tensor, tensor}};
}

std::vector<GroupSpec> form(const std::vector<MoeLayer>& layers,
                            const std::vector<DeviceShare>& devices, Bytes budget = mib(1)) {
  auto groups = form_groups(layers, devices, budget, 2);
  EXPECT_TRUE(groups) << groups.error().message;
  return groups ? *groups : std::vector<GroupSpec>{};
}

TEST(FormGroups, PutsLayersOfOneLayoutAndDeviceTogether) {
  const auto groups =
      form({layer_of(4, 1), layer_of(1), layer_of(2, 0, 3), layer_of(3), layer_of(5, 1)},
           {{.split = 1, .alignment = 32}, {.split = 3, .alignment = 64}});
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_THAT(groups[0].layers, ElementsAre(1, 3));
  EXPECT_THAT(groups[1].layers, ElementsAre(2)) << "another type";
  EXPECT_THAT(groups[2].layers, ElementsAre(4, 5)) << "another device";
  EXPECT_EQ(groups[0].group_host_bytes, Bytes{32768});
  EXPECT_EQ(groups[0].device_host_bytes, Bytes{49152});
  EXPECT_EQ(groups[2].device_host_bytes, Bytes{32768});
  EXPECT_EQ(groups[0].split, 1);
  EXPECT_EQ(groups[2].split, 3);
  EXPECT_EQ(groups[2].split_sum, 4);
  EXPECT_EQ(groups[2].device, 1U);
  EXPECT_EQ(groups[0].alignment, 32);
  EXPECT_EQ(groups[2].alignment, 64);
  EXPECT_THAT(groups[0].expert_bytes, ElementsAre(Bytes{1024}, Bytes{1024}));
}

TEST(FormGroups, CountsOnlyDevicesThatHoldExperts) {
  const auto groups = form({layer_of(0, 1)}, {{.split = 5}, {.split = 3}});
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].split_sum, 3);
}

TEST(FormGroups, CutsWhereABankWouldBeTooLarge) {
  std::vector<MoeLayer> layers;
  for (int32_t layer = 0; layer < 10; layer++) layers.push_back(layer_of(layer));
  // At most 30 experts in a bank, and a budget for all 80.
  const DeviceShare device{
      .accepts_bank = [](const ExpertTensor&, int64_t n_experts) { return n_experts <= 30; }};
  const auto groups = form(layers, {device});
  ASSERT_EQ(groups.size(), 4U) << "two, three, two and three layers of 8 experts";
  int32_t next = 0;
  for (const GroupSpec& group : groups) {
    EXPECT_THAT(group.layers.size(), ::testing::AnyOf(2U, 3U));
    for (const int32_t layer : group.layers) EXPECT_EQ(layer, next++) << "consecutive";
    EXPECT_LE(slots_for_budget(group_budget(mib(1), group), group, 2), 29);
    EXPECT_EQ(group.device_host_bytes, Bytes{163840});
  }
  // A budget that fits the bank needs no cut.
  EXPECT_EQ(form(layers, {device}, {51'200}).size(), 1U);
}

TEST(FormGroups, LimitsTheSlotsWhereOneLayerIsTooLarge) {
  const DeviceShare device{
      .accepts_bank = [](const ExpertTensor&, int64_t n_experts) { return n_experts <= 5; }};
  const auto groups = form({layer_of(0), layer_of(1)}, {device});
  ASSERT_EQ(groups.size(), 2U);
  for (const GroupSpec& group : groups) {
    EXPECT_EQ(group.max_slots, 4) << "and the pad slot";
    EXPECT_EQ(slots_for_budget(group_budget(mib(1), group), group, 2), 4);
  }
}

TEST(FormGroups, RefusesWhatIsInconsistent) {
  const auto refused = [](const std::vector<MoeLayer>& layers,
                          const std::vector<DeviceShare>& devices, Bytes budget = mib(1),
                          int32_t k = 2) {
    const auto groups = form_groups(layers, devices, budget, k);
    EXPECT_FALSE(groups);
    return groups ? std::string() : groups.error().message;
  };
  const DeviceShare device;
  EXPECT_THAT(refused({layer_of(0, 1)}, {device}), HasSubstr("device 1, but there are 1"));
  EXPECT_THAT(refused({layer_of(0), layer_of(0)}, {device}), HasSubstr("layer 0"));
  EXPECT_THAT(refused({layer_of(0)}, {{.split = -1}}), HasSubstr("split is -1"));
  EXPECT_THAT(refused({layer_of(0)}, {{.split = 0}}), HasSubstr("split_sum"));
  EXPECT_THAT(refused({layer_of(0, 0, 2, 0)}, {device}), HasSubstr("n_expert is 0"));
  EXPECT_THAT(refused({layer_of(0)}, {device}, {-1}), HasSubstr("budget"));
  EXPECT_THAT(refused({layer_of(0)}, {device}, mib(1), 0), HasSubstr("k = 0"));
  std::vector<MoeLayer> huge;
  for (int32_t layer = 0; layer < 8; layer++) {
    huge.push_back(layer_of(layer, 0, layer, 1 << 21));
    huge.back().tensors[0].expert_bytes = kMaxExpertTensorBytes;
  }
  EXPECT_THAT(refused(huge, {device}), HasSubstr("device 0: more than"));
  MoeLayer empty = layer_of(0);
  empty.tensors.clear();
  EXPECT_THAT(refused({empty}, {device}), HasSubstr("number of tensors is 0"));
  EXPECT_TRUE(form_groups({}, {}, mib(1), 1)) << "a model without MoE layers has no groups";
}

}  // namespace
}  // namespace hotset::cache
