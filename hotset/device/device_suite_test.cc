// What every device does. The programs that link this name the devices.
#include <gmock/gmock.h>

#include <array>
#include <cstdint>
#include <limits>
#include <utility>

#include "hotset/base/random.h"
#include "hotset/device/device_testing.h"

namespace hotset::device {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr auto kCompute = QueueId::kCompute;
constexpr auto kTransfer = QueueId::kTransfer;

TEST_P(DeviceSuite, SaysWhatItIs) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(info.name, GetParam().substr(0, info.name.size()));
  EXPECT_FALSE(info.description.empty());
  EXPECT_GT(info.memory_total.count, 0);
  EXPECT_LE(device_->free_memory(), info.memory_total);
  EXPECT_EQ(info.overlap == Overlap::kYes, info.name == "emu");  // known there, else not tested yet
}

TEST_P(DeviceSuite, UploadedBytesComeBackFromAnyOffset) {
  constexpr size_t kFloats = 5000;
  Tensors tensors;
  ggml_tensor* x = tensors.vector(kFloats);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats in(*device_, kFloats);
  HostFloats out(*device_, kFloats);
  for (size_t i = 0; i < kFloats; ++i) in[i] = static_cast<float>(i);
  for (const QueueId queue : {kCompute, kTransfer}) {
    ASSERT_OK(device_->upload(queue, x, 0, in.data(), in.n_bytes(), {"whole"}));
    ASSERT_OK(device_->download(queue, x, 0, out.data(), out.n_bytes(), {"whole"}));
    ASSERT_OK(device_->wait_idle());
    EXPECT_EQ(out.copy(), in.copy());
    // 7 floats from the 11th to the 4,001st place, and 40 bytes from the end to the start.
    ASSERT_OK(
        device_->upload(queue, x, 4001 * sizeof(float), &in[11], 7 * sizeof(float), {"part"}));
    ASSERT_OK(
        device_->download(queue, x, (kFloats - 10) * sizeof(float), out.data(), 40, {"part"}));
    ASSERT_OK(device_->download(queue, x, 3999 * sizeof(float), &out[3999], 12 * sizeof(float),
                                {"part"}));
    ASSERT_OK(device_->wait_idle());
    std::vector<float> expected = in.copy();
    std::copy_n(&in[11], 7, expected.begin() + 4001);
    std::copy_n(&in[kFloats - 10], 10, expected.begin());
    EXPECT_EQ(out.copy(), expected);
  }
}

TEST_P(DeviceSuite, CopiesOfNothingDoNothing) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(4);
  ASSERT_OK(tensors.allocate(*device_));
  device_->reset_counters();
  ASSERT_OK(device_->upload(kTransfer, x, 16, nullptr, 0, {"nothing"}));
  ASSERT_OK(device_->download(kCompute, x, 0, nullptr, 0, {"nothing"}));
  EXPECT_EQ(device_->counters().n_uploads, 0);
  EXPECT_EQ(device_->counters().n_downloads, 0);
  EXPECT_EQ(device_->counters().n_waits, 0);
}

TEST_P(DeviceSuite, WrongCopiesAreRefusedAndTheDeviceWorksOn) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(16);  // 64 bytes
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats host(*device_, 32);
  constexpr size_t kHuge = std::numeric_limits<size_t>::max();
  struct Wrong {
    size_t offset, n_bytes;
  };
  for (const auto& [offset, n_bytes] :
       {Wrong{0, 65}, Wrong{64, 1}, Wrong{65, 1}, Wrong{1, kHuge}, Wrong{kHuge, 1}, Wrong{60, 5}}) {
    const auto up = device_->upload(kTransfer, x, offset, host.data(), n_bytes, {"experts", 3});
    const auto down = device_->download(kTransfer, x, offset, host.data(), n_bytes, {"ids"});
    ASSERT_FALSE(up || down) << offset << "+" << n_bytes;
    EXPECT_EQ(up.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(up.error().message, HasSubstr("'experts' (layer 3)"));
    EXPECT_THAT(down.error().message, HasSubstr("expected at most 64"));
  }
  const auto no_host = device_->upload(kTransfer, x, 0, nullptr, 4, {"experts"});
  ASSERT_FALSE(no_host);
  EXPECT_THAT(no_host.error().message, HasSubstr("null host pointer"));
  Tensors homeless;
  const auto no_memory =
      device_->upload(kTransfer, homeless.vector(4), 0, host.data(), 4, {"experts"});
  ASSERT_FALSE(no_memory);
  EXPECT_THAT(no_memory.error().message, HasSubstr("in no memory"));
  ASSERT_FALSE(device_->compute(nullptr, {}, {"none"}));
  for (const Event event : {Event{}, Event{99}}) {
    EXPECT_FALSE(device_->record(event, kCompute));
    EXPECT_FALSE(device_->queue_wait(kCompute, event));
    EXPECT_FALSE(device_->wait(event));
  }
  host[0] = 7;
  ASSERT_OK(device_->upload(kTransfer, x, 60, host.data(), 4, {"last"}));
  ASSERT_OK(device_->download(kTransfer, x, 60, &host[1], 4, {"last"}));
  ASSERT_OK(device_->wait_idle());
  EXPECT_EQ(host[1], 7);
}

