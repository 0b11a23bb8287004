#include "hotset/base/units.h"

#include <fmt/core.h>

namespace hotset {

std::string to_string(Bytes bytes) {
  const auto n = static_cast<double>(bytes.count);
  if (bytes.count < int64_t{1} << 10) return fmt::format("{} B", bytes.count);
  if (bytes.count < int64_t{1} << 20) return fmt::format("{:.1f} KiB", n / (1 << 10));
  if (bytes.count < int64_t{1} << 30) return fmt::format("{:.1f} MiB", bytes.mib());
  return fmt::format("{:.2f} GiB", bytes.gib());
}

}  // namespace hotset
