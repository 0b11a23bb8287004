// Host memory for copies. Only pinned memory is copied asynchronously, so a device remembers which
// host memory is, and how much.
// Thread-safe: buffers may be freed on any thread.
#ifndef HOTSET_DEVICE_PINNED_MEMORY_H_
#define HOTSET_DEVICE_PINNED_MEMORY_H_

#include <ggml-cpp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"

namespace hotset::device {

class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  static std::shared_ptr<PinnedMemory> create();

  // Counts [begin, begin + n_bytes) as pinned for as long as the returned claim lives.
  std::shared_ptr<const void> add(const void* begin, size_t n_bytes);

  // Whether all of [begin, begin + n_bytes) lies in one pinned range.
  bool contains(const void* begin, size_t n_bytes) const;
  Bytes total() const;

 private:
  struct Claim;
  struct Range {
    uintptr_t begin;
    size_t n_bytes;
  };
  PinnedMemory() = default;

  mutable std::mutex mutex_;
  std::vector<Range> ranges_;  // sorted by begin
  Bytes total_;
};

// What may be pinned: half of the machine's memory. More starves everything else of pages, and
// some drivers refuse it anyway.
Bytes pinned_memory_limit();

// `n_bytes` of host memory of `type`; null for 0 bytes. Errors: kInvalidArgument (a negative
// number), kOutOfMemory, naming `what`, the bytes and those available.
Result<ggml_backend_buffer_ptr> allocate_host(ggml_backend_buffer_type_t type, Bytes n_bytes,
                                              std::string_view what);

// Warns that pinned memory was asked for and pageable memory is used.
void warn_pageable(std::string_view device, std::string_view what, Bytes n_bytes);

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_PINNED_MEMORY_H_