TEST_P(DeviceSuite, ViewsAreCopiedInTheirPlace) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(16);
  ggml_tensor* view = ggml_view_1d(tensors.context(), x, 4, 8 * sizeof(float));
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats in(*device_, 16);
  HostFloats out(*device_, 16);
  ASSERT_OK(device_->upload(kTransfer, x, 0, in.data(), in.n_bytes(), {"zeros"}));
  ASSERT_OK(device_->wait_idle());
  in[0] = 5;
  ASSERT_OK(device_->upload(kTransfer, view, sizeof(float), in.data(), sizeof(float), {"five"}));
  EXPECT_FALSE(device_->upload(kTransfer, view, 16, in.data(), 4, {"beyond the view"}));
  ASSERT_OK(device_->download(kTransfer, x, 0, out.data(), out.n_bytes(), {"all"}));
  ASSERT_OK(device_->wait_idle());
  std::vector<float> expected(16, 0.0F);
  expected[9] = 5;
  EXPECT_EQ(out.copy(), expected);
}

TEST_P(DeviceSuite, ComputesWhatTheOtherQueueUploaded) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(100000);
  ggml_tensor* y = tensors.vector(100000);
  ggml_cgraph* twice = tensors.sum(x, x, y);
  ASSERT_OK(tensors.allocate(*device_));
  ASSERT_TRUE(device_->supports(ggml_graph_node(twice, 0)));
  HostFloats in(*device_, 100000);
  HostFloats out(*device_, 100000);
  const Event uploaded = new_event();
  const Event done = new_event();
  for (int round = 1; round <= 20; ++round) {
    std::ranges::fill(in.values(), static_cast<float>(round));
    ASSERT_OK(device_->upload(kTransfer, x, 0, in.data(), in.n_bytes(), {"x"}));
    ASSERT_OK(device_->record(uploaded, kTransfer));
    ASSERT_OK(device_->queue_wait(kCompute, uploaded));
    ASSERT_OK(device_->compute(twice, {}, {"twice"}));
    ASSERT_OK(device_->download(kCompute, y, 0, out.data(), out.n_bytes(), {"y"}));
    ASSERT_OK(device_->record(done, kCompute));
    ASSERT_OK(device_->wait(done));
    ASSERT_THAT(out.copy(), Each(2.0F * static_cast<float>(round)));
  }
}

// A slot is overwritten only after the graph that still reads it.
TEST_P(DeviceSuite, UploadsAfterTheGraphThatReadsTheSlot) {
  constexpr size_t kFloats = 100000;
  Tensors tensors;
  ggml_tensor* slot = tensors.vector(kFloats);
  ggml_tensor* y = tensors.vector(kFloats);
  ggml_cgraph* twice = tensors.sum(slot, slot, y);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats in(*device_, 8 * kFloats);  // one part per round: uploads stay queued
  HostFloats out(*device_, 8 * kFloats);
  for (size_t i = 0; i < 8 * kFloats; ++i) {
    const size_t part = i / kFloats;
    in[i] = static_cast<float>(part + 1);
  }
  std::vector<Event> uploaded;
  std::vector<Event> read;
  for (size_t round = 0; round < 8; ++round) {
    uploaded.push_back(new_event());
    read.push_back(new_event());
    if (round > 0) {
      ASSERT_OK(device_->queue_wait(kTransfer, read[round - 1]));
    }
    ASSERT_OK(device_->upload(kTransfer, slot, 0, &in[round * kFloats], kFloats * sizeof(float),
                              {"slot"}));
    ASSERT_OK(device_->record(uploaded[round], kTransfer));
    ASSERT_OK(device_->queue_wait(kCompute, uploaded[round]));
    ASSERT_OK(device_->compute(twice, {}, {"twice"}));
    ASSERT_OK(device_->record(read[round], kCompute));
    ASSERT_OK(
        device_->download(kCompute, y, 0, &out[round * kFloats], kFloats * sizeof(float), {"y"}));
  }
  ASSERT_OK(device_->wait_idle());
  for (size_t i = 0; i < 8 * kFloats; ++i) ASSERT_EQ(out[i], 2 * in[i]) << i;
}

