// Quantities that carry their unit in their type.
// Thread-compatible: plain values.
#ifndef HOTSET_BASE_UNITS_H_
#define HOTSET_BASE_UNITS_H_

#include <compare>
#include <cstdint>
#include <string>

namespace hotset {

// A number of bytes. Arithmetic is that of int64_t: callers keep it in range (2^63 bytes).
struct Bytes {
  int64_t count = 0;

  constexpr auto operator<=>(const Bytes&) const = default;
  constexpr Bytes& operator+=(Bytes other) {
    count += other.count;
    return *this;
  }
  constexpr Bytes& operator-=(Bytes other) {
    count -= other.count;
    return *this;
  }
  friend constexpr Bytes operator+(Bytes a, Bytes b) { return {a.count + b.count}; }
  friend constexpr Bytes operator-(Bytes a, Bytes b) { return {a.count - b.count}; }
  friend constexpr Bytes operator*(Bytes a, int64_t n) { return {a.count * n}; }
  friend constexpr Bytes operator/(Bytes a, int64_t n) { return {a.count / n}; }
  friend constexpr Bytes operator*(int64_t n, Bytes a) { return {a.count * n}; }

  constexpr double mib() const { return static_cast<double>(count) / (1 << 20); }
  constexpr double gib() const { return static_cast<double>(count) / (1 << 30); }
};

constexpr Bytes mib(int64_t n) { return {n << 20}; }
constexpr Bytes gib(int64_t n) { return {n << 30}; }

// The smallest multiple of `alignment` that is not below `n`. Requires: alignment > 0, n >= 0.
constexpr Bytes align_up(Bytes n, int64_t alignment) {
  return {(n.count + alignment - 1) / alignment * alignment};
}

// "512 B", "1.5 KiB", "700.2 MiB", "17.9 GiB".
std::string to_string(Bytes bytes);

}  // namespace hotset

#endif  // HOTSET_BASE_UNITS_H_
