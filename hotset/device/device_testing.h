// What the tests of devices share: tensors in device memory, graphs over them, and a fixture that
// every device is put through.
#ifndef HOTSET_DEVICE_DEVICE_TESTING_H_
#define HOTSET_DEVICE_DEVICE_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "hotset/device/device.h"
#include "hotset/device/ggml_device.h"
#include "hotset/device/ggml_runtime.h"

namespace hotset::device {

#define ASSERT_OK(expr)                                              \
  do {                                                               \
    const auto hotset_ok = (expr);                                   \
    ASSERT_TRUE(hotset_ok.has_value()) << hotset_ok.error().message; \
  } while (false)

// Tensors of one context in one buffer of a device.
class Tensors {
 public:
  explicit Tensors(size_t n_tensors = 1024) {
    context_.reset(ggml_init({.mem_size = ggml_tensor_overhead() * n_tensors +
                                          ggml_graph_overhead_custom(32, false) * n_tensors,
                              .mem_buffer = nullptr,
                              .no_alloc = true}));
  }

  ggml_context* context() { return context_.get(); }
  // [n] F32
  ggml_tensor* vector(int64_t n) { return ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, n); }
  // to = a + b, elementwise, in a graph of its own.
  ggml_cgraph* sum(ggml_tensor* a, ggml_tensor* b, ggml_tensor* to) {
    ggml_cgraph* graph = ggml_new_graph_custom(context_.get(), 32, false);
    ggml_build_forward_expand(graph, ggml_cpy(context_.get(), ggml_add(context_.get(), a, b), to));
    return graph;
  }
  Status allocate(Device& device) {
    HOTSET_TRY(buffer_, device.allocate(context_.get(), "test"));
    return {};
  }

 private:
  ggml_context_ptr context_;
  DeviceBuffer buffer_;
};

// A pinned buffer of floats.
class HostFloats {
 public:
  HostFloats(Device& device, size_t n) {
    auto buffer = device.allocate_pinned({static_cast<int64_t>(n * sizeof(float))}, "test");
    if (!buffer) {
      ADD_FAILURE() << buffer.error().message;
      return;
    }
    buffer_ = *std::move(buffer);
    values_ = {reinterpret_cast<float*>(buffer_.data()), n};
    std::fill(values_.begin(), values_.end(), 0.0F);
  }

  float* data() { return values_.data(); }
  size_t n_bytes() const { return values_.size_bytes(); }
  float& operator[](size_t i) { return values_[i]; }
  std::span<float> values() { return values_; }
  std::vector<float> copy() const { return {values_.begin(), values_.end()}; }
  bool pinned() const { return buffer_.pinned(); }

 private:
  HostBuffer buffer_;
  std::span<float> values_;
};

// Every device passes these tests. The parameter is a device as open_device() takes it, or "CPU";
// where it does not exist, the tests are skipped.
class DeviceSuite : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { reopen({.test_overlap = false}); }
  void reopen(const DeviceOptions& options) {
    device_.reset();
    auto opened = open(GetParam(), options);
    if (!opened && opened.error().code == ErrorCode::kNotFound) {
      GTEST_SKIP() << opened.error().message;
    }
    ASSERT_TRUE(opened) << opened.error().message;
    device_ = *std::move(opened);
  }
  static Result<std::unique_ptr<Device>> open(const std::string& name,
                                              const DeviceOptions& options) {
    if (name != "CPU") return open_device(name, options);
    HOTSET_RETURN_IF_ERROR(init_ggml());
    return open_ggml_device(cpu_device(), options);
  }
  Event new_event() {
    auto event = device_->new_event();
    EXPECT_TRUE(event) << event.error().message;
    return event.value_or(Event{});
  }

  std::unique_ptr<Device> device_;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_DEVICE_TESTING_H_