TEST_P(DeviceSuite, EachQueueIsInOrderByItself) {
  constexpr size_t kFloats = 20000;
  Tensors tensors;
  ggml_tensor* x = tensors.vector(kFloats);
  ggml_tensor* y = tensors.vector(kFloats);
  ggml_cgraph* twice = tensors.sum(x, x, y);
  ggml_cgraph* back = tensors.sum(y, y, x);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats in(*device_, 10 * kFloats);
  HostFloats out(*device_, 30 * kFloats);
  constexpr size_t kBytes = kFloats * sizeof(float);
  for (size_t i = 0; i < 10 * kFloats; ++i) {
    const size_t part = i / kFloats;
    in[i] = static_cast<float>(part + 1);
  }
  // No event in between: uploads, graphs and downloads of one queue follow each other.
  for (size_t round = 0; round < 10; ++round) {
    float* to = &out[3 * round * kFloats];
    ASSERT_OK(device_->upload(kCompute, x, 0, &in[round * kFloats], kBytes, {"x"}));
    ASSERT_OK(device_->compute(twice, {}, {"twice"}));
    ASSERT_OK(device_->download(kCompute, x, 0, to, kBytes, {"x"}));
    ASSERT_OK(device_->compute(back, {}, {"back"}));
    ASSERT_OK(device_->download(kCompute, y, 0, to + kFloats, kBytes, {"y"}));
    ASSERT_OK(device_->upload(kCompute, y, 0, &in[round * kFloats], kBytes, {"y"}));
    ASSERT_OK(device_->download(kCompute, x, 0, to + 2 * kFloats, kBytes, {"x"}));
  }
  ASSERT_OK(device_->wait_idle());
  for (size_t i = 0; i < 10 * kFloats; ++i) {
    const float* got = &out[3 * (i / kFloats) * kFloats + i % kFloats];
    ASSERT_EQ(got[0], in[i]) << i;
    ASSERT_EQ(got[kFloats], 2 * in[i]) << i;
    ASSERT_EQ(got[2 * kFloats], 4 * in[i]) << i;
  }
}

// A random schedule: uploads, sums and downloads on both queues, ordered by events where they touch
// the same memory and nowhere else, beside what happens if one does everything at once.
class Schedule {
 public:
  Schedule(Device& device, uint64_t seed)
      : device_(device),
        random_(seed),
        in_(device, kHosts * kFloats),
        out_(device, kHosts * kFloats) {}

  void run() {
    ASSERT_OK(prepare());
    if (HasFatalFailure()) return;
    for (int i = 0; i < kSteps; ++i) {
      ASSERT_OK(step());
      if (HasFatalFailure()) return;
    }
    ASSERT_OK(device_.wait_idle());
    check();
  }

 private:
  static constexpr size_t kSlots = 4;
  static constexpr size_t kHosts = 3;
  static constexpr size_t kFloats = 300;
  static constexpr size_t kBytes = kFloats * sizeof(float);
  static constexpr int kSteps = 40;
  using Values = std::vector<float>;

  // Memory that entries touch: a slot, or a part of one of the host buffers.
  struct Resource {
    // By queue: the entry that last wrote or read it; 0: none.
    std::array<int64_t, 2> written{};
    std::array<int64_t, 2> read{};
  };
  static bool HasFatalFailure() { return testing::Test::HasFatalFailure(); }
  static size_t index(QueueId queue) { return static_cast<size_t>(queue); }

