#include "hotset/device/ggml_device.h"

#include <array>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/base/clock.h"
#include "hotset/base/log.h"
#include "hotset/device/backend.h"
#include "hotset/device/ggml_runtime.h"
#include "hotset/device/observed_times.h"
#include "hotset/device/overlap_probe.h"
#include "hotset/device/pinned_memory.h"
#include "hotset/device/queue_checks.h"
#include "hotset/device/queue_progress.h"

namespace hotset::device {
namespace {

constexpr std::array kQueues = {QueueId::kCompute, QueueId::kTransfer};

// ggml's Vulkan backend keeps what every entry used until its instance is synchronised, and an
// event object per recording until the event is. Both are done when they cost nothing, because the
// host knows that the work is done; when that does not come, at last with a wait.
constexpr int64_t kTidyAfterEntries = 2048;
constexpr int64_t kTidyAtLastEntries = 16384;
constexpr int64_t kTidyAfterRecords = 16;
constexpr int64_t kTidyAtLastRecords = 1024;

struct FreeBackend {
  void operator()(ggml_backend_t backend) const {
    try {
      ggml_backend_free(backend);
    } catch (const std::exception& error) {
      log_warning("a backend did not end cleanly: {}", error.what());
    }
  }
};
using BackendOwner = std::unique_ptr<ggml_backend, FreeBackend>;

class GgmlDevice final : public Device {
 public:
  static Result<std::unique_ptr<GgmlDevice>> open(ggml_backend_dev_t device);
  ~GgmlDevice() override;

  void set_overlap(Overlap overlap) { info_.overlap = overlap; }
  void set_profile(Profile* profile) {
    if (profile != nullptr) observed_.emplace(*profile);
  }

  const DeviceInfo& info() const override { return info_; }
  ggml_backend_buffer_type_t buffer_type() const override {
    return ggml_backend_dev_buffer_type(device_);
  }
  bool supports(const ggml_tensor* op) const override {
    return ggml_backend_dev_supports_op(device_, op);
  }

  Result<DeviceBuffer> allocate(ggml_context* context, std::string_view what) override;
  Result<DeviceBuffer> claim(Bytes, std::string_view) override { return DeviceBuffer(); }
  Result<HostBuffer> allocate_pinned(Bytes n_bytes, std::string_view what) override;
  Bytes free_memory() const override;

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

  double now_us() const override { return steady_clock().now_us(); }
  void host_reaches(double) override {}
  double event_time_us(Event event) const override;
  std::optional<double> modelled_cpu_us(Bytes) const override { return std::nullopt; }
  void set_lane_threads(int) override {}
  std::optional<double> modelled_copy_us(Bytes) const override { return std::nullopt; }

  const DeviceCounters& counters() const override { return counters_; }
  void reset_counters() override { counters_ = {}; }

 private:
  enum class Work : uint8_t { kNone, kGraph, kUpload, kDownload };

  struct Stream {
    BackendOwner backend;
    Work last = Work::kNone;
    int32_t mark = -1;     // event recorded right behind the last work, or -1
    int64_t mark_at = -1;  // the entry that this recording was
    int32_t fence = -1;    // the stream's own event, for order()
    int64_t n_untidy = 0;  // entries since the instance was last synchronised
  };
  struct EventState {
    ggml_backend_event_ptr event;  // null on devices without events
    QueueId queue = QueueId::kCompute;
    bool recorded = false;
    Progress point;          // its last recording
    Progress uses;           // its recordings and the queues' waits for it
    int64_t n_untidy = 0;    // recordings since the event was last synchronised
    double happened_us = 0;  // as the host learned
  };

  explicit GgmlDevice(ggml_backend_dev_t device) : device_(device) {}
  Status start();
  Stream& stream(QueueId queue) { return streams_[std::to_underlying(queue)]; }
  EventState& state(int32_t index) { return events_[index]; }
  bool refuses_pinned(Bytes n_bytes) const;

  Status failure() const {
    if (failure_) return std::unexpected(*failure_);
    return {};
  }
  // Makes a call to ggml. What it throws becomes the device's failure.
  template <typename Call>
  Status guarded(const char* what, const Call& call, Label label = {});
  Status check_event(Event event) const;
  Status order(QueueId queue, Work next);
  Status synchronise(QueueId queue);
  Status wait_for(EventState& event);
  Status tidy(EventState& event);
  Status tidy_streams();
  void queued(QueueId queue, Label label, Work work);
  void done_at_once(QueueId queue, Label label, double start_us);
  template <typename Async, typename Blocking>
  Status copy(QueueId queue, Work work, bool pinned, Label label, const Async& start_copy,
              const Blocking& copy_now);

