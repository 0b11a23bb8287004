// Computes a model with a device: its layers' attention and routing there, the first layers and the
// embedding on the CPU where they were placed there, and every routed expert by the lane that the
// expert cache gives it: on the device where it is resident or uploaded, else by the CPU lane.
// Without a cache the CPU lane computes all of them.
//
// Per MoE layer that is not resident the host waits for the device once, for the routed ids; per
// ubatch once more, for its logits and for whether its numbers are numbers.
#ifndef HOTSET_ENGINE_RUN_DEVICE_EXECUTOR_H_
#define HOTSET_ENGINE_RUN_DEVICE_EXECUTOR_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/device/backend.h"
#include "hotset/device/device.h"
#include "hotset/device/profile.h"
#include "hotset/engine/experts/cached_experts.h"
#include "hotset/engine/experts/cpu_lane.h"
#include "hotset/engine/run/cpu_executor.h"
#include "hotset/engine/run/device_graphs.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/placement.h"

namespace hotset::engine {

// Drives the device from the thread that calls run(); the CPU computes on the CPU lane's.
// Thread-compatible.
class DeviceExecutor final : public Executor {
 public:
  // References, `profile` and `cache` (null: none) must outlive the executor.
  // Errors: as DeviceGraphs::create and CpuExecutor::create; kInvalidArgument.
  static Result<std::unique_ptr<DeviceExecutor>> create(
      const LoadedModel& model, KvCache& kv, device::Device& device, device::Backend& cpu,
      const Placement& placement, ExecutorOptions options, device::Profile* profile,
      CachedExperts* cache);

  Status run(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
             std::vector<float>& logits) override;
  std::span<const float> hidden_sums() const override { return hidden_sums_; }
  // Runs the largest and the smallest graphs of the device once, on nothing. Errors: kDevice.
  Status warm_up();
  Bytes compute_bytes() const override {
    return graphs_->compute_bytes() + front_->compute_bytes();
  }
  int64_t n_graphs_built() const override {
    return graphs_->n_graphs_built() + front_->n_graphs_built();
  }

 private:
  DeviceExecutor(const LoadedModel& model, KvCache& kv, device::Device& device,
                 device::Backend& cpu, ExecutorOptions options, device::Profile* profile,
                 CachedExperts* cache);

  // A job of the CPU lane that was started.
  struct LaneJob {
    const char* name = "";
    int64_t layer = -1;
    double start_us = 0;
  };

  Status calibrate();
  Status run_front(const GraphShape& shape);
  Status upload_inputs(const GraphShape& shape);
  Status fetch_routing(size_t index, int64_t layer, int64_t n_rows);
  Status wait_for_routing(int64_t layer, int64_t n_rows);
  // All experts of a layer on the CPU.
  Status run_experts(int64_t layer, KeptGraph& experts, int64_t n_rows);
  // Returns what it took, in microseconds.
  Result<double> compute_all_on_cpu(int64_t layer, KeptGraph& experts, int64_t n_rows);
  // A lookup of the cache, whose routing is on its way.
  Status serve(AwaitedLookup awaited, int64_t layer, size_t index, KeptGraph& experts,
               int32_t n_rows);
  // Queues what the device does for a planned lookup.
  Status queue_lookup(ServedLookup& lookup, size_t parity, bool hits_queued, double start_us);
  Status compute_listed(const char* name, const ServedLookup& lookup, size_t parity,
                        std::span<const int32_t> pairs, size_t n_experts);
  void list_cpu_pairs(std::span<const int32_t> pairs);
  Status upload_cpu_rows(int64_t layer, std::span<const int32_t> pairs);
  Status queue_resident_ids(const GraphShape& shape);
  void report_routing(const GraphShape& shape);
  Result<Bytes> chosen_bytes(int64_t layer, int64_t n_rows);
  // Waits for what the ubatch gives: logits where some are wanted, and sums where it needs them.
  Status fetch_output(GraphSet& set, std::vector<float>& logits);
  // Waits for `arrived_`.
  Status wait_for_arrival(int64_t layer);
  // Runs `job` on the CPU lane; `reads` gives what it read once it is done. Returns what it took,
  // in microseconds.
  template <typename Job>
  Result<double> on_cpu_lane(const char* name, int64_t layer, Job&& job, const Bytes& reads);
  // Waits for the job of the CPU lane. Returns what it took, in microseconds.
  Result<double> finish_cpu_lane(const LaneJob& job, Bytes reads);
  std::span<const int32_t> routed_ids(int64_t n_rows) const;
  // Whether the hits of a lookup of so many tokens are queued before they are known.
  bool queues_hits_of(int64_t layer, int32_t n_tokens) const {
    return n_tokens <= n_queued_ && cache_->expects_hits(layer, n_tokens);
  }

  const LoadedModel& model_;
  KvCache& kv_;
  device::Device& device_;
  device::Backend& cpu_;
  ExecutorOptions options_;
  device::Profile* profile_;
  std::unique_ptr<DeviceGraphs> graphs_;
  std::unique_ptr<CpuExecutor> front_;  // embedding and the layers in front of the device's
  CpuLane lane_;
  device::Event arrived_;
  UbatchInputs inputs_;
  std::vector<uint8_t> is_chosen_;  // by expert
  CachedExperts* cache_;
  int32_t n_queued_ = 0;  // most tokens of a lookup whose hits are queued before they are known
  int64_t n_listed_ = 0;  // numbers in the host's pair list of the present lookup
  std::vector<int32_t> sorted_pairs_;
  std::vector<float> hidden_sums_;
  std::vector<std::vector<int32_t>> observed_;  // by layer: ids of the ubatch, for the observer
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_DEVICE_EXECUTOR_H_
