// The threads with which the CPU backend computes. OpenMP keeps a team of them for each thread that
// asks, and ends the process where it cannot start one; what refuses one is mostly a limit on
// addresses, of which its stack takes many.
// Thread-safe.
#ifndef HOTSET_DEVICE_KERNEL_THREADS_H_
#define HOTSET_DEVICE_KERNEL_THREADS_H_

#include <ggml.h>

#include <cstdint>
#include <span>

#include "hotset/base/error.h"

namespace hotset::device {

// That a team of `n_threads` for the calling thread finds its addresses. Costs nothing once it did.
// Errors: kOutOfMemory.
Status expect_kernel_threads(int n_threads);

// Copies a weight into its tensor, which is in some buffer; the CPU backend's own layouts rearrange
// it on the way, with as many threads as the machine has. Errors: kOutOfMemory.
Status set_weight(ggml_tensor* tensor, std::span<const uint8_t> bytes);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_KERNEL_THREADS_H_
