#include "hotset/engine/kv/kv_cache.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

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

Result<KvCache> KvCache::create(const model::ModelSpec& spec, const ContextOptions& options,
                                ggml_backend_buffer_type_t cpu_type, device::DeviceMemory* memory,
                                Placement placement) {
  if (options.n_ctx < 1 || options.n_ctx > kMaxContext) {
    return make_error(ErrorCode::kInvalidArgument, "context: found {}, expected 1 to {}",
                      options.n_ctx, kMaxContext);
  }
  const model::AttentionSpec& attention = spec.attention;
  KvCache cache(options, attention);
  HOTSET_RETURN_IF_ERROR(check_type("key cache type", options.key_type, attention.head_dim_k));
  const bool has_values = !attention.values_in_keys;
  if (has_values) {
    HOTSET_RETURN_IF_ERROR(
        check_type("value cache type", options.value_type, attention.head_dim_v));
  }
  if (has_values && ggml_is_quantized(options.value_type) && !cache.flash_attention()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "value cache type: found {} with flash attention off, expected f32 or f16 (or "
        "flash attention on)",
        ggml_type_name(options.value_type));
  }
  const int32_t n_cells = (options.n_ctx + kCellBucket - 1) / kCellBucket * kCellBucket;
  const bool has_own =
      attention.window > 0 && options.n_window_cells > 0 && options.n_window_cells < n_cells;
  const size_t n_tensors = 2 * static_cast<size_t>(spec.n_layer);
  cache.device_ = memory == nullptr ? nullptr : memory->device();
  HOTSET_TRY(cache.context_, device::new_tensor_context(n_tensors));
  HOTSET_TRY(cache.device_context_, device::new_tensor_context(n_tensors));
  const int64_t key_row = attention.n_head_kv * attention.head_dim_k;
  const int64_t value_row = attention.n_head_kv * attention.head_dim_v;
  for (int64_t layer = 0; layer < spec.n_layer; ++layer) {
    ggml_context* context = memory != nullptr && placement.on_device(layer)
                                ? cache.device_context_.get()
                                : cache.context_.get();
    const int32_t n = has_own && attention.is_windowed(layer) ? options.n_window_cells : n_cells;
    cache.keys_.push_back(ggml_new_tensor_2d(context, options.key_type, key_row, n));
    if (!has_values) continue;
    cache.values_.push_back(cache.flash_attention()
                                ? ggml_new_tensor_2d(context, options.value_type, value_row, n)
                                : ggml_new_tensor_2d(context, options.value_type, n, value_row));
  }
  const std::string what = fmt::format("KV cache for {} positions (-c)", n_cells);
  const bool plans_only = memory != nullptr && memory->device() == nullptr;
  if (ggml_get_first_tensor(cache.context_.get()) != nullptr && !plans_only) {
    HOTSET_TRY(cache.buffer_, device::ZeroedBuffer::allocate(cache.context_.get(), cpu_type, what));
  }
  if (ggml_get_first_tensor(cache.device_context_.get()) != nullptr) {
    HOTSET_TRY(cache.device_buffer_, memory->allocate(cache.device_context_.get(), what));
  }
  // Only now: a context that does not fit must be refused before anything of its size is made.
  cache.cells_ = KvCells(n_cells);
  if (has_own) {
    cache.window_cells_ = KvCells(options.n_window_cells);
    cache.candidates_.reserve(options.n_window_cells);
  }
  return cache;
}

Bytes KvCache::n_bytes() const {
  size_t n = 0;
  for (ggml_backend_buffer_t buffer : {buffer_.get(), device_buffer_.get()}) {
    if (buffer != nullptr) n += ggml_backend_buffer_get_size(buffer);
  }
  return {static_cast<int64_t>(n)};
}

