// The goldens on Vulkan0, whatever device that is: on machines without a GPU Mesa's llvmpipe.
#include <gtest/gtest.h>

#include <algorithm>

#include "hotset/device/device.h"
#include "tests/golden.h"
#include "tests/tolerances.h"

namespace hotset::test {
namespace {

TEST_P(LogitsGolden, LogitsAndRoutingOnVulkan) {
  const auto devices = device::list_devices();
  ASSERT_TRUE(devices) << devices.error().message;
  if (std::ranges::find(*devices, "Vulkan0", &device::DeviceInfo::name) == devices->end()) {
    GTEST_SKIP() << "there is no Vulkan0 (llvmpipe shows with GGML_VK_VISIBLE_DEVICES=0)";
  }
  const engine::ModelDescription original = description();
  const auto k = static_cast<size_t>(original.spec.router.n_expert_used);
  const GoldenRun run = run_golden(description(), golden_, "Vulkan0");
  EXPECT_LT(nmse(run.logits, golden_.logits), kVulkanLogitsNmse);
  EXPECT_LE(routing_difference(run, golden_, k), kVulkanRoutingDifference);
}

TEST_P(LogitsGolden, LogitsOnVulkanWithACache) {
  const auto devices = device::list_devices();
  ASSERT_TRUE(devices) << devices.error().message;
  if (std::ranges::find(*devices, "Vulkan0", &device::DeviceInfo::name) == devices->end()) {
    GTEST_SKIP() << "there is no Vulkan0 (llvmpipe shows with GGML_VK_VISIBLE_DEVICES=0)";
  }
  Bytes layer;
  const engine::ModelDescription model = description();
  for (const model::TensorInfo& tensor : model.file.tensors()) {
    if (tensor.name.starts_with("blk.1.") && tensor.name.ends_with("_exps.weight")) {
      layer += tensor.n_bytes;
    }
  }
  // Half of a layer's experts: every lane has work.
  for (const double share : {0.0, 0.5}) {
    const GoldenRun run =
        run_golden(description(), golden_, "Vulkan0", layer / 2 + layer / 8, share);
    EXPECT_LT(nmse(run.logits, golden_.logits), kVulkanLogitsNmse) << share;
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, LogitsGolden, golden_architectures(), golden_test_name);

}  // namespace
}  // namespace hotset::test
