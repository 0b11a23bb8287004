#include "hotset/device/emulated_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "hotset/base/clock.h"
#include "hotset/base/random.h"
#include "hotset/device/backend.h"
#include "hotset/device/emulated_queues.h"
#include "hotset/device/ggml_runtime.h"
#include "hotset/device/pinned_memory.h"
#include "hotset/device/queue_checks.h"
#include "hotset/device/virtual_timeline.h"

namespace hotset::device {
namespace {

constexpr std::string_view kName = "emu";
constexpr double kBytesPerUsOfGbps = 1e3;  // 1 GB/s = 1e9 bytes / 1e6 us

using Account = std::shared_ptr<std::atomic<int64_t>>;  // bytes in use

// Takes bytes from an account for as long as it lives.
class Claim {
 public:
  Claim(Account account, int64_t n_bytes) : account_(std::move(account)), n_bytes_(n_bytes) {
    *account_ += n_bytes_;
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { *account_ -= n_bytes_; }

 private:
  Account account_;
  int64_t n_bytes_;
};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(Backend cpu, const EmulatedOptions& emulated, Profile* profile)
      : cpu_(std::move(cpu)),
        emulated_(emulated),
        profile_(profile),
        info_(describe_device(emulated)),
        late_(emulated.faults.late_seed),
        queues_([this](const QueueEntry& entry) { return work(entry); },
                emulated.virtual_clock || profile == nullptr
                    ? EmulatedQueues::Observer()
                    : [this](QueueId queue, const QueueEntry& entry, double start_us,
                             double duration_us) { show(queue, entry, start_us, duration_us); }) {}

  const DeviceInfo& info() const override { return info_; }
  ggml_backend_buffer_type_t buffer_type() const override { return cpu_.buffer_type(); }
  bool supports(const ggml_tensor* op) const override {
    const std::optional<ggml_type>& refused = emulated_.faults.refuse_type;
    if (refused && op->op == GGML_OP_MUL_MAT_ID && op->src[0]->type == *refused) return false;
    return cpu_.supports(op);
  }

  Result<DeviceBuffer> allocate(ggml_context* context, std::string_view what) override;
  Result<DeviceBuffer> claim(Bytes n_bytes, std::string_view what) override;
  Result<HostBuffer> allocate_pinned(Bytes n_bytes, std::string_view what) override;
  Bytes free_memory() const override { return emulated_.memory - Bytes{*used_}; }

  Status compute(ggml_cgraph* graph, Bytes reads, Label label) override;
  Status upload(QueueId queue, ggml_tensor* to, size_t offset, const void* from, size_t n_bytes,
                Label label) override;
  Status download(QueueId queue, const ggml_tensor* from, size_t offset, void* to, size_t n_bytes,
                  Label label) override;

  Result<Event> new_event() override;
  Status record(Event event, QueueId queue) override;
  Status queue_wait(QueueId queue, Event event) override;
  Status wait(Event event) override;
  Status wait_idle() override;

  double now_us() const override {
    return emulated_.virtual_clock ? timeline_.now_us() : steady_clock().now_us();
  }
  void host_reaches(double us) override { timeline_.host_reaches(us); }
  double event_time_us(Event event) const override;
  std::optional<double> modelled_cpu_us(Bytes reads) const override;
  void set_lane_threads(int n_threads) override { n_lane_threads_ = n_threads; }
  std::optional<double> modelled_copy_us(Bytes n_bytes) const override;

  const DeviceCounters& counters() const override { return counters_; }
  void reset_counters() override { counters_ = {}; }

 private:
  static DeviceInfo describe_device(const EmulatedOptions& emulated);
  double transfer_us(double n_bytes, double gbps) const {
    return emulated_.latency_us + n_bytes / (gbps * kBytesPerUsOfGbps);
  }
  // A rate as it is at the host's time.
  double rate_now(double gbps, double changed_gbps) const {
    const double now_us = timeline_.now_us();
    const bool has_changed = emulated_.change_us > 0 && now_us >= emulated_.change_us &&
                             !(emulated_.back_us > 0 && now_us >= emulated_.back_us);
    return has_changed && changed_gbps > 0 ? changed_gbps : gbps;
  }
  Status check_event(Event event) const;
  Status check_room(Bytes n_bytes, std::string_view what);
  bool is_overcommitted(const void* address) const;
  void inject_entry_faults(QueueEntry& entry);
  void enqueue(QueueId queue, QueueEntry entry, double duration_us);
  Status copy(QueueId queue, QueueEntry entry, const void* host);

