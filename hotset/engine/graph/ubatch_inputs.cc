#include "hotset/engine/graph/ubatch_inputs.h"

#include <algorithm>
#include <cmath>

namespace hotset::engine {
namespace {

// Transposed values: row i of the value of a cell is the i-th of n_cells numbers each.
void append_transposed_rows(std::span<const int32_t> cells, int64_t value_row, int64_t n_cells,
                            std::vector<int64_t>& rows) {
  for (const int32_t cell : cells) {
    for (int64_t i = 0; i < value_row; ++i) rows.push_back(i * n_cells + cell);
  }
}

}  // namespace

GraphShape UbatchInputs::shape_of(std::span<const BatchToken> ubatch, const KvCache& kv) {
  const auto n_outputs = std::ranges::count_if(ubatch, &BatchToken::want_logits);
  return {.n_tokens = static_cast<int32_t>(ubatch.size()),
          .n_kv = kv.n_kv(),
          .n_kv_window = kv.n_kv_window(),
          .n_outputs = static_cast<int32_t>(n_outputs)};
}

void UbatchInputs::fill(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
                        const model::ModelSpec& spec, const KvCache& kv) {
  const size_t n_tokens = ubatch.size();
  HOTSET_CHECK(cells.size() == n_tokens * static_cast<size_t>(kv.n_cell_kinds()));
  tokens.clear();
  positions.clear();
  output_rows.clear();
  for (size_t i = 0; i < n_tokens; ++i) {
    tokens.push_back(ubatch[i].token);
    positions.push_back(ubatch[i].position);
    if (ubatch[i].want_logits) output_rows.push_back(static_cast<int32_t>(i));
  }
  key_rows.assign(cells.begin(), cells.end());
  value_rows.clear();
  if (!kv.values_transposed()) {
    value_rows = key_rows;
  } else {
    const int64_t value_row = spec.attention.n_head_kv * spec.attention.head_dim_v;
    append_transposed_rows(cells.first(n_tokens), value_row, kv.cells().n_cells(), value_rows);
    append_transposed_rows(cells.subspan(n_tokens), value_row, kv.window_cells().n_cells(),
                           value_rows);
  }
  fill_masks(ubatch, spec, kv);
}

void UbatchInputs::fill_masks(std::span<const BatchToken> ubatch, const model::ModelSpec& spec,
                              const KvCache& kv) {
  const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0F);
  const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
  mask.resize(n_mask_values(shape_of(ubatch, kv)));
  ggml_fp16_t* out = mask.data();
  const int32_t n_kv = kv.n_kv();
  for (const BatchToken& token : ubatch) {
    for (int32_t cell = 0; cell < n_kv; ++cell) {
      const bool sees = kv.cells().visible(cell, token.sequence, token.position);
      *out++ = sees ? visible : hidden;
    }
  }
  const KvCells& own = kv.window_cells();
  const int32_t n_kv_window = kv.n_kv_window();
  for (const BatchToken& token : ubatch) {
    for (int32_t cell = 0; cell < n_kv_window; ++cell) {
      const bool sees = token.position - own.position(cell) < spec.attention.window &&
                        own.visible(cell, token.sequence, token.position);
      *out++ = sees ? visible : hidden;
    }
  }
}

}  // namespace hotset::engine
