#include "hotset/measure/machine_info.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <vector>

#include "hotset/base/clock.h"
#include "hotset/base/usable_cpus.h"

namespace hotset::measure {
namespace {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

// So that the compiler cannot leave a pass out.
std::atomic<uint64_t> g_sink = 0;

void read_part(std::span<const uint64_t> words) {
  // Four sums: one would wait for itself.
  uint64_t sums[4] = {};
  for (size_t i = 0; i + 4 <= words.size(); i += 4) {
    for (size_t j = 0; j < 4; ++j) sums[j] += words[i + j];
  }
  g_sink.fetch_add(sums[0] + sums[1] + sums[2] + sums[3], std::memory_order_relaxed);
}

}  // namespace

MachineInfo machine_info() {
  return {.cpu = cpu_name(),
          .n_cores = usable_cpus().n_cores,
          .ram = Bytes{sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)}};
}

double measure_memory_gb_per_s(int n_threads) {
  constexpr Bytes kBytes = mib(256);
  constexpr int kPasses = 3;
  constexpr auto kWords = static_cast<size_t>(kBytes.count) / sizeof(uint64_t);
  const std::unique_ptr<uint64_t[]> memory(new (std::nothrow) uint64_t[kWords]);
  if (!memory) return 0;
  const std::span<uint64_t> words(memory.get(), kWords);
  // Written first: pages that were never touched are all the same one.
  std::ranges::fill(words, 1);
  double best_us = 0;
  const size_t n_part = kWords / static_cast<size_t>(std::max(1, n_threads));
  for (int pass = 0; pass < kPasses; ++pass) {
    const double start_us = steady_clock().now_us();
    {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < static_cast<size_t>(std::max(1, n_threads)); ++i) {
        threads.emplace_back(read_part, words.subspan(i * n_part, n_part));
      }
    }
    const double us = steady_clock().now_us() - start_us;
    if (pass == 0 || us < best_us) best_us = us;
  }
  return best_us > 0 ? static_cast<double>(kBytes.count) / best_us / 1e3 : 0;
}

}  // namespace hotset::measure
