#include "hotset/device/emulated_device.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <limits>
#include <new>
#include <thread>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/base/random.h"
#include "hotset/device/device_testing.h"

namespace {
thread_local int64_t n_allocations = 0;  // of this thread, with new
}  // namespace

// All forms that this program's libraries use, so that memory goes back where it came from.
[[gnu::noinline]] void* operator new(size_t n_bytes, const std::nothrow_t&) noexcept {
  ++n_allocations;
  return std::malloc(n_bytes);
}
[[gnu::noinline]] void* operator new(size_t n_bytes) {
  if (void* memory = operator new(n_bytes, std::nothrow)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}

namespace hotset::device {
namespace {

using testing::AllOf;
using testing::DoubleEq;
using testing::Each;
using testing::HasSubstr;

constexpr auto kCompute = QueueId::kCompute;
constexpr auto kTransfer = QueueId::kTransfer;

std::unique_ptr<Device> open(std::string_view spec, Profile* profile = nullptr) {
  auto device = open_device(spec, {.profile = profile});
  EXPECT_TRUE(device) << device.error().message;
  return device ? *std::move(device) : nullptr;
}

// A device on the virtual clock with easy numbers: a launch takes 10 us, the link moves 1,000 bytes
// per us, graphs read 100,000 bytes per us, the CPU lane 10,000 bytes per us.
class VirtualClock : public testing::Test {
 protected:
  VirtualClock() { open_again(nullptr); }
  ~VirtualClock() override { device_.reset(); }  // what is queued uses the memory below
  void open_again(Profile* profile, std::string_view more_keys = "") {
    device_.reset();
    device_ = open(
        fmt::format("emu:mib=64,us=10,gbps=1,dev_gbps=100,cpu_gbps=10,clock=virtual{}", more_keys),
        profile);
    tensors_ = std::make_unique<Tensors>();
    x_ = tensors_->vector(25000);
    y_ = tensors_->vector(25000);
    sum_ = tensors_->sum(x_, x_, y_);
    ASSERT_OK(tensors_->allocate(*device_));
    host_ = std::make_unique<HostFloats>(*device_, 25000);
    for (Event& event : events_) event = device_->new_event().value();
  }

  // A graph that reads `kilobytes` of weights: 10 + kilobytes / 100 us.
  void graph(int64_t kilobytes) {
    ASSERT_OK(device_->compute(sum_, Bytes{kilobytes * 1000}, {"graph"}));
  }
  // A copy of `kilobytes`: 10 + kilobytes us.
  void upload(size_t kilobytes, QueueId queue = kTransfer) {
    ASSERT_OK(device_->upload(queue, x_, 0, host_->data(), kilobytes * 1000, {"upload"}));
  }
  void download(size_t kilobytes, QueueId queue = kCompute) {
    ASSERT_OK(device_->download(queue, y_, 0, host_->data(), kilobytes * 1000, {"download"}));
  }
  void record(int event, QueueId queue) { ASSERT_OK(device_->record(events_[event], queue)); }
  void queue_wait(QueueId queue, int event) {
    ASSERT_OK(device_->queue_wait(queue, events_[event]));
  }
  void wait(int event) { ASSERT_OK(device_->wait(events_[event])); }
  double event_us(int event) const { return device_->event_time_us(events_[event]); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Tensors> tensors_;
  ggml_tensor* x_ = nullptr;
  ggml_tensor* y_ = nullptr;
  ggml_cgraph* sum_ = nullptr;
  std::unique_ptr<HostFloats> host_;
  std::array<Event, 8> events_;
};

TEST_F(VirtualClock, StartsAtZeroAndQueueingTakesNoTime) {
  EXPECT_EQ(device_->now_us(), 0);
  graph(5000);
  upload(40);
  EXPECT_EQ(device_->now_us(), 0);
}

// compute | graph 0..60 | graph 60..80 | download 80..92 |
TEST_F(VirtualClock, OneQueueIsSerial) {
  graph(5000);  // 10 + 5,000,000 / 100,000 = 60
  graph(1000);  // 10 + 10 = 20
  download(2);  // 10 + 2,000 / 1,000 = 12
  record(0, kCompute);
  wait(0);
  EXPECT_THAT(event_us(0), DoubleEq(92));
  EXPECT_THAT(device_->now_us(), DoubleEq(92));
}

// compute  | graph 0..60 |
// transfer | upload 0..50 | upload 50..90 |
TEST_F(VirtualClock, QueuesOverlap) {
  graph(5000);  // 60
  upload(40);   // 10 + 40 = 50
  upload(30);   // 40
  record(0, kCompute);
  record(1, kTransfer);
  wait(0);
  EXPECT_THAT(device_->now_us(), DoubleEq(60));
  wait(1);
  EXPECT_THAT(device_->now_us(), DoubleEq(90));
  EXPECT_THAT(event_us(0), DoubleEq(60));
  EXPECT_THAT(event_us(1), DoubleEq(90));
}

// Hits run at once, the uploaded pairs after their upload.
// compute  | hits 0..30 |   wait 50   | pairs 50..70 |
// transfer | upload 0..50 |
TEST_F(VirtualClock, ComputeWaitsForUpload) {
  upload(40);  // 50
  record(0, kTransfer);
  graph(2000);  // 30
  queue_wait(kCompute, 0);
  graph(1000);  // 20
  record(1, kCompute);
  wait(1);
  EXPECT_THAT(event_us(0), DoubleEq(50));
  EXPECT_THAT(device_->now_us(), DoubleEq(70));
}

// A slot is overwritten after the graph that reads it; a wait for what has happened costs nothing.
// compute  | graph 0..60 |           wait 90 | graph 90..110 |
// transfer | upload 0..20 | wait 60 | upload 60..90 |
TEST_F(VirtualClock, UploadWaitsForComputeAndBack) {
  upload(10);   // 20
  graph(5000);  // 60
  record(0, kCompute);
  queue_wait(kTransfer, 0);
  upload(20);  // 30
  record(1, kTransfer);
  queue_wait(kCompute, 1);
  queue_wait(kCompute, 0);
  graph(1000);  // 20
  record(2, kCompute);
  wait(2);
  EXPECT_THAT(event_us(0), DoubleEq(60));
  EXPECT_THAT(event_us(1), DoubleEq(90));
  EXPECT_THAT(event_us(2), DoubleEq(110));
  EXPECT_THAT(device_->now_us(), DoubleEq(110));
}

// What is queued while the host is at 100 starts at 100, although the queue was free at 20.
// host     | 0 ........ 100 |
// compute  | graph 0..20 |  | graph 100..120 |
// transfer                  | upload 100..115 |
TEST_F(VirtualClock, WorkStartsWhenTheHostQueuesIt) {
  graph(1000);  // 20
  record(0, kCompute);
  device_->host_reaches(100);
  graph(1000);
  upload(5);  // 15
  record(1, kCompute);
  record(2, kTransfer);
  EXPECT_THAT(device_->now_us(), DoubleEq(100));
  wait(0);  // long ago
  EXPECT_THAT(device_->now_us(), DoubleEq(100));
  device_->host_reaches(90);  // never back
  EXPECT_THAT(device_->now_us(), DoubleEq(100));
  wait(1);
  EXPECT_THAT(device_->now_us(), DoubleEq(120));
  EXPECT_THAT(event_us(2), DoubleEq(115));
}

// An event recorded on an idle queue happens when it is recorded.
TEST_F(VirtualClock, EventsOfAnIdleQueueHappenNow) {
  device_->host_reaches(33);
  record(0, kTransfer);
  wait(0);
  EXPECT_THAT(event_us(0), DoubleEq(33));
  EXPECT_THAT(device_->now_us(), DoubleEq(33));
}

// One MoE layer of one token with the lanes side by side:
// compute  | A 0..30 | ids 30..41 | hits 41..71 |                wait 101 | rows 101..115 | up
// 115..135 | host     ............ 41 | CPU lane 41..101 | transfer                 | upload 41..91
// |
TEST_F(VirtualClock, CpuLaneRunsBesideTheDevice) {
  graph(2000);  // A: 30
  download(1);  // ids: 11
  record(0, kCompute);
  graph(2000);  // hits: 30
  wait(0);
  EXPECT_THAT(device_->now_us(), DoubleEq(41));
  upload(40);  // 50
  record(1, kTransfer);
  const auto cpu_us = device_->modelled_cpu_us(Bytes{600000});  // 600,000 / 10,000 = 60
  ASSERT_TRUE(cpu_us);
  EXPECT_THAT(*cpu_us, DoubleEq(60));
  device_->host_reaches(device_->now_us() + *cpu_us);
  EXPECT_THAT(device_->now_us(), DoubleEq(101));
  upload(4, kCompute);  // rows: 14
  queue_wait(kCompute, 1);
  graph(1000);  // uploaded pairs: 20
  record(2, kCompute);
  wait(2);
  EXPECT_THAT(event_us(1), DoubleEq(91));
  EXPECT_THAT(device_->now_us(), DoubleEq(135));
  EXPECT_EQ(device_->counters().n_waits, 2);
}

TEST_F(VirtualClock, ThreadsOfTheCpuLaneAndCopiesOfTheHostHaveRates) {
  EXPECT_THAT(device_->modelled_copy_us(Bytes{10000}), testing::Optional(0));
  open_again(nullptr, ",cpu_thread_gbps=3,host_gbps=4");
  // One thread reads 3 GB/s, four would read 12, but there are only 10.
  for (const auto& [n_threads, us] : {std::pair{1, 10.0}, std::pair{2, 5.0}, std::pair{4, 3.0}}) {
    device_->set_lane_threads(n_threads);
    EXPECT_THAT(device_->modelled_cpu_us(Bytes{30000}), testing::Optional(DoubleEq(us)));
  }
  EXPECT_THAT(device_->modelled_copy_us(Bytes{10000}), testing::Optional(DoubleEq(2.5)));
}

TEST_F(VirtualClock, RatesChangeForAWhile) {
  open_again(nullptr, ",change_us=1000,back_us=2000,gbps2=0.5,dev_gbps2=50,cpu_gbps2=2");
  for (const bool is_changed : {false, true, false}) {
    const double start_us = device_->now_us();
    EXPECT_THAT(device_->modelled_cpu_us(Bytes{10000}), testing::Optional(is_changed ? 5 : 1));
    upload(40);
    record(0, kTransfer);
    graph(5000);
    record(1, kCompute);
    wait(0);
    EXPECT_EQ(event_us(0) - start_us, is_changed ? 90 : 50);
    wait(1);
    EXPECT_EQ(event_us(1) - start_us, is_changed ? 110 : 60);
    device_->host_reaches(start_us + 1000);
  }
}

TEST_F(VirtualClock, WaitIdleReachesTheLaterQueue) {
  graph(1000);  // 20
  upload(90);   // 100
  ASSERT_OK(device_->wait_idle());
  EXPECT_THAT(device_->now_us(), DoubleEq(100));
}

TEST_F(VirtualClock, SynchronousCopiesTakeTheHostAlong) {
  std::vector<float> pageable(2500);
  graph(5000);                                                                         // 60
  ASSERT_OK(device_->upload(kTransfer, x_, 0, pageable.data(), 10000, {"pageable"}));  // 20
  EXPECT_THAT(device_->now_us(), DoubleEq(20));
  ASSERT_OK(device_->download(kCompute, x_, 0, pageable.data(), 10000, {"pageable"}));  // 60..80
  EXPECT_THAT(device_->now_us(), DoubleEq(80));
  EXPECT_EQ(device_->counters().n_waits, 2);
}

TEST_F(VirtualClock, ProfileHoldsTheComputedTimes) {
  Profile profile(100);
  open_again(&profile);
  upload(40);
  record(0, kTransfer);
  graph(2000);
  queue_wait(kCompute, 0);
  graph(1000);
  const std::vector<Profile::Entry> entries = profile.entries();
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].track, Track::kTransfer);
  EXPECT_THAT(entries[0].duration_us, DoubleEq(50));
  EXPECT_THAT(entries[1].start_us, DoubleEq(0));
  EXPECT_THAT(entries[1].duration_us, DoubleEq(30));
  EXPECT_THAT(entries[2].start_us, DoubleEq(50));
  EXPECT_THAT(entries[2].duration_us, DoubleEq(20));
}

// Every time that a random schedule reports.
std::vector<double> random_times(uint64_t seed, std::string_view faults) {
  auto device = open(fmt::format("emu:mib=64,us=3,gbps=7,dev_gbps=90,clock=virtual{}", faults));
  Tensors tensors;
  const std::array targets = {tensors.vector(1000), tensors.vector(1000)};  // by queue
  ggml_cgraph* sum = tensors.sum(targets[0], targets[0], targets[0]);
  EXPECT_TRUE(tensors.allocate(*device));
  HostFloats host(*device, 1000);
  std::vector<Event> events;
  for (int i = 0; i < 4; ++i) events.push_back(device->new_event().value());
  Random random(seed);
  std::vector<double> times;
  for (int i = 0; i < 300; ++i) {
    const QueueId queue = random.below(2) == 0 ? kCompute : kTransfer;
    const Event event = events[random.below(events.size())];
    const auto n_bytes = static_cast<int64_t>(random.below(4000));
    switch (random.below(6)) {
      case 0:
        EXPECT_TRUE(device->compute(sum, Bytes{n_bytes * 1000}, {"sum"}));
        break;
      case 1:
        EXPECT_TRUE(device->upload(queue, targets[std::to_underlying(queue)], 0, host.data(),
                                   static_cast<size_t>(n_bytes), {"up"}));
        break;
      case 2:
        EXPECT_TRUE(device->record(event, queue));
        break;
      case 3:
        EXPECT_TRUE(device->queue_wait(queue, event));
        break;
      case 4:
        EXPECT_TRUE(device->wait(event));
        break;
      default:
        device->host_reaches(device->now_us() + static_cast<double>(random.below(50)));
    }
    times.push_back(device->now_us());
    times.push_back(device->event_time_us(event));
  }
  EXPECT_TRUE(device->wait_idle());
  times.push_back(device->now_us());
  return times;
}

TEST(EmulatedDevice, VirtualTimesAreTheSameInEveryRun) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const std::vector<double> times = random_times(seed, "");
    EXPECT_GT(times.back(), 0);
    EXPECT_EQ(random_times(seed, ""), times) << "seed " << seed;
    // Not even late copies change them.
    EXPECT_EQ(random_times(seed, ",late_us=100"), times) << "seed " << seed;
  }
}

