#include "hotset/engine/weights/loaded_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "hotset/base/allocation.h"
#include "hotset/base/log.h"
#include "hotset/device/ggml_runtime.h"
#include "hotset/device/kernel_threads.h"

namespace hotset::engine {
namespace {

// ggml's kernels want this alignment of tensor data; a file may be aligned to less.
constexpr uintptr_t kTensorAlignment = 32;

// Rows of 32 values are not rearranged: for 32 and more tokens the AMX kernels of ggml 0.27
// multiply them wrongly (`EveryArchitecture.RepackedWeightsAgree` has such rows).
constexpr int64_t kMinRepackedRow = 64;

// The operation that a weight is for, on nominal activations: what a backend is asked about.
ggml_tensor* nominal_op(ggml_context* context, ggml_tensor* weight, WeightUse use) {
  constexpr int64_t kRows = 512;
  constexpr int64_t kUsed = 8;
  switch (use) {
    case WeightUse::kEmbedding:
      return ggml_get_rows(context, weight, ggml_new_tensor_1d(context, GGML_TYPE_I32, kRows));
    case WeightUse::kMatrix:
      return ggml_mul_mat(context, weight,
                          ggml_new_tensor_2d(context, GGML_TYPE_F32, weight->ne[0], kRows));
    case WeightUse::kHeadMatrices: {
      // As graphs have them: the heads of a token lie side by side.
      ggml_tensor* x =
          ggml_new_tensor_3d(context, GGML_TYPE_F32, weight->ne[0], weight->ne[2], kRows);
      return ggml_mul_mat(context, weight, ggml_permute(context, x, 0, 2, 1, 3));
    }
    case WeightUse::kExperts: {
      ggml_tensor* x = ggml_new_tensor_3d(context, GGML_TYPE_F32, weight->ne[0], kUsed, kRows);
      ggml_tensor* ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, kUsed, kRows);
      return ggml_mul_mat_id(context, weight, x, ids);
    }
    case WeightUse::kExpertVectors:
      if (ggml_n_dims(weight) == 1) {
        weight = ggml_reshape_2d(context, weight, 1, weight->ne[0]);
        return ggml_get_rows(context, weight, ggml_new_tensor_1d(context, GGML_TYPE_I32, kRows));
      }
      return ggml_add_id(context,
                         ggml_new_tensor_3d(context, GGML_TYPE_F32, weight->ne[0], kUsed, kRows),
                         weight, ggml_new_tensor_2d(context, GGML_TYPE_I32, kUsed, kRows));
    case WeightUse::kVector:
      break;
  }
  ggml_tensor* x = ggml_new_tensor_2d(context, GGML_TYPE_F32, weight->ne[0], kRows);
  return ggml_mul(context, x, weight);
}

ggml_tensor* new_tensor(ggml_context* context, const model::TensorInfo& info) {
  ggml_tensor* tensor = ggml_new_tensor(context, info.type, GGML_MAX_DIMS, info.ne.data());
  ggml_set_name(tensor, info.name.c_str());
  return tensor;
}

// Whether the backend computes with `info` used as `use` when it lies in a buffer of `type`.
Result<bool> supported_in(const device::Backend& cpu, const model::TensorInfo& info, WeightUse use,
                          ggml_backend_buffer_type_t type) {
  HOTSET_TRY(const device::TensorContext context, device::new_tensor_context(8));
  HOTSET_TRY(const ggml_backend_buffer_ptr buffer,
             device::allocate_buffer(type, Bytes{}, "a layout to ask for"));
  ggml_tensor* weight = new_tensor(context.get(), info);
  // What a backend computes with and what its layout can be written with are two questions.
  if (type != cpu.buffer_type() && !device::layout_takes(type, weight)) return false;
  weight->buffer = buffer.get();
  return cpu.supports(nominal_op(context.get(), weight, use));
}

}  // namespace

Result<ggml_backend_buffer_type_t> repacked_layout(const device::Backend& cpu,
                                                   const model::TensorInfo& info, WeightUse use) {
  // Only what is multiplied by activations is rearranged. The backend says that it computes with
  // some of the others, too, because their operations see a view of them, which has no buffer.
  const bool is_multiplied =
      use == WeightUse::kMatrix || use == WeightUse::kHeadMatrices || use == WeightUse::kExperts;
  if (!is_multiplied || info.ne[0] < kMinRepackedRow) return nullptr;
  for (ggml_backend_buffer_type_t layout : cpu.extra_buffer_types()) {
    HOTSET_TRY(const bool supported, supported_in(cpu, info, use, layout));
    if (supported) return layout;
  }
  return nullptr;
}

Result<ModelDescription> describe_model(const std::filesystem::path& path) {
  HOTSET_TRY(model::GgufFile file, model::GgufFile::open(path));
  return describe_model(std::move(file));
}