  // On the queues' threads.
  Status work(const QueueEntry& entry);
  void show(QueueId queue, const QueueEntry& entry, double start_us, double duration_us);

  Backend cpu_;
  const EmulatedOptions emulated_;
  Profile* const profile_;
  const DeviceInfo info_;
  const Account used_ = std::make_shared<std::atomic<int64_t>>(0);
  const std::shared_ptr<PinnedMemory> pinned_ = PinnedMemory::create();
  bool said_pageable_ = false;
  int n_lane_threads_ = 1;
  VirtualTimeline timeline_;
  std::vector<double> event_us_;  // virtual time, by event
  // Device memory as it was allocated, with what was in use before.
  struct Allocation {
    const uint8_t* base = nullptr;
    int64_t n_bytes = 0;
    int64_t used_before = 0;
  };
  std::vector<Allocation> allocations_;  // the last one at an address counts
  DeviceCounters counters_;
  Random late_;
  int64_t n_entries_ = 0;
  int64_t n_copies_ = 0;
  int64_t n_graphs_ = 0;
  int64_t n_allocations_ = 0;
  EmulatedQueues queues_;  // last: its threads use the rest
};

DeviceInfo EmulatedDevice::describe_device(const EmulatedOptions& emulated) {
  return {.name = std::string(kName),
          .description = fmt::format(
              "emulated on the CPU: link {:g} GB/s and {:g} us, memory {:g} GB/s, {} clock",
              emulated.link_gbps, emulated.latency_us, emulated.device_gbps,
              emulated.virtual_clock ? "virtual" : "real"),
          .memory_total = emulated.memory,
          .memory_free = emulated.memory,
          .async_copies = !emulated.faults.refuse_pinned,
          .events = true,
          .pinned_memory = !emulated.faults.refuse_pinned,
          .shares_host_memory = emulated.shares_host_memory,
          .virtual_clock = emulated.virtual_clock,
          .computes_on_cpu = true,
          .exact_memory = emulated.fast_mib == 0,
          .overlap = Overlap::kYes};
}

Status EmulatedDevice::check_room(Bytes n_bytes, std::string_view what) {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  const bool refused = ++n_allocations_ == emulated_.faults.refuse_allocation;
  if (refused || n_bytes > free_memory()) {
    return make_error(ErrorCode::kOutOfMemory, "{}: {}: needs {}, {} of {} is free{}", kName, what,
                      to_string(n_bytes), to_string(free_memory()), to_string(emulated_.memory),
                      refused ? " (refused on request)" : "");
  }
  return {};
}

Result<DeviceBuffer> EmulatedDevice::allocate(ggml_context* context, std::string_view what) {
  const Bytes needed{
      static_cast<int64_t>(ggml_backend_alloc_ctx_tensors_from_buft_size(context, buffer_type()))};
  if (needed.count == 0) return DeviceBuffer();
  HOTSET_RETURN_IF_ERROR(check_room(needed, what));
  HOTSET_TRY(ggml_backend_buffer_ptr buffer, allocate_tensors(context, buffer_type(), what));
  ggml_backend_buffer_clear(buffer.get(), 0);
  allocations_.push_back({static_cast<const uint8_t*>(ggml_backend_buffer_get_base(buffer.get())),
                          needed.count, used_->load()});
  return DeviceBuffer(std::move(buffer), std::make_shared<Claim>(used_, needed.count));
}

Result<DeviceBuffer> EmulatedDevice::claim(Bytes n_bytes, std::string_view what) {
  if (n_bytes.count < 0) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {}: found {} bytes, expected at least 0",
                      kName, what, n_bytes.count);
  }
  HOTSET_RETURN_IF_ERROR(check_room(n_bytes, what));
  return DeviceBuffer(nullptr, std::make_shared<Claim>(used_, n_bytes.count));
}

Result<HostBuffer> EmulatedDevice::allocate_pinned(Bytes n_bytes, std::string_view what) {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  HOTSET_TRY(ggml_backend_buffer_ptr buffer, allocate_host(buffer_type(), n_bytes, what));
  if (!buffer) return HostBuffer();
  if (emulated_.faults.refuse_pinned) {
    if (!std::exchange(said_pageable_, true)) warn_pageable(kName, what, n_bytes);
    return HostBuffer(std::move(buffer), nullptr);
  }
  const void* base = ggml_backend_buffer_get_base(buffer.get());
  const size_t n = ggml_backend_buffer_get_size(buffer.get());
  return HostBuffer(std::move(buffer), pinned_->add(base, n));
}

