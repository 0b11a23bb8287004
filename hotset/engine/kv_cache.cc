#include "hotset/engine/kv_cache.h"

#include <algorithm>
#include <array>
#include <string>

#include "hotset/device/backend.h"

namespace hotset::engine {
namespace {

constexpr std::array kTypes = {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0};

Status check_type(std::string_view what, ggml_type type, int64_t head_dim) {
  if (std::ranges::find(kTypes, type) == kTypes.end()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected f32, f16 or q8_0", what,
                      ggml_type_name(type));
  }
  if (head_dim % ggml_blck_size(type) != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: {} stores blocks of {} values, but this model's heads have {}", what,
                      ggml_type_name(type), ggml_blck_size(type), head_dim);
  }
  return {};
}

}  // namespace

Result<KvCache> KvCache::create(const model::ModelSpec& spec, const KvCacheOptions& options,
                                ggml_backend_buffer_type_t cpu_type, device::Device* device,
                                Placement placement) {
  constexpr int32_t kMaxContext = 1 << 28;
  if (options.n_ctx < 1 || options.n_ctx > kMaxContext) {
    return make_error(ErrorCode::kInvalidArgument, "context: found {}, expected 1 to {}",
                      options.n_ctx, kMaxContext);
  }
  const model::AttentionSpec& attention = spec.attention;
  HOTSET_RETURN_IF_ERROR(check_type("key cache type", options.key_type, attention.head_dim_k));
  const bool has_values = !attention.values_in_keys;
  if (has_values) {
    HOTSET_RETURN_IF_ERROR(
        check_type("value cache type", options.value_type, attention.head_dim_v));
  }
  if (has_values && ggml_is_quantized(options.value_type) && !options.flash_attention) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "value cache type: found {} with flash attention off, expected f32 or f16 (or "
        "flash attention on)",
        ggml_type_name(options.value_type));
  }
  const int32_t n_cells = (options.n_ctx + kCellBucket - 1) / kCellBucket * kCellBucket;
  KvCache cache(options, attention.values_in_keys);
  const auto new_context = [&] {
    return ggml_context_ptr(
        ggml_init({.mem_size = ggml_tensor_overhead() * 2 * static_cast<size_t>(spec.n_layer),
                   .mem_buffer = nullptr,
                   .no_alloc = true}));
  };
  cache.context_ = new_context();
  cache.device_context_ = new_context();
  const int64_t key_row = attention.n_head_kv * attention.head_dim_k;
  const int64_t value_row = attention.n_head_kv * attention.head_dim_v;
  for (int64_t layer = 0; layer < spec.n_layer; ++layer) {
    ggml_context* context = device != nullptr && placement.on_device(layer)
                                ? cache.device_context_.get()
                                : cache.context_.get();
    cache.keys_.push_back(ggml_new_tensor_2d(context, options.key_type, key_row, n_cells));
    if (!has_values) continue;
    cache.values_.push_back(
        options.flash_attention
            ? ggml_new_tensor_2d(context, options.value_type, value_row, n_cells)
            : ggml_new_tensor_2d(context, options.value_type, n_cells, value_row));
  }
  const std::string what = fmt::format("KV cache for {} positions (-c)", n_cells);
  const bool plans_only = device != nullptr && device->plans_only();
  if (ggml_get_first_tensor(cache.context_.get()) != nullptr && !plans_only) {
    HOTSET_TRY(cache.buffer_, device::allocate_tensors(cache.context_.get(), cpu_type, what));
  }
  if (ggml_get_first_tensor(cache.device_context_.get()) != nullptr) {
    HOTSET_TRY(cache.device_buffer_, device->allocate(cache.device_context_.get(), what));
  }
  // Only now: a context that does not fit must be refused before anything of its size is made.
  cache.cells_ = KvCells(n_cells);
  if (cache.buffer_) ggml_backend_buffer_clear(cache.buffer_.get(), 0);
  return cache;
}

Bytes KvCache::n_bytes() const {
  size_t n = 0;
  for (ggml_backend_buffer_t buffer : {buffer_.get(), device_buffer_.get()}) {
    if (buffer != nullptr) n += ggml_backend_buffer_get_size(buffer);
  }
  return {static_cast<int64_t>(n)};
}

int32_t KvCache::n_kv() const {
  const int32_t end = std::max(1, cells_.used_end());
  return std::min(cells_.n_cells(), (end + kCellBucket - 1) / kCellBucket * kCellBucket);
}

void KvCache::clear() {
  // Masked cells are multiplied by zero, so they must not hold NaN.
  for (ggml_backend_buffer_t buffer : {buffer_.get(), device_buffer_.get()}) {
    if (buffer != nullptr) ggml_backend_buffer_clear(buffer, 0);
  }
  cells_ = KvCells(cells_.n_cells());
}

}  // namespace hotset::engine
