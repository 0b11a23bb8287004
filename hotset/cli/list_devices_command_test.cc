#include "hotset/cli/list_devices_command.h"

#include <gmock/gmock.h>

#include <vector>

namespace hotset::cli {
namespace {

using testing::HasSubstr;

TEST(ListDevicesCommand, ShowsWhatEachDeviceCanDo) {
  const device::DeviceInfo devices[] = {
      {.name = "Vulkan0",
       .description = "A graphics card",
       .memory_total = gib(24),
       .memory_free = gib(20),
       .async_copies = true,
       .events = true,
       .pinned_memory = true,
       .overlap = device::Overlap::kYes},
      {.name = "CUDA11",
       .description = "Inside",
       .memory_total = mib(512),
       .memory_free = mib(100),
       .shares_host_memory = true,
       .overlap = device::Overlap::kNo},
  };
  const std::string table = device_table(devices);
  EXPECT_THAT(
      table,
      testing::StartsWith(
          "name     memory     free       async  events  pinned  overlap  description\n"
          "Vulkan0  24.00 GiB  20.00 GiB  yes    yes     yes     yes      A graphics card\n"
          "CUDA11   512.0 MiB  100.0 MiB  no     no      no      no       Inside (shares host "
          "memory: needs no cache)\n"));
  EXPECT_THAT(table, HasSubstr("emu:mib=512,gbps=12,us=15,dev_gbps=200,cpu_gbps=20,clock=real"));
}

TEST(ListDevicesCommand, SaysWhenThereIsNone) {
  const std::string table = device_table({});
  EXPECT_THAT(table, HasSubstr("no GPU found"));
  EXPECT_THAT(table, HasSubstr("emu: an emulated device"));
}

TEST(ListDevicesCommand, SaysWhatComputesOnTheCpu) {
  EXPECT_EQ(cpu_text("zen4", std::vector<device::CpuVariant>{{.name = "zen4"}, {.name = "haswell"}},
                     {.n_cpus = 16, .n_cores = 8}),
            "CPU: 16 to use, 8 cores\n"
            "     ggml's build in use: zen4\n"
            "     HOTSET_CPU_VARIANT takes one of: zen4 haswell\n");
  // A ggml for one kind of CPU.
  EXPECT_EQ(cpu_text("", {}, {.n_cpus = 1, .n_cores = 1, .quota = 1.5, .quota_file = "/x/cpu.max"}),
            "CPU: 1 to use, 1 core (a quota of 1.50, /x/cpu.max)\n");
}

}  // namespace
}  // namespace hotset::cli