  Status prepare() {
    for (size_t i = 0; i < kSlots; ++i) slots_.push_back(tensors_.vector(kFloats));
    for (size_t a = 0; a < kSlots; ++a) {
      for (size_t b = 0; b < kSlots; ++b) {
        for (size_t c = 0; c < kSlots; ++c)
          sums_.push_back(tensors_.sum(slots_[a], slots_[b], slots_[c]));
      }
    }
    HOTSET_RETURN_IF_ERROR(tensors_.allocate(device_));
    for (size_t slot = 0; slot < kSlots; ++slot) {
      HOTSET_RETURN_IF_ERROR(device_.upload(kTransfer, slots_[slot], 0, in_.data(), kBytes, {"0"}));
    }
    return device_.wait_idle();
  }

  Status step() {
    switch (random_.below(8)) {
      case 0:
        return wait_somehow();
      case 1:
      case 2:
      case 3:
        return upload();
      case 4:
      case 5:
        return sum();
      default:
        return download();
    }
  }

  // `queue` waits for entry `number` of the other queue, by an event behind it.
  Status depend(QueueId queue, int64_t number) {
    const QueueId other = queue == kCompute ? kTransfer : kCompute;
    if (number <= seen_[index(queue)]) return {};
    if (random_.below(3) == 0) {  // the host waits instead
      HOTSET_TRY(const Event event, next_event());
      HOTSET_RETURN_IF_ERROR(device_.record(event, other));
      HOTSET_RETURN_IF_ERROR(device_.wait(event));
    } else {
      HOTSET_TRY(const Event event, next_event());
      HOTSET_RETURN_IF_ERROR(device_.record(event, other));
      HOTSET_RETURN_IF_ERROR(device_.queue_wait(queue, event));
    }
    seen_[index(queue)] = n_entries_[index(other)];
    return {};
  }
  Status before_read(QueueId queue, Resource& resource) {
    HOTSET_RETURN_IF_ERROR(depend(queue, resource.written[1 - index(queue)]));
    resource.read[index(queue)] = n_entries_[index(queue)] + 1;
    return {};
  }
  Status before_write(QueueId queue, Resource& resource) {
    HOTSET_RETURN_IF_ERROR(depend(queue, resource.written[1 - index(queue)]));
    HOTSET_RETURN_IF_ERROR(depend(queue, resource.read[1 - index(queue)]));
    resource.written[index(queue)] = n_entries_[index(queue)] + 1;
    return {};
  }
  // An event may be recorded again once nothing waits for its earlier point.
  Result<Event> next_event() {
    if (n_events_used_ == kMaxEvents) {
      HOTSET_RETURN_IF_ERROR(device_.wait_idle());
      n_events_used_ = 0;
    }
    if (n_events_used_ == events_.size()) {
      HOTSET_TRY(const Event event, device_.new_event());
      events_.push_back(event);
    }
    return events_[n_events_used_++];
  }

  Status upload() {
    const size_t host = random_.below(kHosts);
    const size_t slot = random_.below(kSlots);
    const QueueId queue = random_.below(3) == 0 ? kCompute : kTransfer;
    // New values need the earlier copies of this part to be done; old ones may go again.
    if (random_.below(2) == 0) {
      HOTSET_RETURN_IF_ERROR(device_.wait_idle());
      for (size_t i = 0; i < kFloats; ++i) {
        in_[host * kFloats + i] = static_cast<float>(random_.below(1000));
      }
    }
    HOTSET_RETURN_IF_ERROR(before_write(queue, slot_use_[slot]));
    ++n_entries_[index(queue)];
    const float* from = &in_[host * kFloats];
    std::copy_n(from, kFloats, model_slots_[slot].begin());
    return device_.upload(queue, slots_[slot], 0, from, kBytes, {"upload"});
  }

  Status sum() {
    const size_t a = random_.below(kSlots);
    const size_t b = random_.below(kSlots);
    const size_t c = random_.below(kSlots);
    HOTSET_RETURN_IF_ERROR(before_read(kCompute, slot_use_[a]));
    HOTSET_RETURN_IF_ERROR(before_read(kCompute, slot_use_[b]));
    HOTSET_RETURN_IF_ERROR(before_write(kCompute, slot_use_[c]));
    ++n_entries_[index(kCompute)];
    Values result(kFloats);
    for (size_t i = 0; i < kFloats; ++i) result[i] = model_slots_[a][i] + model_slots_[b][i];
    model_slots_[c] = result;
    return device_.compute(sums_[(a * kSlots + b) * kSlots + c], {}, {"sum"});
  }

