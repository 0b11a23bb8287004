// A fixed set of threads for independent pieces of work.
#ifndef HOTSET_BASE_THREAD_POOL_H_
#define HOTSET_BASE_THREAD_POOL_H_

#include <cstddef>
#include <functional>

namespace hotset {

// Calls work(i) once for each i in [0, n), on up to `n_threads` threads (0: one per CPU that
// the process may use), and returns when all calls have returned. The order of the calls is
// unspecified. `work` must be safe to call from several threads and must not throw.
void parallel_for(size_t n, size_t n_threads, const std::function<void(size_t)>& work);

}  // namespace hotset

#endif  // HOTSET_BASE_THREAD_POOL_H_
