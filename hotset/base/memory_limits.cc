#include "hotset/base/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

namespace hotset {
namespace {

// The number that a file begins with; none for "max" and where there is no such file.
std::optional<int64_t> read_number(const std::filesystem::path& path) {
  std::ifstream in(path);
  int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// The sum of those lines "NAME NUMBER" of a file whose names are asked for.
int64_t sum_of(const std::filesystem::path& path, std::array<std::string_view, 2> names) {
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

// Of a group and its parents up to `mount`. A container may see the path of the host, where only
// the mount itself is its own group.
Bytes left_in(const std::filesystem::path& mount, std::filesystem::path group, const Kind& kind) {
  Bytes left = kNoMemoryLimit;
  group = group.relative_path();
  while (true) {
    const std::filesystem::path folder = mount / group;
    const auto limit = read_number(folder / kind.limit);
    const auto usage = read_number(folder / kind.usage);
    if (limit && usage && *limit < kNoMemoryLimit.count) {
      const int64_t files = sum_of(folder / "memory.stat", kind.files);
      const int64_t taken = std::max<int64_t>(0, *usage - files);
      left = std::min(left, Bytes{std::max<int64_t>(0, *limit - taken)});
    }
    if (group.empty()) return left;
    group = group.parent_path();
  }
}

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

Bytes memory_left_by_groups(const std::filesystem::path& self, const std::filesystem::path& root) {
  Bytes left = kNoMemoryLimit;
  std::ifstream in(self);
  // "0::/a/b" of the unified hierarchy, "7:memory:/a/b" of an old one.
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string_view controllers =
        std::string_view(line).substr(first + 1, second - first - 1);
    const std::filesystem::path group = line.substr(second + 1);
    if (controllers.empty()) {
      left = std::min(left, left_in(root, group, kUnified));
      // Where both kinds are mounted the unified one may lie below.
      left = std::min(left, left_in(root / "unified", group, kUnified));
    } else if (("," + std::string(controllers) + ",").contains(",memory,")) {
      left = std::min(left, left_in(root / "memory", group, kOld));
    }
  }
  return left;
}

Bytes memory_left_by_limits() {
  return std::min(memory_left_by_groups("/proc/self/cgroup", "/sys/fs/cgroup"),
                  left_of_address_space());
}

}  // namespace hotset
