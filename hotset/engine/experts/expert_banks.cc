#include "hotset/engine/experts/expert_banks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "hotset/lanes/split_costs.h"

namespace hotset::engine {
namespace {

using device::QueueId;

using Member = ggml_tensor* FeedForwardWeights::*;
constexpr std::array<Member, 4> kBankMembers = {&FeedForwardWeights::gate, &FeedForwardWeights::up,
                                                &FeedForwardWeights::down,
                                                &FeedForwardWeights::gate_up};
// What is looked up by expert, and so needs no slots: a copy of all of it is on the device.
constexpr std::array<Member, 6> kVectorMembers = {
    &FeedForwardWeights::gate_bias, &FeedForwardWeights::up_bias,
    &FeedForwardWeights::down_bias, &FeedForwardWeights::gate_scale,
    &FeedForwardWeights::up_scale,  &FeedForwardWeights::down_scale};

// A ring holds a few experts of most models; large ones go through it in parts.
constexpr Bytes kMaxRingBytes = mib(64);

}  // namespace

std::vector<const ggml_tensor*> bank_tensors(const FeedForwardWeights& experts) {
  std::vector<const ggml_tensor*> tensors;
  for (const Member member : kBankMembers) {
    if (experts.*member != nullptr) tensors.push_back(experts.*member);
  }
  return tensors;
}

std::vector<std::string_view> bank_type_names(const FeedForwardWeights& experts) {
  std::vector<std::string_view> names;
  for (const ggml_tensor* tensor : bank_tensors(experts)) {
    names.emplace_back(ggml_type_name(tensor->type));
  }
  return names;
}

ExpertBanks::ExpertBanks(const LoadedModel& model, device::DeviceMemory& memory,
                         const cache::ExpertCache& cache)
    : model_(model),
      memory_(memory),
      cache_(cache),
      layers_(model.spec().n_layer),
      is_stale_(static_cast<size_t>(model.spec().n_layer), 1) {}

ExpertBanks::~ExpertBanks() {
  // Queued copies use the memory. A device that failed has nothing queued.
  if (memory_.device() != nullptr) (void)device().wait_idle();
}

Result<std::unique_ptr<ExpertBanks>> ExpertBanks::create(const LoadedModel& model,
                                                         device::DeviceMemory& memory,
                                                         const cache::ExpertCache& cache) {
  std::unique_ptr<ExpertBanks> banks(new ExpertBanks(model, memory, cache));
  HOTSET_RETURN_IF_ERROR(banks->allocate());
  HOTSET_RETURN_IF_ERROR(banks->create_ring());
  HOTSET_RETURN_IF_ERROR(banks->fill_vectors());
  HOTSET_RETURN_IF_ERROR(banks->fill_resident());
  // Now, so that the first lookups need not wait for it.
  for (size_t i = 0; i < banks->layers_.size() && memory.device() != nullptr; ++i) {
    if (banks->layers_[i].map == nullptr) continue;
    HOTSET_RETURN_IF_ERROR(banks->update_map(static_cast<int64_t>(i)));
  }
  if (memory.device() != nullptr) HOTSET_RETURN_IF_ERROR(memory.device()->wait_idle());
  return banks;
}

Status ExpertBanks::allocate() {
  const auto n_layer = static_cast<size_t>(model_.spec().n_layer);
  const size_t n_tensors = n_layer * (kBankMembers.size() + kVectorMembers.size() + 1);
  HOTSET_TRY(context_, device::new_tensor_context(n_tensors));
  for (int32_t g = 0; g < cache_.n_groups(); ++g) {
    const cache::GroupSpec& spec = cache_.spec(g);
    const int32_t n_slots = cache_.slots(g).n_slots();
    if (n_slots == 0) continue;
    const bool resident = n_slots == spec.n_experts();
    const auto n_stage = resident ? 0 : static_cast<int32_t>(2 * lanes::stage_experts(spec));
    const FeedForwardWeights& like = model_.weights().layers[spec.layers.front()].experts;
    FeedForwardWeights banks;
    for (const Member member : kBankMembers) {
      const ggml_tensor* tensor = like.*member;
      if (tensor == nullptr) continue;
      banks.*member = ggml_new_tensor_3d(context_.get(), tensor->type, tensor->ne[0], tensor->ne[1],
                                         n_slots + n_stage + 1);
    }
    for (size_t i = 0; i < spec.layers.size(); ++i) {
      BankedLayer& layer = layers_[spec.layers[i]];
      layer.banks = banks;
      layer.first_stage = n_slots;
      layer.n_stage = n_stage;
      layer.pad_slot = n_slots + n_stage;
      const FeedForwardWeights& own = model_.weights().layers[spec.layers[i]].experts;
      for (const Member member : kVectorMembers) {
        if (own.*member != nullptr)
          layer.banks.*member = ggml_dup_tensor(context_.get(), own.*member);
      }
      if (resident) {
        layer.first_slot = static_cast<int32_t>(i) * spec.n_expert;
      } else {
        layer.map = ggml_new_tensor_2d(context_.get(), GGML_TYPE_I32, 1, spec.n_expert);
      }
    }
  }
  HOTSET_TRY(buffer_, memory_.allocate(context_.get(), "expert cache"));
  if (buffer_.get() == nullptr) return {};
  ggml_backend_buffer_set_usage(buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  device_bytes_ = {static_cast<int64_t>(ggml_backend_buffer_get_size(buffer_.get()))};
  const auto map_bytes =
      static_cast<int64_t>(n_layer * sizeof(int32_t)) * model_.spec().router.n_expert;
  HOTSET_TRY(maps_, memory_.allocate_pinned({map_bytes}, "slot maps"));
  return {};
}

Status ExpertBanks::create_ring() {
  if (buffer_.get() == nullptr || model_.report().experts_pinned || memory_.device() == nullptr)
    return {};
  Bytes all;
  for (const LayerWeights& layer : model_.weights().layers) {
    for (const ggml_tensor* tensor : bank_tensors(layer.experts)) {
      all += {static_cast<int64_t>(ggml_nbytes(tensor))};
    }
  }
  HOTSET_TRY(ring_, UploadRing::create(device(), std::min(all, kMaxRingBytes)));
  return {};
}

Status ExpertBanks::fill_vectors() {
  if (memory_.device() == nullptr) return {};
  for (size_t i = 0; i < layers_.size(); ++i) {
    const FeedForwardWeights& from = model_.weights().layers[i].experts;
    for (const Member member : kVectorMembers) {
      if (layers_[i].banks.*member == nullptr) continue;
      // Not from pinned memory, so the copy has ended when this returns.
      HOTSET_RETURN_IF_ERROR(device().upload(QueueId::kTransfer, layers_[i].banks.*member, 0,
                                             (from.*member)->data, ggml_nbytes(from.*member),
                                             {"load", static_cast<int32_t>(i)}));
    }
  }
  return {};
}

Status ExpertBanks::fill_resident() {
  if (memory_.device() == nullptr) return {};
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (!layers_[i].resident()) continue;
    HOTSET_RETURN_IF_ERROR(copy(static_cast<int64_t>(i), 0, layers_[i].first_slot,
                                static_cast<int32_t>(model_.spec().router.n_expert), "load"));
  }
  n_copies_ = 0;
  return device().wait_idle();
}

Status ExpertBanks::copy(int64_t layer, int32_t expert, int32_t slot, int32_t n,
                         const char* label) {
  const auto at = static_cast<size_t>(layer);
  const FeedForwardWeights& from = model_.weights().layers[at].experts;
  const device::Label shown{label, static_cast<int32_t>(layer)};
  for (const Member member : kBankMembers) {
    const ggml_tensor* source = from.*member;
    if (source == nullptr) continue;
    const size_t expert_bytes = source->nb[2];
    const auto* bytes =
        static_cast<const uint8_t*>(source->data) + static_cast<size_t>(expert) * expert_bytes;
    const size_t offset = static_cast<size_t>(slot) * expert_bytes;
    const size_t n_bytes = static_cast<size_t>(n) * expert_bytes;
    ggml_tensor* bank = layers_[at].banks.*member;
    ++n_copies_;
    HOTSET_RETURN_IF_ERROR(
        ring_ ? ring_->upload(bank, offset, bytes, n_bytes, shown)
              : device().upload(QueueId::kTransfer, bank, offset, bytes, n_bytes, shown));
  }
  return {};
}

Status ExpertBanks::update_map(int64_t layer) {
  const auto at = static_cast<size_t>(layer);
  if (std::exchange(is_stale_[at], uint8_t{0}) == 0) return {};
  const std::span<const int32_t> slots = cache_.slot_map(static_cast<int32_t>(layer));
  auto* map = reinterpret_cast<int32_t*>(maps_.data()) + at * slots.size();
  const int32_t pad_slot = layers_[at].pad_slot;
  for (size_t i = 0; i < slots.size(); ++i)
    map[i] = slots[i] == policy::kNoSlot ? pad_slot : slots[i];
  return device().upload(QueueId::kCompute, layers_[at].map, 0, map, slots.size() * sizeof(int32_t),
                         {"map", static_cast<int32_t>(layer)});
}

}  // namespace hotset::engine
