#include "hotset/device/overlap_probe.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "hotset/base/log.h"
#include "hotset/device/tensor_context.h"

namespace hotset::device {
namespace {

// Large enough that a copy takes much longer than a launch (0.17 ms at 25 GB/s).
constexpr Bytes kCopyBytes = mib(4);
constexpr int kMaxNodes = 256;
constexpr size_t kGraphSize = 2 * size_t{kMaxNodes};  // nodes and leafs
constexpr int kMaxCopies = 64;
constexpr int kRounds = 5;
constexpr double kBudgetUs = 400e3;

class OverlapProbe {
 public:
  explicit OverlapProbe(Device& device) : device_(device) {}

  Result<Overlap> run() {
    HOTSET_RETURN_IF_ERROR(prepare());
    if (!host_.pinned() || !device_.supports(chain_.front())) return Overlap::kUntested;
    // The first time compiles shaders and maps memory.
    ggml_cgraph* one_node = make_graph(1);
    HOTSET_RETURN_IF_ERROR(upload(work_));
    HOTSET_RETURN_IF_ERROR(upload(target_));
    HOTSET_RETURN_IF_ERROR(device_.compute(one_node, {}, {"overlap"}));
    HOTSET_RETURN_IF_ERROR(device_.wait_idle());

    HOTSET_TRY(const double one_copy_us, fastest([this] { return upload(target_); }));
    HOTSET_TRY(const double node_us, fastest([&] { return compute(one_node); }));
    // Both take about as long: a short one would be lost in the noise of a long one.
    const double target_us = std::max(4 * one_copy_us, node_us);
    const int n_nodes = std::clamp(static_cast<int>(target_us / node_us), 1, kMaxNodes);
    const int n_copies = std::clamp(static_cast<int>(target_us / one_copy_us), 1, kMaxCopies);
    const double expected_us = kRounds * 2 * (n_nodes * node_us + n_copies * one_copy_us);
    if (expected_us > kBudgetUs) {
      log_debug("{}: overlap not tested, it would take {:.0f} us", device_.info().name,
                expected_us);
      return Overlap::kUntested;
    }
    ggml_cgraph* graph = make_graph(n_nodes);
    // A busy machine can feign overlap once, hardly twice.
    for (int trial = 0; trial < 2; ++trial) {
      HOTSET_TRY(const bool overlapped, overlaps(graph, n_copies));
      if (!overlapped) return Overlap::kNo;
    }
    return Overlap::kYes;
  }

 private:
  Status prepare() {
    HOTSET_TRY(context_, new_tensor_context(kMaxNodes + 2, kGraphSize, 2));
    const int64_t n = kCopyBytes.count / static_cast<int64_t>(sizeof(float));
    work_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, n);
    target_ = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, n);
    ggml_tensor* last = work_;
    for (int i = 0; i < kMaxNodes; ++i) {
      last = ggml_scale_inplace(context_.get(), last, 1.0F);
      chain_.push_back(last);
    }
    HOTSET_TRY(memory_, device_.allocate(context_.get(), "overlap test"));
    HOTSET_TRY(host_, device_.allocate_pinned(kCopyBytes, "overlap test"));
    std::memset(host_.data(), 0, host_.n_bytes());
    return {};
  }

  ggml_cgraph* make_graph(int n_nodes) {
    ggml_cgraph* graph = ggml_new_graph_custom(context_.get(), kGraphSize, false);
    ggml_build_forward_expand(graph, chain_[static_cast<size_t>(n_nodes) - 1]);
    return graph;
  }

  Status upload(ggml_tensor* to) {
    return device_.upload(QueueId::kTransfer, to, 0, host_.data(),
                          static_cast<size_t>(kCopyBytes.count), {"overlap"});
  }
  Status compute(ggml_cgraph* graph) { return device_.compute(graph, {}, {"overlap"}); }
  Status copies(int n) {
    for (int i = 0; i < n; ++i) HOTSET_RETURN_IF_ERROR(upload(target_));
    return {};
  }
  Status both(ggml_cgraph* graph, int n_copies) {
    HOTSET_RETURN_IF_ERROR(compute(graph));
    return copies(n_copies);
  }

  // In a row a graph and copies take the sum of their times, overlapped the longer one: half-way
  // decides.
  static bool saves(double graph_us, double copies_us, double both_us) {
    return graph_us + copies_us - both_us > std::min(graph_us, copies_us) / 2;
  }

  Result<bool> overlaps(ggml_cgraph* graph, int n_copies) {
    double graph_us = std::numeric_limits<double>::infinity();
    double copies_us = graph_us;
    double both_us = graph_us;
    int n_saved = 0;
    // In turns, so that a disturbance of the machine meets all of them.
    for (int round = 0; round < kRounds; ++round) {
      HOTSET_TRY(const double graph_now_us, timed([&] { return compute(graph); }));
      HOTSET_TRY(const double both_now_us, timed([&] { return both(graph, n_copies); }));
      HOTSET_TRY(const double copies_now_us, timed([&] { return copies(n_copies); }));
      if (saves(graph_now_us, copies_now_us, both_now_us)) ++n_saved;
      graph_us = std::min(graph_us, graph_now_us);
      both_us = std::min(both_us, both_now_us);
      copies_us = std::min(copies_us, copies_now_us);
    }
    const bool overlapped = saves(graph_us, copies_us, both_us) && n_saved >= kRounds - 1;
    log_debug("{}: graph {:.0f} us, {} copies {:.0f} us, both {:.0f} us, less in {} of {}: {}",
              device_.info().name, graph_us, n_copies, copies_us, both_us, n_saved, kRounds,
              overlapped ? "they overlap" : "they do not overlap");
    return overlapped;
  }

  // How long it takes to queue work and see it done.
  template <typename Work>
  Result<double> timed(const Work& work) {
    const double start_us = device_.now_us();
    HOTSET_RETURN_IF_ERROR(work());
    HOTSET_RETURN_IF_ERROR(device_.wait_idle());
    return device_.now_us() - start_us;
  }
  template <typename Work>
  Result<double> fastest(const Work& work) {
    double least_us = std::numeric_limits<double>::infinity();
    for (int round = 0; round < kRounds; ++round) {
      HOTSET_TRY(const double us, timed(work));
      least_us = std::min(least_us, us);
    }
    return std::max(least_us, 1.0);
  }

  Device& device_;
  TensorContext context_;
  ggml_tensor* work_ = nullptr;
  ggml_tensor* target_ = nullptr;
  std::vector<ggml_tensor*> chain_;
  DeviceBuffer memory_;
  HostBuffer host_;
};

}  // namespace

Result<Overlap> probe_overlap(Device& device) {
  OverlapProbe probe(device);
  Result<Overlap> overlap = probe.run();
  // Nothing of the probe may be in use when its memory goes.
  HOTSET_RETURN_IF_ERROR(device.wait_idle());
  return overlap;
}

}  // namespace hotset::device