bool EmulatedDevice::is_overcommitted(const void* address) const {
  if (emulated_.fast_mib == 0) return false;
  for (auto it = allocations_.rbegin(); it != allocations_.rend(); ++it) {
    const auto offset = static_cast<const uint8_t*>(address) - it->base;
    if (offset < 0 || offset >= it->n_bytes) continue;
    return Bytes{it->used_before + offset}.mib() >= emulated_.fast_mib;
  }
  return false;
}

void EmulatedDevice::inject_entry_faults(QueueEntry& entry) {
  const int64_t vanish = emulated_.faults.vanish;
  ++n_entries_;
  if (vanish == 0 || n_entries_ < vanish) return;
  entry.fault = QueueEntry::Fault::kVanish;
  entry.number = vanish;  // not n_entries_: either queue's thread may be the first to notice
}

void EmulatedDevice::enqueue(QueueId queue, QueueEntry entry, double duration_us) {
  if (emulated_.virtual_clock) {
    const VirtualTimeline::Span span = timeline_.enqueue(queue, duration_us);
    if (profile_ != nullptr) show(queue, entry, span.start_us, span.duration_us);
  }
  queues_.push(queue, entry);
}

Status EmulatedDevice::compute(ggml_cgraph* graph, Bytes reads, Label label) {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  HOTSET_RETURN_IF_ERROR(check_graph(graph, kName, label));
  QueueEntry entry{.kind = QueueEntry::Kind::kGraph, .label = label, .graph = graph};
  entry.number = ++n_graphs_;
  if (entry.number == emulated_.faults.fail_graph) entry.fault = QueueEntry::Fault::kFail;
  inject_entry_faults(entry);
  ++counters_.n_graphs;
  enqueue(QueueId::kCompute, entry,
          transfer_us(static_cast<double>(reads.count),
                      rate_now(emulated_.device_gbps, emulated_.changed_device_gbps)));
  return {};
}

Status EmulatedDevice::copy(QueueId queue, QueueEntry entry, const void* host) {
  const EmulatedFaults& faults = emulated_.faults;
  entry.number = ++n_copies_;
  if (entry.number == faults.fail_copy) entry.fault = QueueEntry::Fault::kFail;
  if (entry.number == faults.short_copy) entry.fault = QueueEntry::Fault::kShort;
  if (faults.late_us > 0) entry.late_us = late_.uniform() * faults.late_us;
  constexpr double kOvercommitted = 10;  // times as long
  const double duration_us =
      (entry.kind == QueueEntry::Kind::kUpload && is_overcommitted(entry.to) ? kOvercommitted : 1) *
      transfer_us(static_cast<double>(entry.n_bytes),
                  rate_now(emulated_.link_gbps, emulated_.changed_link_gbps));
  if (!emulated_.virtual_clock) entry.least_us = duration_us;
  inject_entry_faults(entry);
  enqueue(queue, entry, duration_us);
  if (pinned_->contains(host, entry.n_bytes)) return {};
  ++counters_.n_waits;
  queues_.wait_empty(queue);
  timeline_.host_reaches(timeline_.idle_us(queue));
  return queues_.status();
}

Status EmulatedDevice::upload(QueueId queue, ggml_tensor* to, size_t offset, const void* from,
                              size_t n_bytes, Label label) {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  if (n_bytes == 0) return {};
  HOTSET_TRY(const CopyRange range,
             check_copy({to, offset, from, n_bytes}, buffer_type(), kName, label));
  ++counters_.n_uploads;
  counters_.uploaded += Bytes{static_cast<int64_t>(n_bytes)};
  return copy(queue,
              {.kind = QueueEntry::Kind::kUpload,
               .label = label,
               .to = static_cast<uint8_t*>(range.tensor->data) + range.offset,
               .from = from,
               .n_bytes = n_bytes},
              from);
}

Status EmulatedDevice::download(QueueId queue, const ggml_tensor* from, size_t offset, void* to,
                                size_t n_bytes, Label label) {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  if (n_bytes == 0) return {};
  HOTSET_TRY(const CopyRange range,
             check_copy({from, offset, to, n_bytes}, buffer_type(), kName, label));
  ++counters_.n_downloads;
  counters_.downloaded += Bytes{static_cast<int64_t>(n_bytes)};
  return copy(queue,
              {.kind = QueueEntry::Kind::kDownload,
               .label = label,
               .to = to,
               .from = static_cast<const uint8_t*>(range.tensor->data) + range.offset,
               .n_bytes = n_bytes},
              to);
}