  ggml_backend_dev_t device_;
  DeviceInfo info_;
  ggml_backend_buffer_type_t host_type_ = nullptr;  // pinned memory; null: there is none
  bool async_ = false;
  // Vulkan runs an instance's uploads on another hardware queue than its graphs and downloads where
  // it can, and orders them by events only.
  bool reorders_ = false;
  std::array<Stream, 2> streams_;   // by queue; without async_ only the first
  std::vector<EventState> events_;  // after the backends: they go first
  QueueProgress progress_;
  std::shared_ptr<PinnedMemory> pinned_ = PinnedMemory::create();
  bool said_pageable_ = false;
  DeviceCounters counters_;
  std::optional<Error> failure_;
  std::optional<ObservedTimes> observed_;
};

template <typename Call>
Status GgmlDevice::guarded(const char* what, const Call& call, Label label) {
  try {
    call();
    return {};
  } catch (const std::exception& error) {
    failure_ = Error{ErrorCode::kDevice,
                     fmt::format("{}: {}: {}", info_.name, describe(what, label), error.what())};
    return failure();
  }
}

Result<std::unique_ptr<GgmlDevice>> GgmlDevice::open(ggml_backend_dev_t device) {
  std::unique_ptr<GgmlDevice> opened(new GgmlDevice(device));
  HOTSET_RETURN_IF_ERROR(opened->start());
  return opened;
}

Status GgmlDevice::start() {
  info_.name = ggml_backend_dev_name(device_);
  ggml_backend_dev_props props{};
  HOTSET_RETURN_IF_ERROR(guarded("properties", [&] {
    ggml_backend_dev_get_props(device_, &props);
    info_.description = props.description != nullptr ? props.description : "";
  }));
  info_.memory_total = {static_cast<int64_t>(props.memory_total)};
  info_.memory_free = {static_cast<int64_t>(props.memory_free)};
  info_.shares_host_memory = props.type == GGML_BACKEND_DEVICE_TYPE_IGPU;
  async_ = props.caps.async && props.caps.events;
  reorders_ =
      std::string_view(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device_))) == "Vulkan";
  HOTSET_RETURN_IF_ERROR(expect_memory(info_.name));
  for (Stream& s : streams_) {
    HOTSET_RETURN_IF_ERROR(
        guarded("start", [&] { s.backend.reset(ggml_backend_dev_init(device_, nullptr)); }));
    if (!s.backend) {
      return make_error(ErrorCode::kDevice, "{}: its backend does not start", info_.name);
    }
    if (!async_) break;
  }
  if (props.caps.host_buffer) {
    HOTSET_RETURN_IF_ERROR(
        guarded("pinned memory", [&] { host_type_ = ggml_backend_dev_host_buffer_type(device_); }));
  }
  // Vulkan pins memory for its first device only; the others would take it for pageable.
  if (reorders_ && host_type_ != nullptr && ggml_backend_buft_get_device(host_type_) != device_) {
    host_type_ = nullptr;
  }
  HOTSET_TRY(const HostBuffer trial, allocate_pinned(Bytes{4096}, "trial"));
  info_.pinned_memory = trial.pinned();
  info_.async_copies = async_ && info_.pinned_memory;
  info_.events = async_;
  if (!async_ || !reorders_) return {};
  for (Stream& s : streams_) {
    HOTSET_TRY(const Event fence, new_event());
    s.fence = fence.index;
  }
  return {};
}

GgmlDevice::~GgmlDevice() {
  for (const QueueId queue : kQueues) {
    if (failure_ || !async_) break;
    // A failure here is kept in failure_.
    [[maybe_unused]] const Status status = synchronise(queue);
  }
  if (!failure_) return;
  // What a lost device was doing is unknown, and ggml would wait for it or abort: leave it be.
  for (EventState& event : events_) {
    [[maybe_unused]] const auto* left = event.event.release();
  }
  for (Stream& s : streams_) {
    [[maybe_unused]] const auto* left = s.backend.release();
  }
}

