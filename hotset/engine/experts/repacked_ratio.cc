#include "hotset/engine/experts/repacked_ratio.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "hotset/device/kernel_threads.h"
#include "hotset/device/tensor_context.h"
#include "hotset/engine/experts/cpu_lane.h"

namespace hotset::engine {
namespace {

// Of experts in either layout: beyond most caches, so that the weights come from memory.
constexpr Bytes kTimedBytes = mib(64);
// The fastest of these counts: others find cold pages or are disturbed.
constexpr int kRepetitions = 5;

// The experts of a layer, some of them, in one layout, and a graph that multiplies by them.
class TimedExperts {
 public:
  // `infos`: a layer's expert tensors. Errors: kOutOfMemory.
  static Result<TimedExperts> create(const model::GgufFile& file,
                                     const std::vector<const model::TensorInfo*>& infos,
                                     int64_t n_experts, int64_t k, device::Backend& cpu,
                                     bool repacked);

  // One token with experts `first` to `first + k - 1`. Errors: kDevice.
  Status run(int32_t first);

 private:
  explicit TimedExperts(device::Backend& cpu) : cpu_(&cpu) {}

  device::Backend* cpu_;
  std::vector<device::TensorContext> contexts_;
  std::vector<ggml_backend_buffer_ptr> buffers_;
  ggml_tensor* ids_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
};

Result<TimedExperts> TimedExperts::create(const model::GgufFile& file,
                                          const std::vector<const model::TensorInfo*>& infos,
                                          int64_t n_experts, int64_t k, device::Backend& cpu,
                                          bool repacked) {
  TimedExperts timed(cpu);
  std::vector<ggml_tensor*> weights;
  for (const model::TensorInfo* info : infos) {
    // So many of the layer's experts: what a layout takes depends on the shape.
    model::TensorInfo timed_info = *info;
    timed_info.ne[2] = n_experts;
    ggml_backend_buffer_type_t type = nullptr;
    if (repacked) {
      HOTSET_TRY(type, repacked_layout(cpu, timed_info, WeightUse::kExperts));
    }
    if (type == nullptr) type = cpu.buffer_type();
    HOTSET_TRY(timed.contexts_.emplace_back(), device::new_tensor_context(1));
    ggml_context* c = timed.contexts_.back().get();
    ggml_tensor* weight = ggml_new_tensor_3d(c, static_cast<ggml_type>(info->type), info->ne[0],
                                             info->ne[1], n_experts);
    HOTSET_TRY(timed.buffers_.emplace_back(), device::allocate_tensors(c, type, "experts to time"));
    ggml_backend_buffer_set_usage(timed.buffers_.back().get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    HOTSET_RETURN_IF_ERROR(
        device::set_weight(weight, file.tensor_bytes(*info).first(ggml_nbytes(weight))));
    weights.push_back(weight);
  }
  constexpr size_t kGraphNodes = 64;
  HOTSET_TRY(timed.contexts_.emplace_back(), device::new_tensor_context(kGraphNodes, kGraphNodes));
  ggml_context* c = timed.contexts_.back().get();
  timed.ids_ = ggml_new_tensor_2d(c, GGML_TYPE_I32, k, 1);
  timed.graph_ = ggml_new_graph_custom(c, kGraphNodes, false);
  std::vector<ggml_tensor*> inputs;
  for (ggml_tensor* weight : weights) {
    ggml_tensor* x = ggml_new_tensor_3d(c, GGML_TYPE_F32, weight->ne[0], k, 1);
    inputs.push_back(x);
    ggml_build_forward_expand(timed.graph_, ggml_mul_mat_id(c, weight, x, timed.ids_));
  }
  HOTSET_TRY(timed.buffers_.emplace_back(),
             device::allocate_tensors(c, cpu.buffer_type(), "a token to time"));
  for (ggml_tensor* x : inputs) {
    const std::vector<float> ones(static_cast<size_t>(ggml_nelements(x)), 1.0F);
    ggml_backend_tensor_set(x, ones.data(), 0, ggml_nbytes(x));
  }
  return timed;
}

Status TimedExperts::run(int32_t first) {
  auto* ids = static_cast<int32_t*>(ids_->data);
  for (int64_t i = 0; i < ids_->ne[0]; ++i) ids[i] = first + static_cast<int32_t>(i);
  return cpu_->compute(graph_);
}

// The matrices of the first layer on the device that has experts.
Result<std::vector<const model::TensorInfo*>> first_experts(const ModelDescription& model,
                                                            const Placement& placement) {
  ModelWeights weights;
  WeightList list;
  model.architecture->declare_weights(model.spec, weights, list);
  std::vector<const model::TensorInfo*> infos;
  int64_t layer = -1;
  for (const WeightDeclaration& declaration : list.declarations()) {
    if (declaration.use != WeightUse::kExperts || !placement.on_device(declaration.layer)) continue;
    HOTSET_TRY(const model::TensorInfo* info, find_weight(model.file, declaration));
    if (info == nullptr) continue;
    if (layer >= 0 && declaration.layer != layer) break;
    layer = declaration.layer;
    infos.push_back(info);
  }
  return infos;
}

}  // namespace

Result<std::optional<double>> repacked_ratio(const ModelDescription& model,
                                             const Placement& placement, device::Backend& cpu) {
  HOTSET_TRY(const std::vector<const model::TensorInfo*> infos, first_experts(model, placement));
  bool any_repacked = false;
  for (const model::TensorInfo* info : infos) {
    HOTSET_TRY(const auto* const layout, repacked_layout(cpu, *info, WeightUse::kExperts));
    any_repacked = any_repacked || layout != nullptr;
  }
  if (!any_repacked) return std::nullopt;
  const int64_t k = model.spec.router.n_expert_used;
  const int64_t n_all = model.spec.router.n_expert;
  Bytes expert_bytes;
  for (const model::TensorInfo* info : infos) expert_bytes += Bytes{info->n_bytes.count / n_all};
  const int64_t n_experts = std::clamp(kTimedBytes.count / expert_bytes.count, k, n_all);
  // A thread of its own: the kernel threads of whoever computes live as long as it does, and slow
  // down those of others.
  CpuLane lane;
  HOTSET_TRY(TimedExperts plain,
             TimedExperts::create(model.file, infos, n_experts, k, cpu, /*repacked=*/false));
  HOTSET_TRY(TimedExperts repacked,
             TimedExperts::create(model.file, infos, n_experts, k, cpu, /*repacked=*/true));
  double plain_us = 0;
  double repacked_us = 0;
  for (int i = 0; i < kRepetitions; ++i) {
    // Others each time: those of the last time may still be in the caches.
    const auto first = static_cast<int32_t>((i * k) % (n_experts - k + 1));
    HOTSET_RETURN_IF_ERROR(lane.run([&] { return plain.run(first); }));
    const double one_plain_us = lane.job_us();
    HOTSET_RETURN_IF_ERROR(lane.run([&] { return repacked.run(first); }));
    const double one_repacked_us = lane.job_us();
    plain_us = i == 0 ? one_plain_us : std::min(plain_us, one_plain_us);
    repacked_us = i == 0 ? one_repacked_us : std::min(repacked_us, one_repacked_us);
  }
  if (!(plain_us > 0)) return std::nullopt;
  return repacked_us / plain_us;
}

}  // namespace hotset::engine