// On the real clock a copy takes at least its stated time.
TEST(EmulatedDevice, RealCopiesTakeTheirTime) {
  auto device = open("emu:mib=64,us=1000,gbps=1,clock=real");
  Tensors tensors;
  ggml_tensor* x = tensors.vector(250000);
  ASSERT_OK(tensors.allocate(*device));
  HostFloats host(*device, 250000);
  const Event event = device->new_event().value();
  const double start_us = device->now_us();
  ASSERT_OK(device->upload(kTransfer, x, 0, host.data(), 1000000, {"x"}));  // 1000 + 1000 us
  ASSERT_OK(device->upload(kTransfer, x, 0, host.data(), 1000000, {"x"}));
  ASSERT_OK(device->record(event, kTransfer));
  ASSERT_OK(device->wait(event));
  EXPECT_GE(device->event_time_us(event) - start_us, 4000);
}

// What a device with a fault does with a fixed piece of work: 3 uploads and a graph per round.
class Faults : public testing::Test {
 protected:
  ~Faults() override { device_.reset(); }
  // The first error of ten rounds, each of which ends with a wait.
  Error run(std::string_view faults) {
    device_.reset();
    device_ = open(fmt::format("emu:mib=64,clock=virtual,{}", faults));
    tensors_ = std::make_unique<Tensors>();
    x_ = tensors_->vector(256);
    sum_ = tensors_->sum(x_, x_, x_);
    EXPECT_TRUE(tensors_->allocate(*device_));
    host_ = std::make_unique<HostFloats>(*device_, 256);
    event_ = device_->new_event().value();
    for (n_rounds_ = 0; n_rounds_ < 10; ++n_rounds_) {
      if (Status status = round(); !status) return status.error();
    }
    return {ErrorCode::kInternal, "no error"};
  }
  Status round() {
    for (int i = 0; i < 3; ++i) {
      HOTSET_RETURN_IF_ERROR(
          device_->upload(kTransfer, x_, 0, host_->data(), 1024, {"experts", i}));
    }
    HOTSET_RETURN_IF_ERROR(device_->record(event_, kTransfer));
    HOTSET_RETURN_IF_ERROR(device_->queue_wait(kCompute, event_));
    HOTSET_RETURN_IF_ERROR(device_->compute(sum_, {}, {"pairs", 7}));
    HOTSET_RETURN_IF_ERROR(device_->record(event_, kCompute));
    return device_->wait(event_);
  }
  // Every call returns the first error, and none hangs.
  void expect_dead(const Error& error) {
    const auto same = [&](const Status& status) {
      return !status && status.error().code == error.code &&
             status.error().message == error.message;
    };
    EXPECT_TRUE(same(device_->upload(kTransfer, x_, 0, host_->data(), 4, {"experts"})));
    EXPECT_TRUE(same(device_->download(kTransfer, x_, 0, host_->data(), 4, {"experts"})));
    EXPECT_TRUE(same(device_->compute(sum_, {}, {"pairs"})));
    EXPECT_TRUE(same(device_->record(event_, kCompute)));
    EXPECT_TRUE(same(device_->queue_wait(kTransfer, event_)));
    EXPECT_TRUE(same(device_->wait(event_)));
    EXPECT_TRUE(same(device_->wait_idle()));
    const auto event = device_->new_event();
    ASSERT_FALSE(event);
    EXPECT_EQ(event.error().message, error.message);
    const auto pinned = device_->allocate_pinned(Bytes{16}, "ring");
    ASSERT_FALSE(pinned);
    EXPECT_EQ(pinned.error().message, error.message);
    Tensors more;
    more.vector(1);
    const Status allocated = more.allocate(*device_);
    EXPECT_TRUE(same(allocated));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Tensors> tensors_;
  ggml_tensor* x_ = nullptr;
  ggml_cgraph* sum_ = nullptr;
  std::unique_ptr<HostFloats> host_;
  Event event_;
  int n_rounds_ = 0;
};

TEST_F(Faults, NoneIsNoError) { EXPECT_EQ(run("fail_copy=0").message, "no error"); }

TEST_F(Faults, CopyFails) {
  const Error error = run("fail_copy=5");  // the second of the second round
  EXPECT_EQ(error.code, ErrorCode::kDevice);
  EXPECT_EQ(error.message, "emu: upload 'experts' (layer 1): copy 5 failed");
  EXPECT_EQ(n_rounds_, 1);
  expect_dead(error);
}

TEST_F(Faults, CopyIsShort) {
  const Error error = run("short_copy=3");
  EXPECT_EQ(error.code, ErrorCode::kDevice);
  EXPECT_EQ(error.message, "emu: upload 'experts' (layer 2): copy 3 moved 512 of 1024 bytes");
  EXPECT_EQ(n_rounds_, 0);
  expect_dead(error);
}

TEST_F(Faults, GraphFails) {
  const Error error = run("fail_graph=4");
  EXPECT_EQ(error.code, ErrorCode::kDevice);
  EXPECT_EQ(error.message, "emu: graph 'pairs' (layer 7): graph 4 failed");
  EXPECT_EQ(n_rounds_, 3);
  expect_dead(error);
}

TEST_F(Faults, DeviceVanishesAnywhere) {
  // 7 entries a round: 3 uploads, record, wait, graph, record.
  for (int n = 1; n <= 21; ++n) {
    SCOPED_TRACE(n);
    const Error error = run(fmt::format("vanish={}", n));
    EXPECT_EQ(error.code, ErrorCode::kDevice);
    EXPECT_EQ(error.message, fmt::format("emu: the device vanished at queue entry {}", n));
    EXPECT_EQ(n_rounds_, (n - 1) / 7);
    expect_dead(error);
  }
}

TEST_F(Faults, NothingIsDoneAfterAFailure) {
  auto device = open("emu:mib=64,clock=virtual,fail_copy=1");
  Tensors tensors;
  ggml_tensor* x = tensors.vector(4);
  ASSERT_OK(tensors.allocate(*device));
  std::fill_n(static_cast<float*>(x->data), 4, -1.0F);
  HostFloats host(*device, 4);
  ASSERT_OK(device->upload(kTransfer, x, 0, host.data(), 16, {"fails"}));
  // Queued or, where the failure is known already, refused.
  [[maybe_unused]] const Status next =
      device->upload(kTransfer, x, 0, host.data(), 16, {"skipped"});
  EXPECT_FALSE(device->wait_idle());
  EXPECT_EQ(std::vector<float>(static_cast<float*>(x->data), static_cast<float*>(x->data) + 4),
            std::vector<float>(4, -1.0F));
}

TEST_F(Faults, PinnedMemoryComesBackPageable) {
  std::string warning;
  set_log_sink([&](LogLevel, std::string_view message) { warning = message; });
  auto device = open("emu:mib=64,clock=virtual,refuse_pinned=1");
  const auto ring = device->allocate_pinned(mib(2), "upload ring");
  set_log_sink({});
  ASSERT_TRUE(ring);
  EXPECT_FALSE(ring->pinned());
  EXPECT_FALSE(device->info().pinned_memory);
  EXPECT_THAT(warning, HasSubstr("emu: upload ring: 2.0 MiB of pinned memory were refused"));
  Tensors tensors;
  ggml_tensor* x = tensors.vector(4);
  ASSERT_OK(tensors.allocate(*device));
  ASSERT_OK(device->upload(kTransfer, x, 0, ring->data(), 16, {"x"}));
  EXPECT_EQ(device->counters().n_waits, 1);
}

TEST_F(Faults, AllocationIsRefused) {
  auto device = open("emu:mib=64,refuse_allocation=2");
  Tensors first;
  first.vector(4);
  ASSERT_OK(first.allocate(*device));
  Tensors second;
  second.vector(4);
  const Status refused = second.allocate(*device);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(refused.error().message, HasSubstr("refused on request"));
  ASSERT_OK(second.allocate(*device));  // the device works on
}

TEST_F(Faults, LateCopiesKeepTheResult) {
  for (const std::string_view clock : {"real", "virtual"}) {
    auto device = open(fmt::format("emu:mib=64,us=0,gbps=100,clock={},late_us=3000", clock));
    Tensors tensors;
    ggml_tensor* x = tensors.vector(64);
    ggml_tensor* y = tensors.vector(64);
    ggml_cgraph* sum = tensors.sum(x, x, y);
    ASSERT_OK(tensors.allocate(*device));
    HostFloats in(*device, 64);
    HostFloats out(*device, 64);
    std::ranges::fill(in.values(), 2.0F);
    const Event event = device->new_event().value();
    ASSERT_OK(device->upload(kTransfer, x, 0, in.data(), in.n_bytes(), {"x"}));
    ASSERT_OK(device->record(event, kTransfer));
    ASSERT_OK(device->queue_wait(kCompute, event));
    ASSERT_OK(device->compute(sum, {}, {"sum"}));
    ASSERT_OK(device->download(kCompute, y, 0, out.data(), out.n_bytes(), {"y"}));
    ASSERT_OK(device->wait_idle());
    EXPECT_THAT(out.copy(), Each(4.0F));
  }
}

TEST(EmulatedMemory, IsCountedAndGivenBack) {
  auto device = open("emu:mib=3");
  EXPECT_EQ(device->free_memory(), mib(3));
  {
    Tensors two_mib;
    two_mib.vector(2 << 18);
    ASSERT_OK(two_mib.allocate(*device));
    EXPECT_EQ(device->free_memory(), mib(1));
    Tensors more;
    more.vector((1 << 18) + 1);
    const Status refused = more.allocate(*device);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
    EXPECT_THAT(refused.error().message,
                AllOf(HasSubstr("emu: test: needs"), HasSubstr("1.0 MiB of 3.0 MiB is free")));
    EXPECT_EQ(device->free_memory(), mib(1));
    auto claim = device->claim(mib(1), "compute buffer");
    ASSERT_TRUE(claim);
    EXPECT_EQ(claim->get(), nullptr);
    EXPECT_EQ(device->free_memory(), Bytes{});
    EXPECT_FALSE(device->claim(Bytes{1}, "compute buffer"));
    EXPECT_FALSE(device->claim(Bytes{-1}, "compute buffer"));
    EXPECT_FALSE(device->claim(Bytes{std::numeric_limits<int64_t>::max()}, "compute buffer"));
    const DeviceBuffer moved = *std::move(claim);
    EXPECT_EQ(device->free_memory(), Bytes{});
  }
  EXPECT_EQ(device->free_memory(), mib(3));
}

TEST(EmulatedMemory, OutlivesItsDevice) {
  auto device = open("emu:mib=3");
  Tensors tensors;
  ggml_tensor* x = tensors.vector(16);
  ASSERT_OK(tensors.allocate(*device));
  HostFloats host(*device, 16);
  device.reset();
  std::fill_n(static_cast<float*>(x->data), 16, 1.0F);
  host[15] = 1;
}

TEST(EmulatedSpec, DefaultsAreAsDocumented) {
  for (const std::string_view spec :
       {"emu", "emu:mib=512,gbps=12,us=15,dev_gbps=200,cpu_gbps=20,clock=real"}) {
    const auto options = parse_emulated_spec(spec);
    ASSERT_TRUE(options) << options.error().message;
    EXPECT_EQ(options->memory, mib(512));
    EXPECT_EQ(options->link_gbps, 12);
    EXPECT_EQ(options->latency_us, 15);
    EXPECT_EQ(options->device_gbps, 200);
    EXPECT_EQ(options->cpu_gbps, 20);
    EXPECT_FALSE(options->virtual_clock);
    EXPECT_EQ(options->faults.fail_copy, 0);
    EXPECT_EQ(options->faults.vanish, 0);
    EXPECT_FALSE(options->faults.refuse_pinned);
  }
}

TEST(EmulatedSpec, EveryKeyIsRead) {
  const auto options = parse_emulated_spec(
      "emu:us=0.5,clock=virtual,mib=7,gbps=1.5,dev_gbps=2,cpu_gbps=3,fail_copy=4,short_copy=5,"
      "fail_graph=6,vanish=7,late_us=8.5,late_seed=9,refuse_pinned=1,refuse_allocation=10");
  ASSERT_TRUE(options) << options.error().message;
  EXPECT_EQ(options->memory, mib(7));
  EXPECT_EQ(options->link_gbps, 1.5);
  EXPECT_EQ(options->latency_us, 0.5);
  EXPECT_EQ(options->device_gbps, 2);
  EXPECT_EQ(options->cpu_gbps, 3);
  EXPECT_TRUE(options->virtual_clock);
  EXPECT_EQ(options->faults.fail_copy, 4);
  EXPECT_EQ(options->faults.short_copy, 5);
  EXPECT_EQ(options->faults.fail_graph, 6);
  EXPECT_EQ(options->faults.vanish, 7);
  EXPECT_EQ(options->faults.late_us, 8.5);
  EXPECT_EQ(options->faults.late_seed, 9U);
  EXPECT_TRUE(options->faults.refuse_pinned);
  EXPECT_EQ(options->faults.refuse_allocation, 10);
}

TEST(EmulatedSpec, EveryMistakeIsNamed) {
  struct Mistake {
    std::string_view spec, message;
  };
  for (const auto& [spec, message] : std::initializer_list<Mistake>{
           {"emulated", "found 'emulated', expected emu or emu:key=value"},
           {"", "found '', expected emu"},
           {"emu:", "found key '', expected one of: mib, fast_mib"},
           {"emu:mib", "mib: found no value, expected mib=a whole number from 1 to 16777216"},
           {"emu:mib=", "mib: found '', expected a whole number"},
           {"emu:mib=0", "mib: found '0'"},
           {"emu:mib=16777217", "mib: found '16777217'"},
           {"emu:mib=1.5", "mib: found '1.5'"},
           {"emu:mib=99999999999999999999", "mib: found '99999999999999999999'"},
           {"emu:mib=1,mib=2", "key 'mib' twice"},
           {"emu:mib=1,", "found key ''"},
           {"emu:,mib=1", "found key ''"},
           {"emu:MIB=1", "found key 'MIB', expected one of: mib, fast_mib"},
           {"emu:mib=1;gbps=2", "mib: found '1;gbps=2'"},
           {"emu:gbps=0", "gbps: found '0', expected a number from 0.001 to 1e+06"},
           {"emu:gbps=-3", "gbps: found '-3'"},
           {"emu:gbps=inf", "gbps: found 'inf'"},
           {"emu:gbps=nan", "gbps: found 'nan'"},
           {"emu:gbps=12x", "gbps: found '12x'"},
           {"emu:us=-1", "us: found '-1', expected a number from 0 to 1e+06"},
           {"emu:dev_gbps=1e7", "dev_gbps: found '1e7'"},
           {"emu:cpu_gbps=", "cpu_gbps: found ''"},
           {"emu:clock=Virtual", "clock: found 'Virtual', expected real or virtual"},
           {"emu:fail_copy=-1", "fail_copy: found '-1', expected a whole number of at least 0"},
           {"emu:refuse_pinned=2", "refuse_pinned: found '2', expected a whole number from 0 to 1"},
       }) {
    const auto options = parse_emulated_spec(spec);
    ASSERT_FALSE(options) << spec;
    EXPECT_EQ(options.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(options.error().message, HasSubstr(message));
  }
}

TEST_F(VirtualClock, QueueingAllocatesNothing) {
  Profile profile;
  open_again(&profile);
  const int64_t n_before = n_allocations;
  for (int i = 0; i < 3000; ++i) {  // 9,000 entries go round each ring of 4,096
    upload(4);
    record(0, kTransfer);
    queue_wait(kCompute, 0);
    graph(100);
    download(1);
    record(1, kCompute);
    queue_wait(kTransfer, 1);
    wait(1);
  }
  EXPECT_EQ(n_allocations, n_before);
  EXPECT_EQ(device_->counters().n_waits, 3000);
}

TEST(EmulatedDevice, RefusesAnImpossibleNumberOfThreads) {
  for (const int n_threads : {-1, 0, 513}) {
    const auto device = open_device("emu", {.n_threads = n_threads});
    ASSERT_FALSE(device);
    EXPECT_EQ(device.error().code, ErrorCode::kInvalidArgument);
  }
}

// Devices are independent: each of two threads drives its own, while a third one allocates and
// frees pinned memory of both.
TEST(EmulatedDevice, TwoThreadsDriveTwoDevices) {
  std::array<std::unique_ptr<Device>, 2> devices;
  for (auto& device : devices) device = open("emu:mib=16,clock=virtual,late_us=20");
  std::array<double, 2> end_us{};
  std::vector<HostBuffer> buffers;
  for (auto& device : devices) {
    for (int i = 0; i < 50; ++i) buffers.push_back(*device->allocate_pinned(Bytes{4096}, "spare"));
  }
  {
    std::vector<std::jthread> threads;
    for (size_t d = 0; d < 2; ++d) {
      threads.emplace_back([&, d] {
        Device& device = *devices[d];
        Tensors tensors;
        ggml_tensor* x = tensors.vector(64);
        ggml_cgraph* sum = tensors.sum(x, x, x);
        ASSERT_OK(tensors.allocate(device));
        HostFloats host(device, 64);
        const Event event = device.new_event().value();
        for (int i = 0; i < 200; ++i) {
          ASSERT_OK(device.upload(kTransfer, x, 0, host.data(), host.n_bytes(), {"x"}));
          ASSERT_OK(device.record(event, kTransfer));
          ASSERT_OK(device.queue_wait(kCompute, event));
          ASSERT_OK(device.compute(sum, {}, {"sum"}));
          ASSERT_OK(device.wait_idle());
        }
        end_us[d] = device.now_us();
      });
    }
    threads.emplace_back([&] { buffers.clear(); });
  }
  EXPECT_GT(end_us[0], 0);
  EXPECT_EQ(end_us[0], end_us[1]);
}

}  // namespace
}  // namespace hotset::device
