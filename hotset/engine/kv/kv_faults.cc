#include "hotset/engine/kv/kv_faults.h"

#include <algorithm>
#include <cstring>

namespace hotset::engine {
namespace {

// Exponents of all ones: NaN or infinite.
bool is_finite_f16(const uint8_t* at) {
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return (bits & 0x7C00U) != 0x7C00U;
}

bool is_finite_f32(const uint8_t* at) {
  uint32_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  return (bits & 0x7F800000U) != 0x7F800000U;
}

// Bytes of one number, or of one block with a factor in front, and how to look at it.
struct Unit {
  size_t n_bytes;
  bool (*is_finite)(const uint8_t*);
};

Unit unit_of(ggml_type type) {
  return {.n_bytes = ggml_type_size(type),
          .is_finite = type == GGML_TYPE_F32 ? is_finite_f32 : is_finite_f16};
}

const KvCells& cells_of(const KvCache& kv, int64_t layer) {
  return kv.attention().is_windowed(layer) ? kv.window_cells() : kv.cells();
}

int32_t n_read(const KvCache& kv, int64_t layer) {
  return kv.attention().is_windowed(layer) ? kv.n_kv_window() : kv.n_kv();
}

// Which of the first `n` cells of a row per cell have a fault. `bytes` are those rows.
std::vector<int32_t> faulty_rows(const ggml_tensor* tensor, std::span<const uint8_t> bytes,
                                 int32_t n) {
  std::vector<int32_t> cells;
  const size_t row_bytes = tensor->nb[1];
  for (int32_t cell = 0; cell < n; ++cell) {
    const auto row = bytes.subspan(static_cast<size_t>(cell) * row_bytes, row_bytes);
    if (!rows_are_finite(tensor->type, row)) cells.push_back(cell);
  }
  return cells;
}

// The same for transposed values [R_v, n_cells], of which `bytes` are all.
std::vector<int32_t> faulty_columns(const ggml_tensor* tensor, std::span<const uint8_t> bytes,
                                    int32_t n) {
  const Unit unit = unit_of(tensor->type);
  std::vector<uint8_t> is_faulty(static_cast<size_t>(n));
  for (size_t row = 0; row < static_cast<size_t>(tensor->ne[1]); ++row) {
    const uint8_t* at = bytes.data() + row * tensor->nb[1];
    for (uint8_t& faulty : is_faulty) {
      if (!unit.is_finite(at)) faulty = 1;
      at += unit.n_bytes;
    }
  }
  std::vector<int32_t> cells;
  for (int32_t cell = 0; cell < n; ++cell) {
    if (is_faulty[cell] != 0) cells.push_back(cell);
  }
  return cells;
}

Status clear_columns(const KvCache& kv, ggml_tensor* tensor, std::span<const int32_t> cells) {
  std::vector<uint8_t> whole(ggml_nbytes(tensor));
  HOTSET_RETURN_IF_ERROR(kv.read(tensor, 0, whole.data(), whole.size()));
  const size_t size = ggml_type_size(tensor->type);
  for (size_t row = 0; row < static_cast<size_t>(tensor->ne[1]); ++row) {
    for (const int32_t cell : cells) {
      std::memset(whole.data() + row * tensor->nb[1] + static_cast<size_t>(cell) * size, 0, size);
    }
  }
  return kv.write(tensor, 0, whole.data(), whole.size());
}

}  // namespace

bool rows_are_finite(ggml_type type, std::span<const uint8_t> rows) {
  const Unit unit = unit_of(type);
  for (size_t i = 0; i + unit.n_bytes <= rows.size(); i += unit.n_bytes) {
    if (!unit.is_finite(rows.data() + i)) return false;
  }
  return true;
}

Result<KvFaults> KvFaults::find(const KvCache& kv) {
  KvFaults faults;
  faults.first_layer_ = kv.n_layer();
  std::vector<uint8_t> bytes;
  const auto look_at = [&](int64_t layer, const ggml_tensor* tensor, bool in_values) -> Status {
    const bool transposed = in_values && kv.values_transposed();
    const int32_t n = n_read(kv, layer);
    bytes.resize(transposed ? ggml_nbytes(tensor) : static_cast<size_t>(n) * tensor->nb[1]);
    HOTSET_RETURN_IF_ERROR(kv.read(tensor, 0, bytes.data(), bytes.size()));
    std::vector<int32_t> cells =
        transposed ? faulty_columns(tensor, bytes, n) : faulty_rows(tensor, bytes, n);
    if (cells.empty()) return {};
    if (faults.first_layer_ == kv.n_layer()) faults.first_layer_ = layer;
    if (faults.first_layer_ == layer) {
      for (const int32_t cell : cells) faults.sequences_ |= cells_of(kv, layer).sequences(cell);
    }
    faults.found_.push_back({layer, in_values, std::move(cells)});
    return {};
  };
  for (int64_t layer = 0; layer < kv.n_layer(); ++layer) {
    HOTSET_RETURN_IF_ERROR(look_at(layer, kv.keys(layer), false));
    if (kv.attention().values_in_keys) continue;
    HOTSET_RETURN_IF_ERROR(look_at(layer, kv.values(layer), true));
  }
  return faults;
}

Status KvFaults::clear(const KvCache& kv, uint64_t sequences) const {
  std::vector<int32_t> cells;
  for (const Found& found : found_) {
    const KvCells& all = cells_of(kv, found.layer);
    cells.clear();
    for (const int32_t cell : found.cells) {
      const uint64_t owners = all.sequences(cell);
      if (owners == 0 || (owners & sequences) != 0) cells.push_back(cell);
    }
    if (cells.empty()) continue;
    ggml_tensor* tensor = found.in_values ? kv.values(found.layer) : kv.keys(found.layer);
    if (found.in_values && kv.values_transposed()) {
      HOTSET_RETURN_IF_ERROR(clear_columns(kv, tensor, cells));
      continue;
    }
    const std::vector<uint8_t> zeros(tensor->nb[1]);
    for (const int32_t cell : cells) {
      HOTSET_RETURN_IF_ERROR(
          kv.write(tensor, static_cast<size_t>(cell) * zeros.size(), zeros.data(), zeros.size()));
    }
  }
  return {};
}

}  // namespace hotset::engine