  Status download() {
    const size_t slot = random_.below(kSlots);
    const size_t host = random_.below(kHosts);
    const QueueId queue = random_.below(2) == 0 ? kCompute : kTransfer;
    HOTSET_RETURN_IF_ERROR(before_read(queue, slot_use_[slot]));
    HOTSET_RETURN_IF_ERROR(before_write(queue, host_use_[host]));
    ++n_entries_[index(queue)];
    model_hosts_[host] = model_slots_[slot];
    return device_.download(queue, slots_[slot], 0, &out_[host * kFloats], kBytes, {"download"});
  }

  Status wait_somehow() {
    if (random_.below(2) == 0) {
      HOTSET_RETURN_IF_ERROR(device_.wait_idle());
    } else {
      for (const QueueId queue : {kCompute, kTransfer}) {
        HOTSET_TRY(const Event event, next_event());
        HOTSET_RETURN_IF_ERROR(device_.record(event, queue));
        HOTSET_RETURN_IF_ERROR(device_.wait(event));
      }
    }
    check();
    return {};
  }

  void check() {
    for (size_t host = 0; host < kHosts; ++host) {
      const Values got(&out_[host * kFloats], &out_[host * kFloats] + kFloats);
      ASSERT_EQ(got, model_hosts_[host]);
    }
  }

  static constexpr size_t kMaxEvents = 24;
  Device& device_;
  Random random_;
  HostFloats in_;
  HostFloats out_;
  Tensors tensors_;
  std::vector<ggml_tensor*> slots_;
  std::vector<ggml_cgraph*> sums_;  // [a][b][c]: slot c = slot a + slot b
  std::vector<Event> events_;
  size_t n_events_used_ = 0;
  std::array<int64_t, 2> n_entries_{};  // by queue
  std::array<int64_t, 2> seen_{};       // by queue: entries of the other one that it comes after
  std::array<Resource, kSlots> slot_use_{};
  std::array<Resource, kHosts> host_use_{};
  std::array<Values, kSlots> model_slots_ = filled<kSlots>();
  std::array<Values, kHosts> model_hosts_ = filled<kHosts>();

  template <size_t n>
  static std::array<Values, n> filled() {
    std::array<Values, n> values;
    values.fill(Values(kFloats, 0.0F));
    return values;
  }
};

TEST_P(DeviceSuite, RandomSchedulesEqualASequentialModel) {
  constexpr uint64_t kSchedules = 200;
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Schedule(*device_, seed).run();
    if (HasFailure()) return;
  }
}

TEST_P(DeviceSuite, EventsAreRecordedAgainForALongTime) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(8);
  ggml_tensor* one = tensors.vector(8);
  ggml_cgraph* count = tensors.sum(x, one, x);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats in(*device_, 8);
  HostFloats out(*device_, 8);
  ASSERT_OK(device_->upload(kTransfer, x, 0, in.data(), in.n_bytes(), {"zeros"}));
  ASSERT_OK(device_->wait_idle());
  std::ranges::fill(in.values(), 1.0F);
  const Event uploaded = new_event();
  const Event computed = new_event();
  constexpr int kRounds = 3000;
  device_->reset_counters();
  // The host waits for the compute queue's event only.
  for (int round = 1; round <= kRounds; ++round) {
    ASSERT_OK(device_->queue_wait(kTransfer, computed));
    ASSERT_OK(device_->upload(kTransfer, one, 0, in.data(), in.n_bytes(), {"one"}));
    ASSERT_OK(device_->record(uploaded, kTransfer));
    ASSERT_OK(device_->queue_wait(kCompute, uploaded));
    ASSERT_OK(device_->compute(count, {}, {"count"}));
    ASSERT_OK(device_->record(computed, kCompute));
    ASSERT_OK(device_->wait(computed));
  }
  if (device_->info().async_copies) {
    EXPECT_EQ(device_->counters().n_waits, kRounds);  // tidying up behind events costs none
  }
  ASSERT_OK(device_->download(kCompute, x, 0, out.data(), out.n_bytes(), {"x"}));
  ASSERT_OK(device_->wait_idle());
  EXPECT_THAT(out.copy(), Each(static_cast<float>(kRounds)));
}

