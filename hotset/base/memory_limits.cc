#include "hotset/base/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "hotset/base/control_groups.h"

namespace hotset {
namespace {

// The number that a file begins with; none for "max" and where there is no such file.
std::optional<int64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// The sum of those lines "NAME NUMBER" of a file whose names are asked for.
int64_t sum_of(const std::string& path, std::array<std::string_view, 2> names) {
  std::ifstream in(path);
  std::string name;
  int64_t value = 0;
  int64_t sum = 0;
  while (in >> name >> value) {
    if (std::ranges::contains(names, name)) sum += value;
  }
  return sum;
}

struct Kind {
  const char* limit;
  const char* usage;
  std::array<std::string_view, 2> files;  // keys of memory.stat
};
constexpr Kind kUnified = {"memory.max", "memory.current", {"inactive_file", "active_file"}};
constexpr Kind kOld = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};

Bytes left_of_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
      limit.rlim_cur > static_cast<rlim_t>(kNoMemoryLimit.count)) {
    return kNoMemoryLimit;
  }
  const int64_t n_pages = read_number("/proc/self/statm").value_or(0);
  const int64_t taken = n_pages * sysconf(_SC_PAGE_SIZE);
  return {std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - taken)};
}

}  // namespace

Bytes memory_left_by_groups(const std::string& root) {
  Bytes left = kNoMemoryLimit;
  for (const ControlGroup& group : control_groups("memory", root)) {
    const Kind& kind = group.is_v2 ? kUnified : kOld;
    const std::string folder = root + group.folder + "/";
    const auto limit = read_number(folder + kind.limit);
    const auto usage = read_number(folder + kind.usage);
    if (!limit || !usage || *limit >= kNoMemoryLimit.count) continue;
    const int64_t files = sum_of(folder + "memory.stat", kind.files);
    const int64_t taken = std::max<int64_t>(0, *usage - files);
    left = std::min(left, Bytes{std::max<int64_t>(0, *limit - taken)});
  }
  return left;
}

Bytes memory_left_by_limits() {
  return std::min(memory_left_by_groups(""), left_of_address_space());
}

}  // namespace hotset