Result<DeviceBuffer> GgmlDevice::allocate(ggml_context* context, std::string_view what) {
  HOTSET_RETURN_IF_ERROR(failure());
  HOTSET_RETURN_IF_ERROR(expect_memory(what));
  const Bytes needed{
      static_cast<int64_t>(ggml_backend_alloc_ctx_tensors_from_buft_size(context, buffer_type()))};
  if (needed.count == 0) return DeviceBuffer();
  // Drivers overcommit into host memory without an error, and everything is slow.
  const Bytes free = free_memory();
  ggml_backend_buffer_ptr buffer;
  if (needed <= free || info_.memory_total.count == 0) {
    HOTSET_RETURN_IF_ERROR(guarded("allocate", [&] {
      buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(context, buffer_type()));
      if (buffer) ggml_backend_buffer_clear(buffer.get(), 0);
    }));
  }
  if (!buffer) {
    return make_error(ErrorCode::kOutOfMemory, "{}: {}: needs {}, {} of {} is free", info_.name,
                      what, to_string(needed), to_string(free), to_string(info_.memory_total));
  }
  return DeviceBuffer(std::move(buffer), nullptr);
}

bool GgmlDevice::refuses_pinned(Bytes n_bytes) const {
  return host_type_ == nullptr || pinned_->total() + n_bytes > pinned_memory_limit() ||
         n_bytes > available_host_memory();
}

Result<HostBuffer> GgmlDevice::allocate_pinned(Bytes n_bytes, std::string_view what) {
  HOTSET_RETURN_IF_ERROR(failure());
  HOTSET_RETURN_IF_ERROR(expect_memory(what));
  if (n_bytes.count > 0 && !refuses_pinned(n_bytes)) {
    ggml_backend_buffer_ptr buffer;
    HOTSET_RETURN_IF_ERROR(guarded("pinned memory", [&] {
      buffer.reset(ggml_backend_buft_alloc_buffer(host_type_, static_cast<size_t>(n_bytes.count)));
    }));
    // A driver that refuses to pin quietly gives a buffer of the CPU's type.
    if (buffer && ggml_backend_buffer_get_type(buffer.get()) == host_type_) {
      const void* base = ggml_backend_buffer_get_base(buffer.get());
      const size_t n = ggml_backend_buffer_get_size(buffer.get());
      return HostBuffer(std::move(buffer), pinned_->add(base, n));
    }
  }
  HOTSET_TRY(ggml_backend_buffer_ptr buffer,
             allocate_host(ggml_backend_dev_buffer_type(cpu_device()), n_bytes, what));
  if (host_type_ != nullptr && buffer && !std::exchange(said_pageable_, true)) {
    warn_pageable(info_.name, what, n_bytes);
  }
  return HostBuffer(std::move(buffer), nullptr);
}

Bytes GgmlDevice::free_memory() const {
  size_t free = 0;
  size_t total = 0;
  try {
    ggml_backend_dev_memory(device_, &free, &total);
  } catch (const std::exception&) {
    return {};  // a device that cannot even say has nothing to give
  }
  return {static_cast<int64_t>(free)};
}

void GgmlDevice::queued(QueueId queue, Label label, Work work) {
  const Progress point = progress_.enqueue(queue);
  Stream& s = stream(queue);
  s.last = work;
  s.mark = -1;
  ++s.n_untidy;
  if (observed_) observed_->queued(queue, label, point[queue], now_us());
}

void GgmlDevice::done_at_once(QueueId queue, Label label, double start_us) {
  if (!observed_) return;
  const double end_us = now_us();
  observed_->queued(queue, label, 0, start_us);
  observed_->saw(progress_.done(), end_us);
}

// Makes `next` start after what is on the queue, where ggml does not do so by itself.
Status GgmlDevice::order(QueueId queue, Work next) {
  Stream& s = stream(queue);
  const bool in_order = s.last == Work::kNone || s.last == next ||
                        (s.last == Work::kGraph && next == Work::kDownload);
  if (!reorders_ || in_order) return {};
  const bool marked =
      s.mark >= 0 && state(s.mark).queue == queue && state(s.mark).point[queue] == s.mark_at;
  if (!marked) HOTSET_RETURN_IF_ERROR(record({s.fence}, queue));
  EventState& mark = state(s.mark);
  HOTSET_RETURN_IF_ERROR(
      guarded("order", [&] { ggml_backend_event_wait(s.backend.get(), mark.event.get()); }));
  mark.uses.include(progress_.enqueue(queue));
  return {};
}

Status GgmlDevice::synchronise(QueueId queue) {
  Stream& s = stream(queue);
  HOTSET_RETURN_IF_ERROR(
      guarded("synchronise", [&] { ggml_backend_synchronize(s.backend.get()); }));
  progress_.host_saw_empty(queue);
  s.n_untidy = 0;
  if (observed_) observed_->saw(progress_.done(), now_us());
  return {};
}