TEST_P(DeviceSuite, TheLastRecordingOfAnEventCounts) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(100);
  ggml_tensor* y = tensors.vector(100);
  ggml_cgraph* twice = tensors.sum(x, x, y);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats in(*device_, 200);
  HostFloats out(*device_, 100);
  std::fill_n(&in[0], 100, 1.0F);
  std::fill_n(&in[100], 100, 2.0F);
  const Event event = new_event();
  for (int round = 0; round < 20; ++round) {
    ASSERT_OK(device_->upload(kTransfer, x, 0, &in[0], 400, {"first"}));
    ASSERT_OK(device_->record(event, kTransfer));
    ASSERT_OK(device_->upload(kTransfer, x, 0, &in[100], 400, {"second"}));
    ASSERT_OK(device_->record(event, kTransfer));
    if (round % 2 == 0) {
      ASSERT_OK(device_->queue_wait(kCompute, event));
    } else {
      ASSERT_OK(device_->wait(event));
    }
    ASSERT_OK(device_->compute(twice, {}, {"twice"}));
    ASSERT_OK(device_->download(kCompute, y, 0, out.data(), 400, {"y"}));
    ASSERT_OK(device_->wait_idle());
    ASSERT_THAT(out.copy(), Each(4.0F)) << "round " << round;
  }
}

TEST_P(DeviceSuite, ManyGraphsAreQueuedWithoutWaiting) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(8);
  ggml_tensor* one = tensors.vector(8);
  ggml_cgraph* count = tensors.sum(x, one, x);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats in(*device_, 8);
  HostFloats out(*device_, 8);
  ASSERT_OK(device_->upload(kTransfer, x, 0, in.data(), in.n_bytes(), {"zeros"}));
  ASSERT_OK(device_->wait_idle());
  std::ranges::fill(in.values(), 1.0F);
  ASSERT_OK(device_->upload(kTransfer, one, 0, in.data(), in.n_bytes(), {"one"}));
  ASSERT_OK(device_->wait_idle());
  device_->reset_counters();
  constexpr int kGraphs = 6000;  // more than the rings of the emulated device hold
  for (int i = 0; i < kGraphs; ++i) ASSERT_OK(device_->compute(count, {}, {"count", i}));
  ASSERT_OK(device_->download(kCompute, x, 0, out.data(), out.n_bytes(), {"x"}));
  if (device_->info().async_copies) {
    EXPECT_EQ(device_->counters().n_waits, 0);
  }
  EXPECT_EQ(device_->counters().n_graphs, kGraphs);
  ASSERT_OK(device_->wait_idle());
  EXPECT_THAT(out.copy(), Each(static_cast<float>(kGraphs)));
}

TEST_P(DeviceSuite, CountsWhatItDoes) {
  if (!device_->info().async_copies) GTEST_SKIP() << "every copy of this device is a wait";
  Tensors tensors;
  ggml_tensor* x = tensors.vector(8);
  ggml_cgraph* twice = tensors.sum(x, x, x);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats host(*device_, 8);
  const Event event = new_event();
  device_->reset_counters();
  ASSERT_OK(device_->upload(kTransfer, x, 0, host.data(), 32, {"x"}));
  ASSERT_OK(device_->upload(kTransfer, x, 0, host.data(), 12, {"x"}));
  ASSERT_OK(device_->record(event, kTransfer));
  ASSERT_OK(device_->queue_wait(kCompute, event));
  ASSERT_OK(device_->compute(twice, {}, {"twice"}));
  ASSERT_OK(device_->download(kCompute, x, 4, host.data(), 8, {"x"}));
  EXPECT_EQ(device_->counters().n_waits, 0);
  EXPECT_EQ(device_->counters().n_graphs, 1);
  EXPECT_EQ(device_->counters().n_uploads, 2);
  EXPECT_EQ(device_->counters().n_downloads, 1);
  EXPECT_EQ(device_->counters().uploaded, Bytes{44});
  EXPECT_EQ(device_->counters().downloaded, Bytes{8});
  ASSERT_OK(device_->record(event, kCompute));
  ASSERT_OK(device_->wait(event));
  EXPECT_EQ(device_->counters().n_waits, 1);
  ASSERT_OK(device_->wait_idle());
  EXPECT_EQ(device_->counters().n_waits, 2);
  device_->reset_counters();
  EXPECT_EQ(device_->counters().n_waits, 0);
  EXPECT_EQ(device_->counters().uploaded, Bytes{});
}

