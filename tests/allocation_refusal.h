// One allocation by operator new that fails. The program's operator new (allocation_test.cc) asks
// for each of them.
#ifndef TESTS_ALLOCATION_REFUSAL_H_
#define TESTS_ALLOCATION_REFUSAL_H_

#include <atomic>
#include <cstdint>

namespace hotset::test {

// How many allocations succeed before one fails; below zero: none fails.
inline std::atomic<int64_t> n_until_refusal = -1;

inline bool refuses_allocation() { return n_until_refusal >= 0 && n_until_refusal-- == 0; }

}  // namespace hotset::test

#endif  // TESTS_ALLOCATION_REFUSAL_H_