namespace {

Result<ModelDescription> check_model(model::GgufFile file) {
  HOTSET_TRY(const Architecture* architecture, architecture_of(file));
  HOTSET_TRY(model::ModelSpec spec, architecture->read_spec(file));
  ModelWeights weights;
  WeightList list;
  architecture->declare_weights(spec, weights, list);
  for (const WeightDeclaration& declaration : list.declarations()) {
    HOTSET_RETURN_IF_ERROR(find_weight(file, declaration));
  }
  HOTSET_RETURN_IF_ERROR(check_all_or_none(file, list));
  HOTSET_RETURN_IF_ERROR(check_unused(file, list));
  return ModelDescription{std::move(file), architecture, std::move(spec)};
}

}  // namespace

Result<ModelDescription> describe_model(model::GgufFile file) {
  return catching_refusal("the model's description", [&] { return check_model(std::move(file)); });
}

namespace {

bool belongs_on_device(const WeightDeclaration& declaration, const LoadOptions& options) {
  if (options.device == nullptr || declaration.use == WeightUse::kExperts ||
      declaration.use == WeightUse::kExpertVectors) {
    return false;
  }
  if (declaration.layer >= 0) return options.placement.on_device(declaration.layer);
  return options.placement.head_on_device && declaration.use != WeightUse::kEmbedding;
}

}  // namespace

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(ModelDescription description,
                                                       const device::Backend& cpu,
                                                       const LoadOptions& options) {
  // Not make_unique: the constructor is private.
  std::unique_ptr<LoadedModel> loaded(new LoadedModel(std::move(description)));
  WeightList list;
  loaded->architecture().declare_weights(loaded->spec(), loaded->weights_, list);
  loaded->report_.unused = unused_tensors(loaded->file(), list);
  const size_t n_tensors = list.declarations().size();
  for (const WeightDeclaration& declaration : list.declarations()) {
    HOTSET_RETURN_IF_ERROR(belongs_on_device(declaration, options)
                               ? loaded->place_on_device(declaration, options, n_tensors)
                               : loaded->place(declaration, cpu, options, n_tensors));
  }
  const Status filled = loaded->fill(options);
  HOTSET_RETURN_IF_ERROR(loaded->file().check());
  HOTSET_RETURN_IF_ERROR(filled);
  return loaded;
}

Status LoadedModel::place_on_device(const WeightDeclaration& declaration,
                                    const LoadOptions& options, size_t n_tensors) {
  HOTSET_TRY(const model::TensorInfo* info, find_weight(file(), declaration));
  if (info == nullptr) return {};
  if (!device_context_) {
    HOTSET_TRY(device_context_, device::new_tensor_context(n_tensors));
  }
  ggml_tensor* tensor = new_tensor(device_context_.get(), *info);
  *declaration.slot = tensor;
  placed_.push_back({.info = info, .tensor = tensor, .type = options.device->buffer_type()});
  return {};
}

Result<ggml_context*> LoadedModel::context_for(ggml_backend_buffer_type_t type, size_t n_tensors) {
  device::TensorContext& context = contexts_[type];
  if (!context) {
    HOTSET_TRY(context, device::new_tensor_context(n_tensors));
  }
  return context.get();
}

Status LoadedModel::place(const WeightDeclaration& declaration, const device::Backend& cpu,
                          const LoadOptions& options, size_t n_tensors) {
  HOTSET_TRY(const model::TensorInfo* info, find_weight(file(), declaration));
  if (info == nullptr) return {};
  ggml_backend_buffer_type_t type = nullptr;
  const bool may_be_uploaded = options.upload_experts && options.device != nullptr &&
                               declaration.use == WeightUse::kExperts &&
                               options.placement.on_device(declaration.layer);
  if (options.repack && !may_be_uploaded) {
    HOTSET_TRY(type, repacked_layout(cpu, *info, declaration.use));
  }
  if (type == nullptr) {
    HOTSET_TRY(const bool supported, supported_in(cpu, *info, declaration.use, cpu.buffer_type()));
    if (!supported) {
      return make_error(ErrorCode::kUnsupported,
                        "{}: tensor '{}': the CPU backend cannot compute with {}", file().name(),
                        info->name, model::describe(*info));
    }
    const uint8_t* address = file().tensor_bytes(*info).data();
    const bool aligned = reinterpret_cast<uintptr_t>(address) % kTensorAlignment == 0;
    if (options.load_mode == LoadMode::kPinned || !aligned) type = cpu.buffer_type();
  }
  if (may_be_uploaded && options.load_mode == LoadMode::kPinned) {
    if (!pinned_context_) {
      HOTSET_TRY(pinned_context_, device::new_tensor_context(n_tensors));
    }
    *declaration.slot = new_tensor(pinned_context_.get(), *info);
    placed_.push_back({info, *declaration.slot, type});
    return {};
  }
  HOTSET_TRY(ggml_context* const context, context_for(type, n_tensors));
  ggml_tensor* tensor = new_tensor(context, *info);
  *declaration.slot = tensor;
  placed_.push_back({info, tensor, type});
  return {};
}

