#include "hotset/engine/experts/expert_groups.h"

#include <ggml.h>

#include <utility>

#include "hotset/device/tensor_context.h"

namespace hotset::engine {
namespace {

// Whether the device multiplies by id with a bank of `n_experts` experts.
bool accepts_bank(ggml_context* c, const device::DeviceMemory& device,
                  const cache::ExpertTensor& tensor, int64_t n_experts) {
  ggml_reset(c);
  const auto type = static_cast<ggml_type>(tensor.type);
  ggml_tensor* bank = ggml_new_tensor_3d(c, type, tensor.n_columns, tensor.n_rows, n_experts);
  ggml_tensor* x = ggml_new_tensor_3d(c, GGML_TYPE_F32, tensor.n_columns, 1, 1);
  ggml_tensor* ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, 1, 1);
  return device.supports(ggml_mul_mat_id(c, bank, x, ids));
}

}  // namespace

Result<std::vector<cache::MoeLayer>> moe_layers(const ModelDescription& model) {
  ModelWeights weights;
  WeightList list;
  model.architecture->declare_weights(model.spec, weights, list);
  std::vector<cache::MoeLayer> layers;
  for (const WeightDeclaration& declaration : list.declarations()) {
    if (declaration.use != WeightUse::kExperts) continue;
    HOTSET_TRY(const model::TensorInfo* info, find_weight(model.file, declaration));
    if (info == nullptr) continue;
    if (layers.empty() || layers.back().layer != declaration.layer) {
      layers.push_back({.layer = static_cast<int32_t>(declaration.layer),
                        .n_expert = static_cast<int32_t>(model.spec.router.n_expert)});
    }
    layers.back().tensors.push_back({.type = static_cast<int32_t>(info->type),
                                     .n_rows = info->ne[1],
                                     .n_columns = info->ne[0],
                                     .expert_bytes = {info->n_bytes.count / info->ne[2]}});
  }
  return layers;
}

Result<std::vector<cache::CacheGroup>> device_groups(const ModelDescription& model,
                                                     const device::DeviceMemory& device,
                                                     const Placement& placement, Bytes budget) {
  const model::ModelSpec& spec = model.spec;
  HOTSET_TRY(std::vector<cache::MoeLayer> layers, moe_layers(model));
  std::erase_if(layers, [&](const cache::MoeLayer& at) { return !placement.on_device(at.layer); });
  if (layers.empty()) return std::vector<cache::CacheGroup>();
  HOTSET_TRY(const device::TensorContext context, device::new_tensor_context(8));
  const cache::DeviceShare share{
      .alignment = static_cast<int64_t>(ggml_backend_buft_get_alignment(device.buffer_type())),
      .accepts_bank = [&](const cache::ExpertTensor& tensor, int64_t n) {
        // With room for the staging area, which is at most a quarter of a layer.
        return accepts_bank(context.get(), device, tensor, n + spec.router.n_expert / 4 + 2);
      }};
  const auto k = static_cast<int32_t>(spec.router.n_expert_used);
  HOTSET_TRY(std::vector<cache::GroupSpec> specs,
             cache::form_groups(layers, {&share, 1}, budget, k));
  std::vector<cache::CacheGroup> groups;
  for (cache::GroupSpec& group : specs) {
    const int64_t n_slots = cache::slots_for_budget(cache::group_budget(budget, group), group, k);
    groups.push_back({.spec = std::move(group), .n_slots = n_slots});
  }
  return groups;
}

}  // namespace hotset::engine
