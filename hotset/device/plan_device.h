// A device on which nothing is allocated and nothing runs: what would be allocated on another one
// is counted, so that a plan is made by the code that later carries it out.
//
// Buffers have addresses (of memory that nobody may touch), so graphs can be built over them.
// Thread-compatible.
#ifndef HOTSET_DEVICE_PLAN_DEVICE_H_
#define HOTSET_DEVICE_PLAN_DEVICE_H_

#include <string>
#include <vector>

#include "hotset/device/device.h"

namespace hotset::device {

class PlanDevice final : public Device {
 public:
  struct Item {
    std::string what;
    Bytes n_bytes;
  };

  // `real` must outlive the object; it is asked what it supports and how large tensors are there.
  explicit PlanDevice(const Device& real) : real_(real) {}

  // Device memory, and pinned host memory, in order.
  const std::vector<Item>& items() const { return items_; }
  const std::vector<Item>& pinned_items() const { return pinned_items_; }
  // All items of that name together.
  Bytes total(std::string_view what) const;

  const DeviceInfo& info() const override { return real_.info(); }
  bool plans_only() const override { return true; }
  ggml_backend_buffer_type_t buffer_type() const override { return real_.buffer_type(); }
  bool supports(const ggml_tensor* op) const override { return real_.supports(op); }
  // Errors: kOutOfMemory, not even addresses are left.
  Result<DeviceBuffer> allocate(ggml_context* context, std::string_view what) override;
  Result<DeviceBuffer> claim(Bytes n_bytes, std::string_view what) override;
  Result<HostBuffer> allocate_pinned(Bytes n_bytes, std::string_view what) override;
  Bytes free_memory() const override { return real_.free_memory(); }

  Status compute(ggml_cgraph* graph, Bytes reads, Label label) override;
  Status upload(QueueId queue, ggml_tensor* to, size_t offset, const void* from, size_t n_bytes,
                Label label) override;
  Status download(QueueId queue, const ggml_tensor* from, size_t offset, void* to, size_t n_bytes,
                  Label label) override;
  Result<Event> new_event() override { return Event{0}; }
  Status record(Event event, QueueId queue) override;
  Status queue_wait(QueueId queue, Event event) override;
  Status wait(Event event) override;
  Status wait_idle() override { return {}; }
  double now_us() const override { return 0; }
  void host_reaches(double us) override;
  double event_time_us(Event event) const override;
  std::optional<double> modelled_cpu_us(Bytes reads) const override;
  void set_lane_threads(int n_threads) override;
  std::optional<double> modelled_copy_us(Bytes n_bytes) const override;
  const DeviceCounters& counters() const override { return counters_; }
  void reset_counters() override { counters_ = {}; }

 private:
  const Device& real_;
  std::vector<Item> items_;
  std::vector<Item> pinned_items_;
  DeviceCounters counters_;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_PLAN_DEVICE_H_