Status LoadedModel::allocate_pinned(const LoadOptions& options) {
  if (!pinned_context_) return {};
  ggml_context* c = pinned_context_.get();
  Bytes total;
  const auto padded = [](const ggml_tensor* t) {
    return align_up({static_cast<int64_t>(ggml_nbytes(t))}, kTensorAlignment);
  };
  for (ggml_tensor* t = ggml_get_first_tensor(c); t != nullptr; t = ggml_get_next_tensor(c, t)) {
    total += padded(t);
  }
  HOTSET_TRY(pinned_buffer_,
             options.device->allocate_pinned(total + Bytes{kTensorAlignment}, "experts"));
  report_.experts_pinned = pinned_buffer_.pinned();
  ggml_backend_buffer_set_usage(pinned_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  uint8_t* address = pinned_buffer_.data();
  address += (kTensorAlignment - reinterpret_cast<uintptr_t>(address) % kTensorAlignment) %
             kTensorAlignment;
  for (ggml_tensor* t = ggml_get_first_tensor(c); t != nullptr; t = ggml_get_next_tensor(c, t)) {
    if (ggml_backend_tensor_alloc(pinned_buffer_.get(), t, address) != GGML_STATUS_SUCCESS) {
      return make_error(ErrorCode::kInternal, "{}: tensor '{}' could not be placed", file().name(),
                        t->name);
    }
    address += padded(t).count;
  }
  return {};
}

Status LoadedModel::fill(const LoadOptions& options) {
  if (device_context_) {
    HOTSET_TRY(device_buffer_, options.device->allocate(device_context_.get(), "dense weights"));
    ggml_backend_buffer_set_usage(device_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  }
  if (options.device != nullptr && options.device->device() == nullptr) return {};
  std::set<std::string> layouts;
  HOTSET_RETURN_IF_ERROR(allocate_pinned(options));
  for (const auto& [type, context] : contexts_) {
    if (type == nullptr) continue;
    HOTSET_TRY(
        ggml_backend_buffer_ptr buffer,
        device::allocate_tensors(context.get(), type,
                                 fmt::format("weights in {}", ggml_backend_buft_name(type))));
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    if (options.load_mode == LoadMode::kPinned && ggml_backend_buft_is_host(type)) {
      report_.locked = mlock(ggml_backend_buffer_get_base(buffer.get()),
                             ggml_backend_buffer_get_size(buffer.get())) == 0;
      if (!report_.locked) {
        log_warning(
            "--load-mode pinned: the weights could not be locked in RAM ({}); raise the "
            "limit with 'ulimit -l'. They are used unlocked.",
            std::strerror(errno));
      }
    }
    if (!ggml_backend_buft_is_host(type)) layouts.insert(ggml_backend_buft_name(type));
    buffers_.push_back(std::move(buffer));
  }
  std::vector<ggml_backend_buffer_t> part_buffers(file().n_parts(), nullptr);
  for (const Placed& placed : placed_) {
    const std::span<const uint8_t> bytes = file().tensor_bytes(*placed.info);
    if (placed.type != nullptr) {
      HOTSET_RETURN_IF_ERROR(device::set_weight(placed.tensor, bytes));
      const bool on_device = placed.tensor->buffer == device_buffer_.get();
      Bytes& where = on_device                                ? report_.on_device
                     : ggml_backend_buft_is_host(placed.type) ? report_.copied
                                                              : report_.repacked;
      where += placed.info->n_bytes;
      continue;
    }
    ggml_backend_buffer_t& buffer = part_buffers[placed.info->part];
    const std::span<const uint8_t> part = file().part_bytes(placed.info->part);
    // ggml takes a mutable pointer; weights are only read.
    auto* base = const_cast<uint8_t*>(part.data());
    if (buffer == nullptr) {
      // ggml wants the buffer itself aligned as well: a file in memory may begin anywhere, and the
      // tensors that are used in place all lie behind the first aligned byte.
      const size_t skipped =
          (kTensorAlignment - reinterpret_cast<uintptr_t>(base) % kTensorAlignment) %
          kTensorAlignment;
      HOTSET_TRY(
          ggml_backend_buffer_ptr wrapped,
          device::wrap_host_memory("weights in place", base + skipped, part.size() - skipped));
      buffer = wrapped.get();
      ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
      buffers_.push_back(std::move(wrapped));
    }
    if (ggml_backend_tensor_alloc(buffer, placed.tensor, base + placed.info->offset) !=
        GGML_STATUS_SUCCESS) {
      return make_error(ErrorCode::kInternal, "{}: tensor '{}' could not be placed", file().name(),
                        placed.info->name);
    }
    report_.mapped += placed.info->n_bytes;
  }
  report_.layouts.assign(layouts.begin(), layouts.end());
  return {};
}

}  // namespace hotset::engine
