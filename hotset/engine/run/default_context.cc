#include "hotset/engine/run/default_context.h"

#include <algorithm>

#include "hotset/device/backend.h"

namespace hotset::engine {
namespace {

// Positions of one sequence, at least 1.
int64_t most_of_one(const model::ModelSpec& spec, const ContextOptions& options) {
  const int64_t asked =
      options.most_default_context > 0 ? options.most_default_context : spec.n_ctx_train;
  return std::clamp<int64_t>(spec.n_ctx_train, 1, asked);
}

int32_t rounded_up(int32_t n) { return (n + kCellBucket - 1) / kCellBucket * kCellBucket; }

}  // namespace

ContextRange context_range(const model::ModelSpec& spec, const ContextOptions& options) {
  const int64_t one = std::min<int64_t>(most_of_one(spec, options), kMaxContext);
  const int64_t all = std::min<int64_t>(one * options.n_sequences, kMaxContext);
  return {.least = static_cast<int32_t>(std::min<int64_t>(one, kLeastContext)),
          .most = static_cast<int32_t>(all)};
}

Result<int32_t> longest_context(ContextRange range, Bytes budget,
                                const std::function<Result<Bytes>(int32_t n_ctx)>& bytes) {
  HOTSET_TRY(Bytes above, bytes(range.most));
  if (above <= budget) return range.most;
  HOTSET_TRY(Bytes below, bytes(range.least));
  if (below > budget) return range.least;
  int32_t fits = range.least;
  int32_t too_many = range.most;
  constexpr int kMostTries = 8;
  for (int i = 0; i < kMostTries && too_many - fits > kCellBucket; ++i) {
    const double part = static_cast<double>((budget - below).count) /
                        static_cast<double>(std::max<int64_t>(1, (above - below).count));
    const int32_t step = static_cast<int32_t>(part * (too_many - fits)) / kCellBucket * kCellBucket;
    if (step < kCellBucket) break;
    const int32_t middle = fits + std::min(step, too_many - fits - 1);
    HOTSET_TRY(const Bytes needed, bytes(middle));
    (needed <= budget ? fits : too_many) = middle;
    (needed <= budget ? below : above) = needed;
  }
  return fits;
}

Result<Bytes> host_context_bytes(const model::ModelSpec& spec, const ContextOptions& options,
                                 const Placement& placement, bool flash_attention) {
  HOTSET_TRY(const ContextOptions kv, kv_context(spec, options, flash_attention));
  const model::AttentionSpec& a = spec.attention;
  const int64_t n_cells = rounded_up(kv.n_ctx);
  size_t row = ggml_row_size(kv.key_type, a.n_head_kv * a.head_dim_k);
  if (!a.values_in_keys) row += ggml_row_size(kv.value_type, a.n_head_kv * a.head_dim_v);
  int64_t n_rows = 0;
  bool on_cpu = false;
  for (int64_t layer = 0; layer < spec.n_layer; ++layer) {
    if (placement.on_device(layer)) continue;
    on_cpu = true;
    const bool has_own = a.is_windowed(layer) && kv.n_window_cells > 0;
    n_rows += has_own ? std::min<int64_t>(kv.n_window_cells, n_cells) : n_cells;
  }
  const int64_t n_ubatch = std::min<int64_t>(options.n_ubatch, n_cells);
  // The mask, float16; without flash attention the scores of a layer and what softmax makes of
  // them, float32, and where values are in the keys these, transposed.
  int64_t per_cell = 2 * n_ubatch;
  if (on_cpu && !flash_attention) {
    per_cell += 2 * 4 * n_ubatch * a.n_head;
    if (a.values_in_keys) per_cell += 2 * 4 * a.head_dim_k;
  }
  return Bytes{n_rows * static_cast<int64_t>(row) + n_cells * per_cell};
}

Bytes host_context_budget(const ModelDescription& description, Bytes available) {
  Bytes dense;
  Bytes experts;
  for (const model::TensorInfo& tensor : description.file.tensors()) {
    (tensor.name.contains("_exps.") ? experts : dense) += tensor.n_bytes;
  }
  const Bytes left = std::max(Bytes{}, available - dense);
  return std::min(left / 4, std::max(left - experts, left / 16));
}

Result<int32_t> host_context(const ModelDescription& description, const ContextOptions& options,
                             const Placement& placement, bool flash_attention) {
  const Bytes budget = host_context_budget(description, device::available_host_memory());
  return longest_context(context_range(description.spec, options), budget, [&](int32_t n_ctx) {
    ContextOptions with = options;
    with.n_ctx = n_ctx;
    return host_context_bytes(description.spec, with, placement, flash_attention);
  });
}

void set_default_context(const model::ModelSpec& spec, int32_t n_ctx, ContextOptions& options) {
  const ContextRange range = context_range(spec, options);
  int32_t of_each = n_ctx / options.n_sequences;
  if (n_ctx < range.most && of_each > kCellBucket) of_each = of_each / kCellBucket * kCellBucket;
  options.n_ctx = std::max(range.least, of_each * options.n_sequences);
  options.n_ctx_sequence =
      static_cast<int32_t>(std::min<int64_t>(most_of_one(spec, options), options.n_ctx));
}

}  // namespace hotset::engine