Status GgmlDevice::compute(ggml_cgraph* graph, Bytes, Label label) {
  HOTSET_RETURN_IF_ERROR(failure());
  HOTSET_RETURN_IF_ERROR(check_graph(graph, info_.name, label));
  ++counters_.n_graphs;
  if (async_) HOTSET_RETURN_IF_ERROR(order(QueueId::kCompute, Work::kGraph));
  const double start_us = now_us();
  ggml_status status = GGML_STATUS_FAILED;
  ggml_backend_t backend = stream(QueueId::kCompute).backend.get();
  const auto call = [&] {
    status = async_ ? ggml_backend_graph_compute_async(backend, graph)
                    : ggml_backend_graph_compute(backend, graph);
  };
  HOTSET_RETURN_IF_ERROR(guarded("graph", call, label));
  if (status != GGML_STATUS_SUCCESS) {
    failure_ =
        Error{ErrorCode::kDevice, fmt::format("{}: {}: {}", info_.name, describe("graph", label),
                                              ggml_status_to_string(status))};
    return failure();
  }
  if (async_) {
    queued(QueueId::kCompute, label, Work::kGraph);
  } else {
    ++counters_.n_waits;
    done_at_once(QueueId::kCompute, label, start_us);
  }
  return {};
}

template <typename Async, typename Blocking>
Status GgmlDevice::copy(QueueId queue, Work work, bool pinned, Label label, const Async& start_copy,
                        const Blocking& copy_now) {
  if (async_ && pinned) {
    HOTSET_RETURN_IF_ERROR(order(queue, work));
    HOTSET_RETURN_IF_ERROR(
        guarded("copy", [&] { start_copy(stream(queue).backend.get()); }, label));
    queued(queue, label, work);
    return {};
  }
  ++counters_.n_waits;
  const double start_us = now_us();
  if (async_) HOTSET_RETURN_IF_ERROR(synchronise(queue));
  HOTSET_RETURN_IF_ERROR(guarded("copy", copy_now, label));
  done_at_once(queue, label, start_us);
  return {};
}

Status GgmlDevice::upload(QueueId queue, ggml_tensor* to, size_t offset, const void* from,
                          size_t n_bytes, Label label) {
  HOTSET_RETURN_IF_ERROR(failure());
  if (n_bytes == 0) return {};
  HOTSET_TRY(const CopyRange range,
             check_copy({to, offset, from, n_bytes}, buffer_type(), info_.name, label));
  ++counters_.n_uploads;
  counters_.uploaded += Bytes{static_cast<int64_t>(n_bytes)};
  return copy(
      queue, Work::kUpload, pinned_->contains(from, n_bytes), label,
      [&](ggml_backend_t backend) {
        ggml_backend_tensor_set_async(backend, range.tensor, from, range.offset, n_bytes);
      },
      [&] { ggml_backend_tensor_set(range.tensor, from, range.offset, n_bytes); });
}

Status GgmlDevice::download(QueueId queue, const ggml_tensor* from, size_t offset, void* to,
                            size_t n_bytes, Label label) {
  HOTSET_RETURN_IF_ERROR(failure());
  if (n_bytes == 0) return {};
  HOTSET_TRY(const CopyRange range,
             check_copy({from, offset, to, n_bytes}, buffer_type(), info_.name, label));
  ++counters_.n_downloads;
  counters_.downloaded += Bytes{static_cast<int64_t>(n_bytes)};
  return copy(
      queue, Work::kDownload, pinned_->contains(to, n_bytes), label,
      [&](ggml_backend_t backend) {
        ggml_backend_tensor_get_async(backend, range.tensor, to, range.offset, n_bytes);
      },
      [&] { ggml_backend_tensor_get(range.tensor, to, range.offset, n_bytes); });
}

Result<Event> GgmlDevice::new_event() {
  HOTSET_RETURN_IF_ERROR(failure());
  HOTSET_RETURN_IF_ERROR(expect_memory("an event"));
  EventState made;
  if (async_) {
    HOTSET_RETURN_IF_ERROR(
        guarded("new event", [&] { made.event.reset(ggml_backend_event_new(device_)); }));
    if (!made.event) return make_error(ErrorCode::kDevice, "{}: no event to be had", info_.name);
  }
  events_.push_back(std::move(made));
  return Event{static_cast<int32_t>(events_.size()) - 1};
}

Status GgmlDevice::check_event(Event event) const {
  if (event.index >= 0 && static_cast<size_t>(event.index) < events_.size()) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: found event {}, expected one of {} events",
                    info_.name, event.index, events_.size());
}

