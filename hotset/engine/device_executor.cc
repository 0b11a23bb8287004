#include "hotset/engine/device_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hotset::engine {

using device::QueueId;

DeviceExecutor::DeviceExecutor(const LoadedModel& model, KvCache& kv, device::Device& device,
                               device::Backend& cpu, ExecutorOptions options,
                               device::Profile* profile)
    : model_(model),
      kv_(kv),
      device_(device),
      cpu_(cpu),
      options_(std::move(options)),
      profile_(profile),
      is_chosen_(static_cast<size_t>(model.spec().router.n_expert)) {}

Result<std::unique_ptr<DeviceExecutor>> DeviceExecutor::create(
    const LoadedModel& model, KvCache& kv, device::Device& device, device::Backend& cpu,
    const Placement& placement, ExecutorOptions options, device::Profile* profile) {
  if (options.n_ubatch < 1 || options.n_outputs < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "ubatch: found {} tokens and {} outputs, expected at least 1",
                      options.n_ubatch, options.n_outputs);
  }
  options.n_ubatch = std::min(options.n_ubatch, kv.cells().n_cells());
  options.n_outputs = std::min(options.n_outputs, options.n_ubatch);
  std::unique_ptr<DeviceExecutor> executor(
      new DeviceExecutor(model, kv, device, cpu, options, profile));
  HOTSET_TRY(executor->front_,
             CpuExecutor::create(model, kv, cpu, options, placement.first_device_layer));
  HOTSET_TRY(executor->graphs_, DeviceGraphs::create(model, kv, device, cpu, placement, options));
  HOTSET_TRY(executor->arrived_, device.new_event());
  return executor;
}

template <typename Job>
Status DeviceExecutor::on_cpu_lane(const char* name, int64_t layer, Job&& job, const Bytes& reads) {
  const double start_us = device_.now_us();
  HOTSET_RETURN_IF_ERROR(lane_.run(job));
  if (const auto modelled_us = device_.modelled_cpu_us(reads)) {
    device_.host_reaches(start_us + *modelled_us);
  }
  if (profile_ != nullptr) {
    profile_->add(device::Track::kCpuLane, name, static_cast<int32_t>(layer), start_us,
                  device_.now_us() - start_us);
  }
  return {};
}

Status DeviceExecutor::run(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
                           std::vector<float>& logits) {
  HOTSET_CHECK(!ubatch.empty() && ubatch.size() == cells.size());
  const GraphShape shape = UbatchInputs::shape_of(ubatch, kv_);
  HOTSET_CHECK(shape.n_tokens <= options_.n_ubatch && shape.n_outputs <= options_.n_outputs);
  HOTSET_TRY(GraphSet* const set, graphs_->for_shape(shape));
  inputs_.fill(ubatch, cells, model_.spec(), kv_);
  HOTSET_RETURN_IF_ERROR(run_front(shape));
  HOTSET_RETURN_IF_ERROR(upload_inputs(shape));
  size_t n_routed = 0;
  for (size_t i = 0; i < set->segments.size(); ++i) {
    const Segment& segment = graphs_->segments()[i];
    KeptGraph& kept = set->segments[i];
    if (ggml_graph_n_nodes(kept.graph) > 0) {
      const device::Label label{segment.routes < 0 ? "head" : "attention",
                                static_cast<int32_t>(segment.first_layer)};
      HOTSET_RETURN_IF_ERROR(device_.compute(kept.graph, kept.reads, label));
    }
    if (segment.routes < 0) break;
    const int32_t n_rows = graphs_->n_rows(segment, shape);
    KeptGraph& experts = set->experts[n_routed++];
    if (n_rows > 0) HOTSET_RETURN_IF_ERROR(run_experts(segment, experts, i, n_rows));
  }
  if (shape.n_outputs > 0) return fetch_output(*set, logits);
  // The staging memory is free again once the device has read it: the wait for a routing says so.
  return n_routed > 1 ? Status() : device_.wait_idle();
}

Status DeviceExecutor::run_front(const GraphShape& shape) {
  Bytes reads;
  auto* hidden = static_cast<float*>(graphs_->host().hidden->data);
  auto job = [&]() -> Status {
    HOTSET_TRY(reads, front_->run_into(shape, inputs_, hidden));
    return {};
  };
  HOTSET_RETURN_IF_ERROR(on_cpu_lane("layers", -1, job, reads));
  const size_t n_bytes = sizeof(float) * static_cast<size_t>(shape.n_tokens) *
                         static_cast<size_t>(model_.spec().n_embd);
  return device_.upload(QueueId::kCompute, graphs_->cross().hidden, 0, hidden, n_bytes,
                        {"hidden", -1});
}

