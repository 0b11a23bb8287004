#include "hotset/engine/ubatch_inputs.h"

#include <algorithm>
#include <cmath>

namespace hotset::engine {

GraphShape UbatchInputs::shape_of(std::span<const BatchToken> ubatch, const KvCache& kv) {
  const auto n_outputs = std::ranges::count_if(ubatch, &BatchToken::want_logits);
  return {.n_tokens = static_cast<int32_t>(ubatch.size()),
          .n_kv = kv.n_kv(),
          .n_outputs = static_cast<int32_t>(n_outputs)};
}

void UbatchInputs::fill(std::span<const BatchToken> ubatch, std::span<const int32_t> cells,
                        const model::ModelSpec& spec, const KvCache& kv) {
  tokens.clear();
  positions.clear();
  output_rows.clear();
  for (size_t i = 0; i < ubatch.size(); ++i) {
    tokens.push_back(ubatch[i].token);
    positions.push_back(ubatch[i].position);
    if (ubatch[i].want_logits) output_rows.push_back(static_cast<int32_t>(i));
  }
  key_rows.assign(cells.begin(), cells.end());
  value_rows.clear();
  if (!kv.values_transposed()) {
    value_rows = key_rows;
  } else {
    // Transposed values: row i of the value of a cell is the i-th of n_cells numbers each.
    const int64_t value_row = spec.attention.n_head_kv * spec.attention.head_dim_v;
    for (const int32_t cell : cells) {
      for (int64_t i = 0; i < value_row; ++i) {
        value_rows.push_back(i * kv.cells().n_cells() + cell);
      }
    }
  }
  const ggml_fp16_t visible = ggml_fp32_to_fp16(0.0F);
  const ggml_fp16_t hidden = ggml_fp32_to_fp16(-INFINITY);
  const int32_t n_kv = kv.n_kv();
  const KvCells& of = kv.cells();
  const size_t n_all = ubatch.size() * static_cast<size_t>(n_kv);
  mask.resize(n_all * static_cast<size_t>(n_masks(spec)));
  ggml_fp16_t* out = mask.data();
  for (const BatchToken& token : ubatch) {
    for (int32_t cell = 0; cell < n_kv; ++cell) {
      *out++ = of.visible(cell, token.sequence, token.position) ? visible : hidden;
    }
  }
  if (spec.attention.window == 0) return;
  const ggml_fp16_t* all = mask.data();
  for (const BatchToken& token : ubatch) {
    for (int32_t cell = 0; cell < n_kv; ++cell) {
      const bool is_near = token.position - of.position(cell) < spec.attention.window;
      *out++ = is_near ? *all : hidden;
      ++all;
    }
  }
}

}  // namespace hotset::engine
