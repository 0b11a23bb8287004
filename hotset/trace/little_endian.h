// Numbers in little-endian order, as a trace stores them, on any machine.
// Thread-compatible: pure functions.
#ifndef HOTSET_TRACE_LITTLE_ENDIAN_H_
#define HOTSET_TRACE_LITTLE_ENDIAN_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace hotset::trace {

// Requires: `bytes` points to sizeof(T) readable bytes, of any alignment.
template <typename T>
T load_little_endian(const std::byte* bytes) {
  std::array<std::byte, sizeof(T)> raw;
  std::memcpy(raw.data(), bytes, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) std::ranges::reverse(raw);
  return std::bit_cast<T>(raw);
}

// Requires: `bytes` points to sizeof(T) writable bytes.
template <typename T>
void store_little_endian(T value, std::byte* bytes) {
  auto raw = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  if constexpr (std::endian::native == std::endian::big) std::ranges::reverse(raw);
  std::memcpy(bytes, raw.data(), sizeof(T));
}

// Requires: `bytes` points to 4 * values.size() readable bytes.
inline void load_little_endian(const std::byte* bytes, std::span<int32_t> values) {
  if (values.empty()) return;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(values.data(), bytes, values.size_bytes());
  } else {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = load_little_endian<int32_t>(bytes + i * sizeof(int32_t));
    }
  }
}

}  // namespace hotset::trace

#endif  // HOTSET_TRACE_LITTLE_ENDIAN_H_