Status DeviceExecutor::upload_inputs(const GraphShape& shape) {
  const CrossTensors& cross = graphs_->cross();
  const HostTensors& host = graphs_->host();
  const auto upload = [&](ggml_tensor* to, ggml_tensor* staging, const auto& values) -> Status {
    const size_t n_bytes = values.size() * sizeof(values[0]);
    HOTSET_CHECK(n_bytes <= ggml_nbytes(staging));
    std::memcpy(staging->data, values.data(), n_bytes);
    return device_.upload(QueueId::kCompute, to, 0, staging->data, n_bytes, {"inputs", -1});
  };
  HOTSET_RETURN_IF_ERROR(upload(cross.positions, host.positions, inputs_.positions));
  HOTSET_RETURN_IF_ERROR(upload(cross.key_rows, host.key_rows, inputs_.key_rows));
  HOTSET_RETURN_IF_ERROR(upload(cross.value_rows, host.value_rows, inputs_.value_rows));
  HOTSET_RETURN_IF_ERROR(upload(cross.mask, host.mask, inputs_.mask));
  if (!shape.selects_outputs()) return {};
  return upload(cross.output_rows, host.output_rows, inputs_.output_rows);
}

Status DeviceExecutor::wait_for_device(int64_t layer) {
  const double start_us = device_.now_us();
  HOTSET_RETURN_IF_ERROR(device_.record(arrived_, QueueId::kCompute));
  HOTSET_RETURN_IF_ERROR(device_.wait(arrived_));
  if (profile_ != nullptr) {
    profile_->add(device::Track::kHost, "wait", static_cast<int32_t>(layer), start_us,
                  device_.now_us() - start_us);
  }
  return {};
}

Status DeviceExecutor::fetch_routing(size_t index, int64_t layer, int64_t n_rows) {
  const CrossTensors::Routed& routed = graphs_->cross().routed[index % 2];
  const HostTensors& host = graphs_->host();
  const auto label_layer = static_cast<int32_t>(layer);
  const auto rows = static_cast<size_t>(n_rows);
  HOTSET_RETURN_IF_ERROR(device_.download(QueueId::kCompute, routed.ids, 0, host.ids->data,
                                          rows * host.ids->nb[1], {"ids", label_layer}));
  HOTSET_RETURN_IF_ERROR(device_.download(QueueId::kCompute, routed.x, 0, host.x->data,
                                          rows * host.x->nb[1], {"x", label_layer}));
  return wait_for_device(layer);
}

Result<Bytes> DeviceExecutor::chosen_bytes(int64_t layer, int64_t n_rows) {
  const auto* ids = static_cast<const int32_t*>(graphs_->host().ids->data);
  const model::RouterSpec& router = model_.spec().router;
  std::ranges::fill(is_chosen_, uint8_t{0});
  for (int64_t i = 0; i < n_rows * router.n_expert_used; ++i) {
    // ggml's kernels abort on an id that is out of range.
    if (ids[i] < 0 || ids[i] >= router.n_expert) {
      return make_error(ErrorCode::kDevice, "{}: layer {} routed to expert {}, expected 0 to {}",
                        device_.info().name, layer, ids[i], router.n_expert - 1);
    }
    is_chosen_[static_cast<size_t>(ids[i])] = 1;
  }
  return graphs_->expert_bytes(layer) * std::ranges::count(is_chosen_, uint8_t{1});
}

Status DeviceExecutor::run_experts(const Segment& segment, KeptGraph& experts, size_t index,
                                   int64_t n_rows) {
  const int64_t layer = segment.routes;
  HOTSET_RETURN_IF_ERROR(fetch_routing(index, layer, n_rows));
  HOTSET_TRY(const Bytes reads, chosen_bytes(layer, n_rows));
  const HostTensors& host = graphs_->host();
  if (options_.observe_routing) {
    const auto n_ids = static_cast<size_t>(n_rows * model_.spec().router.n_expert_used);
    options_.observe_routing(layer, {static_cast<const int32_t*>(host.ids->data), n_ids}, n_rows);
  }
  auto job = [&] { return cpu_.compute(experts.graph); };
  HOTSET_RETURN_IF_ERROR(on_cpu_lane("experts", layer, job, reads));
  const size_t n_bytes =
      static_cast<size_t>(n_rows * model_.spec().router.n_expert_used) * host.results->nb[1];
  return device_.upload(QueueId::kCompute, graphs_->cross().results, 0, host.results->data, n_bytes,
                        {"results", static_cast<int32_t>(layer)});
}

Status DeviceExecutor::fetch_output(GraphSet& set, std::vector<float>& logits) {
  const HostTensors& host = graphs_->host();
  const auto n_outputs = static_cast<size_t>(set.shape.n_outputs);
  HOTSET_RETURN_IF_ERROR(device_.download(QueueId::kCompute, graphs_->cross().out, 0,
                                          host.out->data, n_outputs * host.out->nb[1],
                                          {"output", -1}));
  HOTSET_RETURN_IF_ERROR(wait_for_device(-1));
  const auto n_logits = n_outputs * static_cast<size_t>(model_.spec().n_vocab);
  const size_t n_before = logits.size();
  logits.resize(n_before + n_logits);
  if (set.head.graph == nullptr) {
    std::memcpy(logits.data() + n_before, host.out->data, n_logits * sizeof(float));
    return {};
  }
  auto job = [&] { return cpu_.compute(set.head.graph); };
  HOTSET_RETURN_IF_ERROR(on_cpu_lane("head", -1, job, set.head.reads));
  ggml_backend_tensor_get(ggml_graph_node(set.head.graph, -1), logits.data() + n_before, 0,
                          n_logits * sizeof(float));
  return {};
}

}  // namespace hotset::engine
