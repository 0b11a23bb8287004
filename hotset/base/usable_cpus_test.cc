// CPU quotas as systems and containers show them, in files of the test's own.
#include "hotset/base/usable_cpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <mutex>
#include <set>
#include <thread>

#include "hotset/base/temporary_folder.h"
#include "hotset/base/thread_pool.h"

namespace hotset {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* kV2Mount =
    "25 20 0:22 / /proc rw - proc proc rw\n"
    "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

class UsableCpusTest : public testing::Test {
 protected:
  void write(const std::filesystem::path& path, std::string_view text) {
    const auto file = folder_.path() / path.relative_path();
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void process(std::string_view cgroup, std::string_view mountinfo) {
    write("/proc/self/cgroup", cgroup);
    write("/proc/self/mountinfo", mountinfo);
  }
  UsableCpus usable(int n_allowed = 16) {
    std::vector<int> allowed;
    for (int cpu = 0; cpu < n_allowed; ++cpu) allowed.push_back(cpu);
    return usable_cpus({.root = folder_.path(), .allowed = allowed});
  }

  test::TemporaryFolder folder_;
};

TEST_F(UsableCpusTest, WithoutControlGroupsTheMaskCounts) {
  EXPECT_EQ(usable(5).n_cpus, 5);
  EXPECT_EQ(usable(5).n_cores, 5);
  EXPECT_FALSE(usable(5).quota);
  EXPECT_EQ(usable(0).n_cpus, 1);
  EXPECT_EQ(usable(0).n_cores, 1);
}

TEST_F(UsableCpusTest, HyperThreadsOfACoreAreCountedOnce) {
  const char* siblings[] = {"5", "a", "5", "a"};
  for (int cpu = 0; cpu < 4; ++cpu) {
    write(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings", cpu),
          siblings[cpu]);
  }
  EXPECT_EQ(usable(4).n_cpus, 4);
  EXPECT_EQ(usable(4).n_cores, 2);
  EXPECT_EQ(usable(1).n_cores, 1);
  // One of which nothing is known.
  EXPECT_EQ(usable(5).n_cores, 3);
  // A quota is time of hyper-threads; what one core has is not doubled by it.
  process("0::/job\n", kV2Mount);
  write("/sys/fs/cgroup/job/cpu.max", "300000 100000\n");
  EXPECT_EQ(usable(4).n_cpus, 3);
  EXPECT_EQ(usable(4).n_cores, 2);
}

TEST_F(UsableCpusTest, TheQuotaOfTheOwnGroup) {
  process("0::/a.slice/job.service\n", kV2Mount);
  const auto file = "/sys/fs/cgroup/a.slice/job.service/cpu.max";
  const auto expect = [&](const char* text, int n_cpus) {
    write(file, text);
    EXPECT_EQ(usable().n_cpus, n_cpus) << text;
    EXPECT_EQ(usable().n_cores, n_cpus) << text;
    EXPECT_EQ(usable().quota.has_value(), n_cpus < 16) << text;
  };
  expect("200000 100000\n", 2);
  expect("150000 100000\n", 1);  // whole ones
  expect("50000 100000\n", 1);   // but never none
  expect("1 1000000\n", 1);
  expect("299999 100000\n", 2);
  expect("10000 2500\n", 4);
  expect("1600000 100000\n", 16);
  expect("9999999999999999999999 1\n", 16);
  expect("max 100000\n", 16);
  // What cannot be understood limits nothing.
  expect("", 16);
  expect("200000\n", 16);
  expect("200000 0\n", 16);
  expect("-200000 100000\n", 16);
  expect("two four\n", 16);
  write(file, "200000 100000\n");
  EXPECT_DOUBLE_EQ(*usable().quota, 2.0);
  EXPECT_EQ(usable().quota_file, file);
}

TEST_F(UsableCpusTest, TheSmallestQuotaOfAllParents) {
  process("0::/a/b/c\n", kV2Mount);
  write("/sys/fs/cgroup/a/b/c/cpu.max", "800000 100000\n");
  write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(usable().n_cpus, 8);
  write("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  EXPECT_EQ(usable().n_cpus, 3);
  EXPECT_EQ(usable().quota_file, "/sys/fs/cgroup/a/cpu.max");
  // The top as a container sees it: a group with a quota outside.
  write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(usable().n_cpus, 2);
  // Those beside it are not its own.
  write("/sys/fs/cgroup/other/cpu.max", "100000 100000\n");
  EXPECT_EQ(usable().n_cpus, 2);
}

TEST_F(UsableCpusTest, AContainerSeesItsGroupAsTheTop) {
  process("0::/\n", kV2Mount);
  write("/sys/fs/cgroup/cpu.max", "250000 100000\n");
  EXPECT_EQ(usable().n_cpus, 2);
  EXPECT_EQ(usable().quota_file, "/sys/fs/cgroup/cpu.max");
  // In a namespace that the group is outside of.
  process("0::/../../job\n", kV2Mount);
  EXPECT_EQ(usable().n_cpus, 2);
}

TEST_F(UsableCpusTest, Version1WithItsParents) {
  const char* mounts =
      "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "33 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
  process("9:name=systemd:/x\n3:cpuset:/x\n2:cpu,cpuacct:/docker/job\n0::/docker/job\n", mounts);
  const std::filesystem::path group = "/sys/fs/cgroup/cpu,cpuacct/docker/job";
  write(group / "cpu.cfs_quota_us", "-1\n");
  write(group / "cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable().n_cpus, 16);
  write(group / "cpu.cfs_quota_us", "600000\n");
  EXPECT_EQ(usable().n_cpus, 6);
  write(group.parent_path() / "cpu.cfs_quota_us", "100000\n");
  write(group.parent_path() / "cpu.cfs_period_us", "50000\n");
  EXPECT_EQ(usable().n_cpus, 2);
  EXPECT_EQ(usable().quota_file, "/sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us");
  // One quota of each kind: the smaller one counts.
  write("/sys/fs/cgroup/unified/docker/cpu.max", "100000 100000\n");
  EXPECT_EQ(usable().n_cpus, 1);
}

TEST_F(UsableCpusTest, Version1InAContainerWithoutANamespace) {
  // The names are the host's, what is mounted is the container's part.
  process("4:cpu:/docker/0a1b/inner\n",
          "32 31 0:29 /docker/0a1b /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu\n");
  write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000");
  write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(usable().n_cpus, 4);
  write("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "300000");
  write("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000");
  EXPECT_EQ(usable().n_cpus, 3);
}

TEST_F(UsableCpusTest, NamesWithSpacesAndColons) {
  process("0::/a b:c\n",
          "31 23 0:28 / /sys/fs/control\\040groups rw - cgroup2 cgroup2 rw\nshort line\n\n");
  write("/sys/fs/control groups/a b:c/cpu.max", "200000 100000");
  EXPECT_EQ(usable().n_cpus, 2);
}

TEST_F(UsableCpusTest, ThisProcessMayUseSome) {
  const UsableCpus cpus = usable_cpus();
  EXPECT_GE(cpus.n_cores, 1);
  EXPECT_GE(cpus.n_cpus, cpus.n_cores);
  EXPECT_EQ(cpus.quota.has_value(), !cpus.quota_file.empty());
}

TEST_F(UsableCpusTest, WarnsOfMoreThreads) {
  EXPECT_THAT(threads_warning("--threads", 4, {.n_cpus = 4, .n_cores = 2}), IsEmpty());
  EXPECT_THAT(threads_warning("--threads", 0, {.n_cpus = 4}), IsEmpty());
  EXPECT_THAT(threads_warning("--threads", 5, {.n_cpus = 4}),
              HasSubstr("--threads 5: this process may use 4 CPUs (its affinity mask); more"));
  EXPECT_THAT(
      threads_warning("--threads", 2, {.n_cpus = 1, .quota = 1.5, .quota_file = "/x/cpu.max"}),
      HasSubstr("may use 1 CPU (a CPU quota of 1.50, /x/cpu.max); more"));
}

TEST_F(UsableCpusTest, TheThreadPoolUsesAsMany) {
  const auto n_cpus = static_cast<size_t>(usable_cpus().n_cpus);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::atomic<size_t> n_begun = 0;
  parallel_for(4 * n_cpus, 0, [&](size_t) {
    // Until all threads that there are have begun, so that none takes the work of another one.
    ++n_begun;
    while (n_begun < n_cpus) std::this_thread::yield();
    const std::scoped_lock lock(mutex);
    threads.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(threads.size(), n_cpus);
}

}  // namespace
}  // namespace hotset
