#include "hotset/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "hotset/base/usable_cpus.h"

namespace hotset {

void parallel_for(size_t n, size_t n_threads, const std::function<void(size_t)>& work) {
  if (n_threads == 0) n_threads = static_cast<size_t>(usable_cpus().n_cpus);
  n_threads = std::min(n_threads, n);
  if (n_threads <= 1) {
    for (size_t i = 0; i < n; ++i) work(i);
    return;
  }
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> threads;
  threads.reserve(n_threads);
  for (size_t t = 0; t < n_threads; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < n; i = next++) work(i);
    });
  }
}

}  // namespace hotset
