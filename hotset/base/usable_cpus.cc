#include "hotset/base/usable_cpus.h"

#include <fmt/core.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <thread>

#include "hotset/base/control_groups.h"

namespace hotset {
namespace {

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

int count_cores(const std::string& root, const std::vector<int>& cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    std::ifstream in(root +
                     fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings", cpu));
    std::string siblings;
    // A CPU of which nothing is known is a core of its own.
    if (!(in >> siblings)) siblings = fmt::format("cpu {}", cpu);
    cores.insert(siblings);
  }
  return static_cast<int>(cores.size());
}

// The numbers in a file; a word that is none (max) is -1.
std::vector<double> numbers_in(const std::string& file) {
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
  std::string file;
};

// Errors: none; a group without a quota, or with one that cannot be read, limits nothing.
std::optional<Quota> quota_of(const std::string& root, const std::string& group, bool is_v2) {
  const std::string file = group + (is_v2 ? "/cpu.max" : "/cpu.cfs_quota_us");
  std::vector<double> us = numbers_in(root + file);
  if (!is_v2) {
    const auto period = numbers_in(root + group + "/cpu.cfs_period_us");
    us.insert(us.end(), period.begin(), period.end());
  }
  if (us.size() != 2 || !(us[0] > 0) || !(us[1] > 0)) return std::nullopt;
  return Quota{.n_cpus = us[0] / us[1], .file = file};
}

std::optional<Quota> smallest_quota(const std::string& root) {
  std::optional<Quota> smallest;
  for (const ControlGroup& group : control_groups("cpu", root)) {
    const std::optional<Quota> quota = quota_of(root, group.folder, group.is_v2);
    if (quota && (!smallest || quota->n_cpus < smallest->n_cpus)) smallest = quota;
  }
  return smallest;
}

}  // namespace

UsableCpus usable_cpus(const CpuSources& sources) {
  const std::string root = sources.root == "/" ? "" : sources.root.string();
  std::vector<int> allowed = sources.allowed ? *sources.allowed : affinity();
  UsableCpus cpus{.n_cpus = std::max(1, static_cast<int>(allowed.size())),
                  .n_cores = std::max(1, count_cores(root, allowed))};
  const std::optional<Quota> quota = smallest_quota(root);
  // Compared as numbers of the larger type: a quota may be beyond any int.
  if (!quota || quota->n_cpus >= cpus.n_cpus) return cpus;
  cpus.n_cpus = std::max(1, static_cast<int>(quota->n_cpus));
  cpus.n_cores = std::min(cpus.n_cores, cpus.n_cpus);
  cpus.quota = quota->n_cpus;
  cpus.quota_file = quota->file;
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