Status GgmlDevice::wait_for(EventState& event) {
  HOTSET_RETURN_IF_ERROR(
      guarded("wait", [&] { ggml_backend_event_synchronize(event.event.get()); }));
  event.n_untidy = 0;
  event.happened_us = now_us();
  progress_.host_saw(event.point);
  if (observed_) observed_->saw(progress_.done(), event.happened_us);
  return {};
}

Status GgmlDevice::tidy(EventState& event) {
  if (event.n_untidy < kTidyAfterRecords) return {};
  const bool done = progress_.is_done(event.uses);
  if (!done && event.n_untidy < kTidyAtLastRecords) return {};
  if (!done) ++counters_.n_waits;
  return wait_for(event);
}

Status GgmlDevice::tidy_streams() {
  for (const QueueId queue : kQueues) {
    const int64_t n_untidy = stream(queue).n_untidy;
    const bool empty = progress_.is_empty(queue);
    if (n_untidy < (empty ? kTidyAfterEntries : kTidyAtLastEntries)) continue;
    if (!empty) ++counters_.n_waits;
    HOTSET_RETURN_IF_ERROR(synchronise(queue));
  }
  return {};
}

Status GgmlDevice::record(Event event, QueueId queue) {
  HOTSET_RETURN_IF_ERROR(failure());
  HOTSET_RETURN_IF_ERROR(check_event(event));
  EventState& e = state(event.index);
  e.recorded = true;
  e.queue = queue;
  if (!async_) {
    e.happened_us = now_us();
    return {};
  }
  HOTSET_RETURN_IF_ERROR(tidy(e));
  Stream& s = stream(queue);
  HOTSET_RETURN_IF_ERROR(
      guarded("record", [&] { ggml_backend_event_record(e.event.get(), s.backend.get()); }));
  e.point = progress_.enqueue(queue);
  e.uses.include(e.point);
  ++e.n_untidy;
  ++s.n_untidy;
  s.mark = event.index;
  s.mark_at = e.point[queue];
  return {};
}

Status GgmlDevice::queue_wait(QueueId queue, Event event) {
  HOTSET_RETURN_IF_ERROR(failure());
  HOTSET_RETURN_IF_ERROR(check_event(event));
  EventState& e = state(event.index);
  if (!async_ || !e.recorded || e.queue == queue) return {};
  Stream& s = stream(queue);
  HOTSET_RETURN_IF_ERROR(
      guarded("queue wait", [&] { ggml_backend_event_wait(s.backend.get(), e.event.get()); }));
  progress_.queue_waits(queue, e.point);
  e.uses.include(progress_.enqueue(queue));
  ++s.n_untidy;
  return {};
}

Status GgmlDevice::wait(Event event) {
  HOTSET_RETURN_IF_ERROR(check_event(event));
  ++counters_.n_waits;
  HOTSET_RETURN_IF_ERROR(failure());
  EventState& e = state(event.index);
  if (!async_ || !e.recorded) return {};
  HOTSET_RETURN_IF_ERROR(wait_for(e));
  return tidy_streams();
}

Status GgmlDevice::wait_idle() {
  ++counters_.n_waits;
  HOTSET_RETURN_IF_ERROR(failure());
  if (!async_) return {};
  for (const QueueId queue : kQueues) HOTSET_RETURN_IF_ERROR(synchronise(queue));
  return {};
}

double GgmlDevice::event_time_us(Event event) const {
  return check_event(event) ? events_[event.index].happened_us : 0;
}

}  // namespace

Result<std::vector<ggml_backend_dev_t>> find_ggml_devices() {
  HOTSET_RETURN_IF_ERROR(init_ggml());
  std::vector<ggml_backend_dev_t> devices;
  for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
    ggml_backend_dev_t device = ggml_backend_dev_get(i);
    const auto type = ggml_backend_dev_type(device);
    if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
      devices.push_back(device);
    }
  }
  return devices;
}

Result<std::unique_ptr<Device>> open_ggml_device(ggml_backend_dev_t device,
                                                 const DeviceOptions& options) {
  HOTSET_TRY(std::unique_ptr<GgmlDevice> opened, GgmlDevice::open(device));
  if (!opened->info().async_copies) {
    opened->set_overlap(Overlap::kNo);
  } else if (options.test_overlap) {
    HOTSET_TRY(const Overlap overlap, probe_overlap(*opened));
    opened->set_overlap(overlap);
  }
  opened->reset_counters();
  opened->set_profile(options.profile);
  return opened;
}

}  // namespace hotset::device
