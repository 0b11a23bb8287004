// A device on which nothing is allocated and nothing runs: what would be allocated on another one
// is counted, so that a plan is made by the code that later carries it out.
//
// Buffers have addresses (of memory that nobody may touch), so graphs can be built over them.
// Thread-compatible.
#ifndef HOTSET_DEVICE_PLAN_DEVICE_H_
#define HOTSET_DEVICE_PLAN_DEVICE_H_

#include <string>
#include <vector>

#include "hotset/device/device_memory.h"

namespace hotset::device {

class PlanDevice final : public DeviceMemory {
 public:
  struct Item {
    std::string what;
    Bytes n_bytes;
  };

  // `real` must outlive the object; it is asked what it supports and how large tensors are there.
  explicit PlanDevice(const DeviceMemory& real) : real_(real) {}

  // Device memory, and pinned host memory, in order.
  const std::vector<Item>& items() const { return items_; }
  const std::vector<Item>& pinned_items() const { return pinned_items_; }
  // All items of that name together.
  Bytes total(std::string_view what) const;

  const DeviceInfo& info() const override { return real_.info(); }
  Device* device() override { return nullptr; }
  ggml_backend_buffer_type_t buffer_type() const override { return real_.buffer_type(); }
  bool supports(const ggml_tensor* op) const override { return real_.supports(op); }
  // Errors: kOutOfMemory, not even addresses are left.
  Result<DeviceBuffer> allocate(ggml_context* context, std::string_view what) override;
  Result<DeviceBuffer> claim(Bytes n_bytes, std::string_view what) override;
  Result<HostBuffer> allocate_pinned(Bytes n_bytes, std::string_view what) override;
  Bytes free_memory() const override { return real_.free_memory(); }

 private:
  const DeviceMemory& real_;
  std::vector<Item> items_;
  std::vector<Item> pinned_items_;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_PLAN_DEVICE_H_