Result<Event> EmulatedDevice::new_event() {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  event_us_.push_back(0);
  return Event{queues_.new_event()};
}

Status EmulatedDevice::check_event(Event event) const {
  if (event.index >= 0 && event.index < queues_.n_events()) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: found event {}, expected one of {} events",
                    kName, event.index, queues_.n_events());
}

Status EmulatedDevice::record(Event event, QueueId queue) {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  HOTSET_RETURN_IF_ERROR(check_event(event));
  event_us_[event.index] = timeline_.record(queue);
  QueueEntry entry{.event = event.index};
  inject_entry_faults(entry);
  queues_.record(queue, entry);
  return {};
}

Status EmulatedDevice::queue_wait(QueueId queue, Event event) {
  HOTSET_RETURN_IF_ERROR(queues_.status());
  HOTSET_RETURN_IF_ERROR(check_event(event));
  timeline_.queue_waits(queue, event_us_[event.index]);
  QueueEntry entry{.event = event.index};
  inject_entry_faults(entry);
  queues_.queue_wait(queue, entry);
  return {};
}

Status EmulatedDevice::wait(Event event) {
  HOTSET_RETURN_IF_ERROR(check_event(event));
  ++counters_.n_waits;
  queues_.wait(event.index);
  timeline_.host_reaches(event_us_[event.index]);
  return queues_.status();
}

Status EmulatedDevice::wait_idle() {
  ++counters_.n_waits;
  for (const QueueId queue : {QueueId::kCompute, QueueId::kTransfer}) {
    queues_.wait_empty(queue);
    timeline_.host_reaches(timeline_.idle_us(queue));
  }
  return queues_.finish();
}

double EmulatedDevice::event_time_us(Event event) const {
  if (!check_event(event)) return 0;
  return emulated_.virtual_clock ? event_us_[event.index] : queues_.event_time_us(event.index);
}

std::optional<double> EmulatedDevice::modelled_cpu_us(Bytes reads) const {
  if (!emulated_.virtual_clock) return std::nullopt;
  double gbps = rate_now(emulated_.cpu_gbps, emulated_.changed_cpu_gbps);
  if (emulated_.cpu_thread_gbps > 0) {
    gbps = std::min(gbps, n_lane_threads_ * emulated_.cpu_thread_gbps);
  }
  return static_cast<double>(reads.count) / (gbps * kBytesPerUsOfGbps);
}

std::optional<double> EmulatedDevice::modelled_copy_us(Bytes n_bytes) const {
  if (!emulated_.virtual_clock) return std::nullopt;
  if (emulated_.host_gbps <= 0) return 0;
  return static_cast<double>(n_bytes.count) / (emulated_.host_gbps * kBytesPerUsOfGbps);
}

Status EmulatedDevice::work(const QueueEntry& entry) {
  if (entry.kind == QueueEntry::Kind::kGraph) {
    if (entry.fault == QueueEntry::Fault::kFail) {
      return make_error(ErrorCode::kDevice, "{}: {}: graph {} failed", kName,
                        describe("graph", entry.label), entry.number);
    }
    return cpu_.compute(entry.graph);
  }
  const std::string_view verb = entry.kind == QueueEntry::Kind::kUpload ? "upload" : "download";
  if (entry.fault == QueueEntry::Fault::kFail) {
    return make_error(ErrorCode::kDevice, "{}: {}: copy {} failed", kName,
                      describe(verb, entry.label), entry.number);
  }
  const size_t n_moved =
      entry.fault == QueueEntry::Fault::kShort ? entry.n_bytes / 2 : entry.n_bytes;
  std::memcpy(entry.to, entry.from, n_moved);
  if (n_moved != entry.n_bytes) {
    return make_error(ErrorCode::kDevice, "{}: {}: copy {} moved {} of {} bytes", kName,
                      describe(verb, entry.label), entry.number, n_moved, entry.n_bytes);
  }
  return {};
}

void EmulatedDevice::show(QueueId queue, const QueueEntry& entry, double start_us,
                          double duration_us) {
  profile_->add(queue == QueueId::kCompute ? Track::kCompute : Track::kTransfer, entry.label.name,
                entry.label.layer, start_us, duration_us);
}

}  // namespace

Result<std::unique_ptr<Device>> open_emulated_device(const EmulatedOptions& emulated,
                                                     const DeviceOptions& options) {
  HOTSET_TRY(Backend cpu, Backend::cpu(options.n_threads));
  return std::make_unique<EmulatedDevice>(std::move(cpu), emulated, options.profile);
}

}  // namespace hotset::device