TEST_P(DeviceSuite, CopiesOfPageableMemoryWaitAndKeepTheOrder) {
  constexpr size_t kFloats = 50000;
  Tensors tensors;
  ggml_tensor* x = tensors.vector(kFloats);
  ggml_tensor* y = tensors.vector(kFloats);
  ggml_cgraph* twice = tensors.sum(x, x, y);
  ASSERT_OK(tensors.allocate(*device_));
  std::vector<float> in(kFloats, 3.0F);
  std::vector<float> out(kFloats);
  const size_t n_bytes = kFloats * sizeof(float);
  const Event uploaded = new_event();
  for (int round = 1; round <= 3; ++round) {
    std::ranges::fill(in, static_cast<float>(round));
    device_->reset_counters();
    ASSERT_OK(device_->upload(kTransfer, x, 0, in.data(), n_bytes, {"x"}));
    EXPECT_EQ(device_->counters().n_waits, 1);
    std::ranges::fill(in, -1.0F);  // it was synchronous: the source is free at once
    ASSERT_OK(device_->record(uploaded, kTransfer));
    ASSERT_OK(device_->queue_wait(kCompute, uploaded));
    ASSERT_OK(device_->compute(twice, {}, {"twice"}));
    ASSERT_OK(device_->download(kCompute, y, 0, out.data(), n_bytes, {"y"}));
    EXPECT_GE(device_->counters().n_waits, 2);  // and the graph's, where graphs are synchronous
    ASSERT_THAT(out, Each(2.0F * static_cast<float>(round)));
  }
  // After what is queued, too.
  HostFloats pinned(*device_, kFloats);
  std::ranges::fill(pinned.values(), 5.0F);
  std::ranges::fill(in, 6.0F);
  ASSERT_OK(device_->upload(kTransfer, x, 0, pinned.data(), n_bytes, {"x"}));
  ASSERT_OK(device_->upload(kTransfer, x, 0, in.data(), n_bytes, {"x"}));
  ASSERT_OK(device_->download(kTransfer, x, 0, out.data(), n_bytes, {"x"}));
  EXPECT_THAT(out, Each(6.0F));
  ASSERT_OK(device_->upload(kTransfer, x, 0, pinned.data(), n_bytes, {"x"}));
  ASSERT_OK(device_->download(kTransfer, x, 0, out.data(), n_bytes, {"x"}));
  EXPECT_THAT(out, Each(5.0F));
}

TEST_P(DeviceSuite, PinnedMemorySaysWhetherItIs) {
  auto buffer = device_->allocate_pinned(mib(1), "ring");
  ASSERT_TRUE(buffer) << buffer.error().message;
  EXPECT_EQ(buffer->pinned(), device_->info().pinned_memory);
  EXPECT_GE(buffer->n_bytes(), size_t{1} << 20);
  std::memset(buffer->data(), 1, buffer->n_bytes());
  HostBuffer moved = *std::move(buffer);
  EXPECT_EQ(moved.data()[5], 1);
  const auto nothing = device_->allocate_pinned({}, "nothing");
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->n_bytes(), 0U);
  EXPECT_EQ(nothing->data(), nullptr);
  const auto huge = device_->allocate_pinned(gib(1 << 20), "huge");
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(huge.error().message, HasSubstr("huge: needs"));
  EXPECT_FALSE(device_->allocate_pinned(Bytes{-1}, "negative"));
}

TEST_P(DeviceSuite, MemoryThatDoesNotFitIsRefused) {
  Tensors huge;
  huge.vector(int64_t{1} << 48);  // a pebibyte
  const auto refused = device_->allocate(huge.context(), "banks");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_THAT(refused.error().message, HasSubstr("banks: needs 1048576.00 GiB"));
  Tensors small;
  ggml_tensor* x = small.vector(4);
  ASSERT_OK(small.allocate(*device_));
  EXPECT_NE(x->buffer, nullptr);
  const auto nothing = device_->allocate(small.context(), "again");  // all have addresses
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->get(), nullptr);
}