Bytes KvCache::window_bytes(bool on_device) const {
  Bytes total;
  if (!has_window_cells()) return total;
  const ggml_context* context = on_device ? device_context_.get() : context_.get();
  for (ggml_tensor* t = ggml_get_first_tensor(context); t != nullptr;
       t = ggml_get_next_tensor(context, t)) {
    const auto layer = [&](const std::vector<ggml_tensor*>& of) {
      return static_cast<int64_t>(std::ranges::find(of, t) - of.begin());
    };
    const int64_t in_keys = layer(keys_);
    const bool is_key = in_keys < std::ssize(keys_);
    if (!attention_.is_windowed(is_key ? in_keys : layer(values_))) continue;
    total += {static_cast<int64_t>(ggml_nbytes(t))};
  }
  return total;
}

int32_t window_cells(const model::ModelSpec& spec, int32_t n_ctx, int32_t n_ubatch,
                     int32_t n_sequences) {
  const int64_t window = spec.attention.window;
  if (window == 0) return 0;
  const auto rounded = [](int64_t n) { return (n + kCellBucket - 1) / kCellBucket * kCellBucket; };
  const int64_t n_all = rounded(n_ctx);
  if (window >= n_all) return 0;
  const int64_t n = rounded(window * n_sequences + std::min<int64_t>(n_ubatch, n_all));
  return n < n_all ? static_cast<int32_t>(n) : 0;
}

int32_t KvCache::n_read(const KvCells& cells) {
  const int32_t end = std::max(1, cells.used_end());
  return std::min(cells.n_cells(), (end + kCellBucket - 1) / kCellBucket * kCellBucket);
}

int32_t KvCache::n_kv() const { return n_read(cells_); }

void KvCache::make_room(int32_t n) {
  KvCells& own = *window_cells_;
  const int32_t missing = n - (own.n_cells() - own.n_used());
  if (missing <= 0) return;
  candidates_.clear();
  for (int32_t cell = 0; cell < own.used_end(); ++cell) {
    if (own.sequences(cell) == 0) continue;
    int64_t surplus = INT32_MAX;
    for (uint64_t left = own.sequences(cell); left != 0; left &= left - 1) {
      // The next position of the sequence sees those from next - window + 1 on.
      const int64_t next = own.last_position(std::countr_zero(left)) + int64_t{1};
      surplus = std::min(surplus, next - attention_.window + 1 - own.position(cell));
    }
    if (surplus > 0) candidates_.push_back({static_cast<int32_t>(surplus), cell});
  }
  const auto n_freed = std::min<std::ptrdiff_t>(missing, std::ssize(candidates_));
  std::ranges::partial_sort(candidates_, candidates_.begin() + n_freed, {},
                            [](const CellCandidate& c) { return std::pair(-c.surplus, c.cell); });
  for (std::ptrdiff_t i = 0; i < n_freed; ++i) own.free(candidates_[i].cell);
}

Status KvCache::assign(std::span<const BatchToken> ubatch, std::vector<int32_t>& cells) {
  const size_t n = ubatch.size();
  cells.resize(static_cast<size_t>(n_cell_kinds()) * n);
  const std::span<int32_t> all(cells);
  HOTSET_RETURN_IF_ERROR(cells_.find_free(all.first(n)));
  if (window_cells_) {
    make_room(static_cast<int32_t>(n));
    if (!window_cells_->find_free(all.last(n))) {
      return make_error(ErrorCode::kOutOfMemory,
                        "windowed layers have {} cells, {} of them in use: too few for {} tokens "
                        "more; fewer sequences, or more must be planned for",
                        window_cells_->n_cells(), window_cells_->n_used(), n);
    }
  }
  // So many are free; which ones depends on the sequence.
  const auto occupy = [](KvCells& kind, const BatchToken& token) {
    const int32_t cell = kind.find_next(token.sequence).value();
    kind.occupy(cell, token.position, token.sequence);
    return cell;
  };
  for (size_t i = 0; i < n; ++i) {
    all[i] = occupy(cells_, ubatch[i]);
    if (window_cells_) all[n + i] = occupy(*window_cells_, ubatch[i]);
  }
  return {};
}

