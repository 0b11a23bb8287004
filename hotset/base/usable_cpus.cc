#include "hotset/base/usable_cpus.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <ranges>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

namespace hotset {
namespace {

namespace fs = std::filesystem;

// A path of the system, below `root`.
fs::path below(const fs::path& root, const fs::path& path) { return root / path.relative_path(); }

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (const auto part : std::views::split(text, separator)) {
    parts.emplace_back(part.begin(), part.end());
  }
  return parts;
}

// mountinfo writes spaces, tabs, line ends and backslashes of paths as \040 and the like.
std::string unescaped(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto is_octal = [&](size_t at) { return text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && i + 3 < text.size() && is_octal(i + 1) && is_octal(i + 2) &&
        is_octal(i + 3)) {
      result += static_cast<char>(((text[i + 1] - '0') << 6) | ((text[i + 2] - '0') << 3) |
                                  (text[i + 3] - '0'));
      i += 3;
    } else {
      result += text[i];
    }
  }
  return result;
}

// Calls of a machine with more CPUs than a cpu_set_t has room for fail until the set is large
// enough.
std::vector<int> affinity() {
  for (size_t n_bits = CPU_SETSIZE; n_bits <= (size_t{1} << 20); n_bits *= 2) {
    std::vector<cpu_set_t> set(n_bits / CPU_SETSIZE);
    const size_t n_bytes = set.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, n_bytes, set.data()) != 0) continue;
    std::vector<int> allowed;
    for (size_t cpu = 0; cpu < n_bits; ++cpu) {
      if (CPU_ISSET_S(cpu, n_bytes, set.data())) allowed.push_back(static_cast<int>(cpu));
    }
    return allowed;
  }
  std::vector<int> all(std::max(1U, std::thread::hardware_concurrency()));
  std::ranges::generate(all, [n = 0]() mutable { return n++; });
  return all;
}

int count_cores(const fs::path& root, const std::vector<int>& cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    std::ifstream in(
        below(root, fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings", cpu)));
    std::string siblings;
    // A CPU of which nothing is known is a core of its own.
    if (!(in >> siblings)) siblings = fmt::format("cpu {}", cpu);
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

// A hierarchy of control groups that can limit CPU time.
struct Hierarchy {
  bool is_v2 = false;
  fs::path mount_root;  // the group that is seen at mount_point
  fs::path mount_point;
};

std::vector<Hierarchy> hierarchies(const fs::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream in(below(root, "/proc/self/mountinfo"));
  for (std::string line; std::getline(in, line);) {
    // ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [OPTIONAL...] - TYPE SOURCE SUPER_OPTIONS
    const std::vector<std::string> fields = split(line, ' ');
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::string& type = dash[1];
    const bool is_v2 = type == "cgroup2";
    if (!is_v2 && (type != "cgroup" || !std::ranges::contains(split(dash[3], ','), "cpu"))) {
      continue;
    }
    found.push_back(
        {.is_v2 = is_v2, .mount_root = unescaped(fields[3]), .mount_point = unescaped(fields[4])});
  }
  return found;
}

// The process's group in a hierarchy, as /proc/self/cgroup names it; empty if it does not.
std::string own_group(const fs::path& root, bool is_v2) {
  std::ifstream in(below(root, "/proc/self/cgroup"));
  for (std::string line; std::getline(in, line);) {
    // ID:CONTROLLERS:PATH, where the path may have colons; version 2 is 0::PATH.
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = is_v2 ? controllers.empty() && line.starts_with("0:")
                             : std::ranges::contains(split(controllers, ','), "cpu");
    if (is_it) return line.substr(second + 1);
  }
  return {};
}

// The folders of the process's group and its parents, as far as they can be seen: innermost first.
// A container often sees its own group, or the one of its namespace, as the top of the hierarchy.
std::vector<fs::path> visible_groups(const Hierarchy& hierarchy, const fs::path& group) {
  const fs::path relative = group.lexically_relative(hierarchy.mount_root);
  std::vector<fs::path> groups;
  if (!group.empty() && !relative.empty() && !std::ranges::contains(relative, fs::path(".."))) {
    fs::path folder = relative == "." ? fs::path() : relative;
    for (; !folder.empty(); folder = folder.parent_path()) {
      groups.push_back(hierarchy.mount_point / folder);
    }
  }
  groups.push_back(hierarchy.mount_point);
  return groups;
}

// The numbers in a file; a word that is none (max) is -1.
std::vector<double> numbers_in(const fs::path& file) {
  std::vector<double> numbers;
  std::ifstream in(file);
  for (std::string word; in >> word;) {
    double number = -1;
    std::istringstream(word) >> number;
    numbers.push_back(number);
  }
  return numbers;
}

struct Quota {
  double n_cpus = 0;
  fs::path file;
};

// Errors: none; a group without a quota, or with one that cannot be read, limits nothing.
std::optional<Quota> quota_of(const fs::path& root, const fs::path& group, bool is_v2) {
  const fs::path file = group / (is_v2 ? "cpu.max" : "cpu.cfs_quota_us");
  std::vector<double> us = numbers_in(below(root, file));
  if (!is_v2) {
    const auto period = numbers_in(below(root, group / "cpu.cfs_period_us"));
    us.insert(us.end(), period.begin(), period.end());
  }
  if (us.size() != 2 || !(us[0] > 0) || !(us[1] > 0)) return std::nullopt;
  return Quota{.n_cpus = us[0] / us[1], .file = file};
}

std::optional<Quota> smallest_quota(const fs::path& root) {
  std::optional<Quota> smallest;
  for (const Hierarchy& hierarchy : hierarchies(root)) {
    for (const fs::path& group : visible_groups(hierarchy, own_group(root, hierarchy.is_v2))) {
      const std::optional<Quota> quota = quota_of(root, group, hierarchy.is_v2);
      if (quota && (!smallest || quota->n_cpus < smallest->n_cpus)) smallest = quota;
    }
  }
  return smallest;
}

}  // namespace

UsableCpus usable_cpus(const CpuSources& sources) {
  std::vector<int> allowed = sources.allowed ? *sources.allowed : affinity();
  UsableCpus cpus{.n_cpus = std::max(1, static_cast<int>(allowed.size())),
                  .n_cores = std::max(1, count_cores(sources.root, allowed))};
  const std::optional<Quota> quota = smallest_quota(sources.root);
  // Compared as numbers of the larger type: a quota may be beyond any int.
  if (!quota || quota->n_cpus >= cpus.n_cpus) return cpus;
  cpus.n_cpus = std::max(1, static_cast<int>(quota->n_cpus));
  cpus.n_cores = std::min(cpus.n_cores, cpus.n_cpus);
  cpus.quota = quota->n_cpus;
  cpus.quota_file = quota->file.string();
  return cpus;
}

std::string threads_warning(std::string_view flag, int n_threads, const UsableCpus& cpus) {
  if (n_threads <= cpus.n_cpus) return {};
  const std::string why =
      cpus.quota ? fmt::format("a CPU quota of {:.2f}, {}", *cpus.quota, cpus.quota_file)
                 : std::string("its affinity mask");
  return fmt::format(
      "{} {}: this process may use {} CPU{} ({}); more threads than that wait for each other, and "
      "everything takes longer",
      flag, n_threads, cpus.n_cpus, cpus.n_cpus == 1 ? "" : "s", why);
}

}  // namespace hotset