TEST_P(DeviceSuite, AnEventNeverRecordedHasHappened) {
  const Event event = new_event();
  ASSERT_OK(device_->wait(event));
  ASSERT_OK(device_->queue_wait(kCompute, event));
  ASSERT_OK(device_->queue_wait(kTransfer, event));
  ASSERT_OK(device_->wait_idle());
}

TEST_P(DeviceSuite, TimeDoesNotGoBack) {
  Tensors tensors;
  ggml_tensor* x = tensors.vector(8);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats host(*device_, 8);
  const Event event = new_event();
  double last_us = device_->now_us();
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(device_->upload(kTransfer, x, 0, host.data(), 32, {"x"}));
    ASSERT_OK(device_->record(event, kTransfer));
    ASSERT_OK(device_->wait(event));
    EXPECT_GE(device_->event_time_us(event), last_us);
    EXPECT_GE(device_->now_us(), device_->event_time_us(event));
    last_us = device_->now_us();
  }
  device_->host_reaches(last_us + 1e9);
  EXPECT_EQ(device_->now_us() == last_us + 1e9, device_->info().virtual_clock);
  EXPECT_EQ(device_->modelled_cpu_us(Bytes{1}).has_value(), device_->info().virtual_clock);
}

TEST_P(DeviceSuite, ProfileHoldsEveryEntryOfTheQueues) {
  Profile profile(1000);
  reopen({.test_overlap = false, .profile = &profile});
  if (IsSkipped() || HasFatalFailure()) return;
  Tensors tensors;
  ggml_tensor* x = tensors.vector(8);
  ggml_cgraph* twice = tensors.sum(x, x, x);
  ASSERT_OK(tensors.allocate(*device_));
  HostFloats host(*device_, 8);
  const Event event = new_event();
  for (int layer = 0; layer < 5; ++layer) {
    ASSERT_OK(device_->upload(kTransfer, x, 0, host.data(), 32, {"upload", layer}));
    ASSERT_OK(device_->record(event, kTransfer));
    ASSERT_OK(device_->queue_wait(kCompute, event));
    ASSERT_OK(device_->compute(twice, {}, {"graph", layer}));
    ASSERT_OK(device_->wait_idle());
  }
  // Wait for the queues' threads to be done with the profile, too.
  device_.reset();
  int n_uploads = 0;
  int n_graphs = 0;
  std::array<double, 4> end_us{};
  for (const Profile::Entry& entry : profile.entries()) {
    const bool graph = entry.track == Track::kCompute;
    EXPECT_STREQ(entry.name, graph ? "graph" : "upload");
    EXPECT_EQ(entry.layer, graph ? n_graphs++ : n_uploads++);
    EXPECT_GE(entry.start_us, end_us[std::to_underlying(entry.track)]);
    EXPECT_GE(entry.duration_us, 0);
    end_us[std::to_underlying(entry.track)] = entry.start_us + entry.duration_us;
  }
  EXPECT_EQ(n_uploads, 5);
  EXPECT_EQ(n_graphs, 5);
}

TEST_P(DeviceSuite, EndsWithWorkQueued) {
  constexpr size_t kFloats = 100000;
  for (int round = 0; round < 3; ++round) {
    reopen({.test_overlap = false});
    if (IsSkipped() || HasFatalFailure()) return;
    Tensors tensors;
    ggml_tensor* x = tensors.vector(kFloats);
    ggml_tensor* y = tensors.vector(kFloats);
    ggml_cgraph* twice = tensors.sum(x, x, y);
    ASSERT_OK(tensors.allocate(*device_));
    HostFloats host(*device_, kFloats);
    const Event event = new_event();
    for (int i = 0; i < 50; ++i) {
      ASSERT_OK(device_->upload(kTransfer, x, 0, host.data(), host.n_bytes(), {"x"}));
      ASSERT_OK(device_->record(event, kTransfer));
      ASSERT_OK(device_->queue_wait(kCompute, event));
      ASSERT_OK(device_->compute(twice, {}, {"twice"}));
    }
    device_.reset();  // before the memory that the queued work uses
  }
}

}  // namespace
}  // namespace hotset::device
