#include "hotset/engine/weights/weight_faults.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

namespace hotset::engine {
namespace {

// Whoever waits for the answer waits for this as well; seconds on a slow disk.
constexpr int64_t kMaxBytes = int64_t{2} << 30;

// The index of the first number that is not finite.
std::optional<int64_t> faulty_number(const model::GgufFile& file, const model::TensorInfo& info) {
  const std::span<const uint8_t> bytes = file.tensor_bytes(info);
  const size_t row_bytes = ggml_row_size(info.type, info.ne[0]);
  const ggml_to_float_t to_float = ggml_get_type_traits(info.type)->to_float;
  if (row_bytes == 0 || (to_float == nullptr && info.type != GGML_TYPE_F32)) return std::nullopt;
  std::vector<uint8_t> aligned(row_bytes);
  std::vector<float> row(static_cast<size_t>(info.ne[0]));
  for (size_t at = 0; at + row_bytes <= bytes.size(); at += row_bytes) {
    std::memcpy(aligned.data(), bytes.data() + at, row_bytes);
    if (info.type == GGML_TYPE_F32) {
      std::memcpy(row.data(), aligned.data(), row_bytes);
    } else {
      to_float(aligned.data(), row.data(), info.ne[0]);
    }
    const auto found = std::ranges::find_if(row, [](float v) { return !std::isfinite(v); });
    if (found == row.end()) continue;
    return static_cast<int64_t>(at / row_bytes) * info.ne[0] + (found - row.begin());
  }
  return std::nullopt;
}

// As find_weight_fault(), of one layer; takes what it looks at from `n_left` bytes.
std::string find_in_layer(const model::GgufFile& file, int64_t layer, int64_t n_layer,
                          int64_t& n_left) {
  const std::string prefix = fmt::format("blk.{}.", layer);
  std::vector<const model::TensorInfo*> tensors;
  for (const model::TensorInfo& info : file.tensors()) {
    const bool is_behind = info.name.starts_with("output") || info.name.starts_with("token_embd");
    if (layer == n_layer ? is_behind : info.name.starts_with(prefix)) tensors.push_back(&info);
  }
  std::ranges::stable_sort(tensors, {}, [](const auto* info) { return info->n_bytes.count; });
  for (const model::TensorInfo* info : tensors) {
    n_left -= info->n_bytes.count;
    if (n_left < 0) return {};
    const std::optional<int64_t> number = faulty_number(file, *info);
    if (!number) continue;
    const auto& ne = info->ne;
    if (info->name.find("_exps.") == std::string::npos) return fmt::format("'{}'", info->name);
    // Experts are the outermost dimension: of matrices, of biases and of scales.
    const int64_t n_expert = ne[2] > 1 ? ne[2] : ne[1] > 1 ? ne[1] : ne[0];
    const int64_t n_numbers = ne[0] * ne[1] * ne[2] * ne[3];
    return fmt::format("'{}', expert {}", info->name, *number / (n_numbers / n_expert));
  }
  return {};
}

}  // namespace

std::string find_weight_fault(const model::GgufFile& file, std::span<const int64_t> layers,
                              int64_t n_layer) {
  int64_t n_left = kMaxBytes;
  for (const int64_t layer : layers) {
    std::string found = find_in_layer(file, layer, n_layer, n_left);
    if (!found.empty()) return found;
  }
  return {};
}

}  // namespace hotset::engine
