#include "hotset/device/pinned_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/device/backend.h"

namespace hotset::device {

struct PinnedMemory::Claim {
  Claim(std::shared_ptr<PinnedMemory> memory, Range range)
      : memory_(std::move(memory)), range_(range) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    const std::lock_guard lock(memory_->mutex_);
    std::erase_if(memory_->ranges_, [&](const Range& r) { return r.begin == range_.begin; });
    memory_->total_ -= Bytes{static_cast<int64_t>(range_.n_bytes)};
  }

 private:
  std::shared_ptr<PinnedMemory> memory_;
  Range range_;
};

std::shared_ptr<PinnedMemory> PinnedMemory::create() {
  return std::shared_ptr<PinnedMemory>(new PinnedMemory);
}

std::shared_ptr<const void> PinnedMemory::add(const void* begin, size_t n_bytes) {
  const Range range{reinterpret_cast<uintptr_t>(begin), n_bytes};
  {
    const std::lock_guard lock(mutex_);
    ranges_.insert(std::ranges::lower_bound(ranges_, range.begin, {}, &Range::begin), range);
    total_ += Bytes{static_cast<int64_t>(n_bytes)};
  }
  return std::make_shared<Claim>(shared_from_this(), range);
}

bool PinnedMemory::contains(const void* begin, size_t n_bytes) const {
  const auto first = reinterpret_cast<uintptr_t>(begin);
  const std::lock_guard lock(mutex_);
  const auto after = std::ranges::upper_bound(ranges_, first, {}, &Range::begin);
  if (after == ranges_.begin()) return false;
  const Range& range = *std::prev(after);
  const size_t offset = first - range.begin;
  return offset <= range.n_bytes && n_bytes <= range.n_bytes - offset;
}

Bytes PinnedMemory::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

Bytes pinned_memory_limit() {
  const int64_t n_pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  if (n_pages <= 0 || page_bytes <= 0) return {std::numeric_limits<int64_t>::max()};
  return {n_pages * page_bytes / 2};
}

Result<ggml_backend_buffer_ptr> allocate_host(ggml_backend_buffer_type_t type, Bytes n_bytes,
                                              std::string_view what) {
  if (n_bytes.count < 0) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found {} bytes, expected at least 0", what,
                      n_bytes.count);
  }
  if (n_bytes.count == 0) return ggml_backend_buffer_ptr();
  // The system overcommits: it would grant the memory and end the process when it is touched.
  const Bytes available = available_host_memory();
  if (n_bytes > available) {
    return make_error(ErrorCode::kOutOfMemory,
                      "{}: needs {} of host memory, the machine has {} available", what,
                      to_string(n_bytes), to_string(available));
  }
  return allocate_buffer(type, n_bytes, what);
}

void warn_pageable(std::string_view device, std::string_view what, Bytes n_bytes) {
  log_warning(
      "{}: {}: {} of pinned memory were refused; pageable memory is used, whose copies are slower "
      "and wait",
      device, what, to_string(n_bytes));
}

}  // namespace hotset::device