Status KvCache::assign_restored(SequenceId sequence, std::span<const int32_t> positions,
                                std::span<const int32_t> window_positions,
                                std::vector<int32_t>& cells, std::vector<int32_t>& window_cells) {
  HOTSET_CHECK(cells_.last_position(sequence) < 0);
  cells.resize(positions.size());
  HOTSET_RETURN_IF_ERROR(cells_.find_free(cells));
  if (std::cmp_greater(cells_.n_used() + std::ssize(positions), options_.n_ctx)) {
    return make_error(ErrorCode::kOutOfMemory,
                      "the context is full: {} of {} positions are used, {} more were needed; "
                      "raise it with -c",
                      cells_.n_used(), options_.n_ctx, positions.size());
  }
  if (window_cells_) {
    window_cells.resize(window_positions.size());
    make_room(static_cast<int32_t>(window_positions.size()));
    if (!window_cells_->find_free(window_cells)) {
      return make_error(
          ErrorCode::kOutOfMemory,
          "windowed layers have {} cells, {} of them in use: too few for {} positions "
          "more",
          window_cells_->n_cells(), window_cells_->n_used(), window_positions.size());
    }
    for (size_t i = 0; i < window_cells.size(); ++i) {
      window_cells_->occupy(window_cells[i], window_positions[i], sequence);
    }
  } else {
    window_cells = cells;
  }
  for (size_t i = 0; i < cells.size(); ++i) cells_.occupy(cells[i], positions[i], sequence);
  return {};
}

Status KvCache::read(const ggml_tensor* tensor, size_t offset, void* to, size_t n_bytes) const {
  if (tensor->buffer != device_buffer_.get()) {
    ggml_backend_tensor_get(tensor, to, offset, n_bytes);
    return {};
  }
  HOTSET_RETURN_IF_ERROR(
      device_->download(device::QueueId::kCompute, tensor, offset, to, n_bytes, {"state", -1}));
  return device_->wait_idle();
}

Status KvCache::write(ggml_tensor* tensor, size_t offset, const void* from, size_t n_bytes) const {
  if (tensor->buffer != device_buffer_.get()) {
    ggml_backend_tensor_set(tensor, from, offset, n_bytes);
    return {};
  }
  HOTSET_RETURN_IF_ERROR(
      device_->upload(device::QueueId::kCompute, tensor, offset, from, n_bytes, {"state", -1}));
  return device_->wait_idle();
}

void KvCache::drop_unless_whole(SequenceId sequence) {
  const int32_t next = cells_.last_position(sequence) + 1;
  const auto begin =
      static_cast<int32_t>(std::max<int64_t>(0, int64_t{next} - attention_.window + 1));
  if (window_cells_->count(sequence, begin, next) == cells_.count(sequence, begin, next)) return;
  cells_.remove(sequence, 0, INT32_MAX);
  window_cells_->remove(sequence, 0, INT32_MAX);
}

void KvCache::forget(SequenceId sequence, int32_t begin, int32_t end) {
  cells_.remove(sequence, begin, end);
  if (!window_cells_) return;
  window_cells_->remove(sequence, begin, end);
  drop_unless_whole(sequence);
}

void KvCache::share(SequenceId from, SequenceId to, int32_t end) {
  cells_.copy(from, to, 0, end);
  if (!window_cells_) return;
  window_cells_->copy(from, to, 0, end);
  drop_unless_whole(to);
}

void KvCache::clear() {
  // Masked cells are multiplied by zero, so they must not hold NaN.
  for (ggml_backend_buffer_t buffer : {buffer_.get(), device_buffer_.get()}) {
    if (buffer != nullptr) ggml_backend_buffer_clear(buffer, 0);
  }
  cells_ = KvCells(cells_.n_cells());
  if (window_cells_) window_cells_ = KvCells(window_cells_->n_cells());
}

}  // namespace hotset::engine
