// How many CPUs this process may use: what its affinity mask allows, and no more than the CPU quota
// of the control groups that it is in. Everything that chooses a number of threads asks here.
// Thread-safe: nothing is kept.
#ifndef HOTSET_BASE_USABLE_CPUS_H_
#define HOTSET_BASE_USABLE_CPUS_H_

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hotset {

struct UsableCpus {
  int n_cpus = 1;   // threads that can run at the same time, at least 1
  int n_cores = 1;  // the same with the hyper-threads of a core counted once, at least 1
  // The smallest quota among the process's control groups and their parents, in CPUs: 1.5 are 150
  // ms of CPU time in 100 ms. Absent where none is less than what the mask allows. Whole CPUs of it
  // count, because kernel threads wait for each other: one that is stopped until the next period
  // stops all.
  std::optional<double> quota = {};
  std::string quota_file = {};  // where the quota stands; empty without one
};

// Where the answers are read from; tests have files of their own.
struct CpuSources {
  // In front of /proc/self/cgroup, /proc/self/mountinfo, the control groups and /sys/devices.
  std::filesystem::path root = "/";
  // The CPUs of the affinity mask; absent: the process's own.
  std::optional<std::vector<int>> allowed = {};
};

// As the system says now; it may change while a process runs. What cannot be read limits nothing.
UsableCpus usable_cpus(const CpuSources& sources = {});

// Why `n_threads` given by `flag` are too many, with what limits them; empty where they are not.
std::string threads_warning(std::string_view flag, int n_threads, const UsableCpus& cpus);

}  // namespace hotset

#endif  // HOTSET_BASE_USABLE_CPUS_H_
