// Finding and opening devices, and the parts that devices are made of.
#include "hotset/device/device.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "hotset/device/backend.h"
#include "hotset/device/ggml_runtime.h"
#include "hotset/device/observed_times.h"
#include "hotset/device/pinned_memory.h"
#include "hotset/device/queue_checks.h"
#include "hotset/device/queue_progress.h"

namespace hotset::device {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

constexpr auto kCompute = QueueId::kCompute;
constexpr auto kTransfer = QueueId::kTransfer;

TEST(OpenDevice, ListsTheNamesForAnUnknownOne) {
  for (const std::string_view name : {"Vulkan99", "", "CPU", "BLAS", "emux", "Emu"}) {
    const auto device = open_device(name, {});
    ASSERT_FALSE(device) << name;
    EXPECT_EQ(device.error().code, ErrorCode::kNotFound);
    EXPECT_THAT(device.error().message,
                AllOf(HasSubstr(fmt::format("device '{}' does not exist", name)),
                      HasSubstr("expected one of: "), EndsWith("emu")));
  }
}

TEST(OpenDevice, NamesTheMistakeOfAnEmulatedOne) {
  const auto device = open_device("emu:speed=11", {});
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(device.error().message, HasSubstr("found key 'speed'"));
}

TEST(ListDevices, GivesNamesThatOpen) {
  const auto devices = list_devices();
  ASSERT_TRUE(devices) << devices.error().message;
  for (const DeviceInfo& info : *devices) {
    EXPECT_NE(info.name, "emu");
    const auto device = open_device(info.name, {.test_overlap = false});
    ASSERT_TRUE(device) << device.error().message;
    EXPECT_EQ((*device)->info().description, info.description);
  }
}

TEST(CpuVariants, AreThoseThatThisMachineExecutes) {
  ASSERT_TRUE(init_ggml());
  const std::vector<CpuVariant> variants = cpu_variants();
  if (cpu_variant().empty()) {
    EXPECT_TRUE(variants.empty());
    GTEST_SKIP() << "this ggml was built for one kind of CPU";
  }
  std::set<std::string> names;
  for (const CpuVariant& variant : variants) {
    EXPECT_GT(variant.score, 0) << variant.name;
    EXPECT_LE(variant.score, variants.front().score) << variant.name;
    names.insert(variant.name);
  }
  EXPECT_EQ(names.size(), variants.size());
  EXPECT_TRUE(names.contains(cpu_variant()));
  const char* asked = std::getenv(kCpuVariantVariable);
  EXPECT_EQ(cpu_variant(), asked != nullptr ? asked : variants.front().name);
}

// Of the layouts that the CPU has, each either takes a tensor or says so; writing to one that does
// not take it would end the process.
TEST(CpuLayouts, TakeATensorOrAreRefused) {
  const auto cpu = Backend::cpu(1);
  ASSERT_TRUE(cpu);
  for (ggml_backend_buffer_type_t layout : cpu->extra_buffer_types()) {
    for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_MXFP4}) {
      for (const int64_t n_rows : {1, 7, 8}) {
        SCOPED_TRACE(fmt::format("{}: {} rows of {}", ggml_backend_buft_name(layout), n_rows,
                                 ggml_type_name(type)));
        const ggml_context_ptr context(ggml_init(
            {.mem_size = ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
        ggml_tensor* tensor = ggml_new_tensor_2d(context.get(), type, 64, n_rows);
        ggml_set_name(tensor, "a weight");
        const bool is_taken = layout_takes(layout, tensor);
        EXPECT_EQ(tensor->buffer, nullptr);
        EXPECT_EQ(tensor->extra, nullptr);
        const auto buffer = allocate_tensors(context.get(), layout, "weights");
        ASSERT_TRUE(buffer);
        const std::vector<uint8_t> bytes(ggml_nbytes(tensor));
        const Status status = set_tensor(tensor, bytes);
        EXPECT_EQ(status.has_value(), is_taken);
        if (status) continue;
        EXPECT_EQ(status.error().code, ErrorCode::kInternal);
        EXPECT_THAT(status.error().message,
                    AllOf(HasSubstr("tensor 'a weight'"), HasSubstr(ggml_backend_buft_name(layout)),
                          HasSubstr(ggml_type_name(type))));
      }
    }
  }
  // Plain memory takes all.
  const ggml_context_ptr context(
      ggml_init({.mem_size = ggml_tensor_overhead(), .mem_buffer = nullptr, .no_alloc = true}));
  ggml_tensor* tensor = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 64);
  EXPECT_FALSE(layout_takes(cpu->buffer_type(), tensor));
  const auto buffer = allocate_tensors(context.get(), cpu->buffer_type(), "weights");
  ASSERT_TRUE(buffer);
  EXPECT_TRUE(set_tensor(tensor, std::vector<uint8_t>(ggml_nbytes(tensor))));
}

TEST(PinnedMemory, KnowsItsRanges) {
  const auto memory = PinnedMemory::create();
  std::vector<char> bytes(100);
  char* base = bytes.data();
  EXPECT_FALSE(memory->contains(base, 1));
  auto late = memory->add(base + 50, 20);
  auto early = memory->add(base + 10, 20);
  EXPECT_EQ(memory->total(), Bytes{40});
  EXPECT_TRUE(memory->contains(base + 10, 20));
  EXPECT_TRUE(memory->contains(base + 29, 1));
  EXPECT_TRUE(memory->contains(base + 50, 20));
  EXPECT_TRUE(memory->contains(base + 69, 1));
  EXPECT_FALSE(memory->contains(base + 9, 1));
  EXPECT_FALSE(memory->contains(base + 10, 21));
  EXPECT_FALSE(memory->contains(base + 10, 60));  // two ranges and what is between them
  EXPECT_FALSE(memory->contains(base + 31, 1));
  EXPECT_FALSE(memory->contains(base + 70, 1));
  EXPECT_FALSE(memory->contains(base + 60, SIZE_MAX));
  early.reset();
  EXPECT_FALSE(memory->contains(base + 10, 1));
  EXPECT_TRUE(memory->contains(base + 50, 1));
  EXPECT_EQ(memory->total(), Bytes{20});
  late.reset();
  EXPECT_EQ(memory->total(), Bytes{});
  EXPECT_GT(pinned_memory_limit(), Bytes{});
}

TEST(PinnedMemory, ClaimsOutliveIt) {
  std::shared_ptr<const void> claim;
  {
    const auto memory = PinnedMemory::create();
    claim = memory->add(&claim, sizeof(claim));
  }
  claim.reset();
}

TEST(QueueProgress, FollowsEventsAcrossQueues) {
  QueueProgress progress;
  EXPECT_TRUE(progress.is_empty(kCompute));
  progress.enqueue(kTransfer);                             // upload
  const Progress uploaded = progress.enqueue(kTransfer);   // its event
  const Progress unrelated = progress.enqueue(kTransfer);  // a fill
  progress.queue_waits(kCompute, uploaded);
  const Progress computed = progress.enqueue(kCompute);
  EXPECT_FALSE(progress.is_done(uploaded));
  EXPECT_FALSE(progress.is_empty(kTransfer));
  // The graph comes after the upload, so the host that saw it done knows of both.
  progress.host_saw(computed);
  EXPECT_TRUE(progress.is_done(computed));
  EXPECT_TRUE(progress.is_done(uploaded));
  EXPECT_FALSE(progress.is_done(unrelated));
  EXPECT_TRUE(progress.is_empty(kCompute));
  EXPECT_FALSE(progress.is_empty(kTransfer));
  progress.host_saw_empty(kTransfer);
  EXPECT_TRUE(progress.is_done(unrelated));
  EXPECT_TRUE(progress.is_empty(kTransfer));
}

TEST(ObservedTimes, LastFromQueueingOrTheOneBeforeUntilSeen) {
  Profile profile(10);
  ObservedTimes times(profile);
  times.queued(kCompute, {"first", 1}, 1, 10);
  times.queued(kCompute, {"second", 2}, 2, 20);
  times.queued(kTransfer, {"copy", 3}, 1, 25);
  times.saw({{1, 0}}, 30);  // one of the compute queue, none of the other
  times.saw({{1, 0}}, 40);
  times.saw({{2, 1}}, 50);
  times.saw({{2, 1}}, 60);
  const std::vector<Profile::Entry> entries = profile.entries();
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_STREQ(entries[0].name, "first");
  EXPECT_EQ(entries[0].start_us, 10);
  EXPECT_EQ(entries[0].duration_us, 20);
  EXPECT_STREQ(entries[1].name, "second");
  EXPECT_EQ(entries[1].start_us, 30);  // not 20: it ran after the first one
  EXPECT_EQ(entries[1].duration_us, 20);
  EXPECT_STREQ(entries[2].name, "copy");
  EXPECT_EQ(entries[2].track, Track::kTransfer);
  EXPECT_EQ(entries[2].start_us, 25);
  EXPECT_EQ(entries[2].duration_us, 25);
}

TEST(ObservedTimes, ForgetsNothingWhenTooManyArePending) {
  Profile profile(20000);
  ObservedTimes times(profile);
  for (int i = 1; i <= 10000; ++i) times.queued(kCompute, {"graph", i}, i, i);
  times.saw({{10000, 0}}, 20000);
  const std::vector<Profile::Entry> entries = profile.entries();
  ASSERT_EQ(entries.size(), 10000U);
  for (int i = 0; i < 10000; ++i) ASSERT_EQ(entries[i].layer, i + 1);
}

}  // namespace
}  // namespace hotset::device
