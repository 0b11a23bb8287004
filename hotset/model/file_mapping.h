// The mappings that the handler of SIGBUS knows.
//
// The handler puts zero pages where a read has failed, so that the thread that met it, which may be
// deep in a kernel of ggml, goes on; it counts the fault first, so whoever reads zeros finds it
// counted afterwards. It uses nothing but atomics and system calls.
#ifndef HOTSET_MODEL_FILE_MAPPING_H_
#define HOTSET_MODEL_FILE_MAPPING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace hotset::model {

// One of a list that only grows: the handler may look at any time, so none is ever freed, and those
// that are done with are used again. Thread-safe as far as it is atomic; the rest is the owner's.
struct Mapping {
  static constexpr uintptr_t kNowhere = std::numeric_limits<uintptr_t>::max();

  std::atomic<uintptr_t> begin = kNowhere;  // kNowhere: not in use
  std::atomic<uintptr_t> end = 0;           // of its last page
  std::atomic<int> fd = -1;
  std::atomic<uint64_t> n_faults = 0;
  // Pages that were given zeros lie in between.
  std::atomic<uintptr_t> lost_begin = kNowhere;
  std::atomic<uintptr_t> lost_end = 0;
  std::atomic<bool> is_taken = false;
  Mapping* next = nullptr;

  uint64_t n_seen = 0;      // faults that check() has told of
  size_t n_bytes = 0;       // of the file, when it was mapped
  size_t n_bytes_left = 0;  // the fewest it was seen to have
  bool is_beyond_repair = false;
};

// Takes over SIGBUS, once, and enters `n_bytes` from `address`, which `fd` was mapped to.
Mapping* enter_mapping(const void* address, size_t n_bytes, int fd);
// Before the pages are unmapped and `fd` is closed.
void leave_mapping(Mapping* mapping);

// What happened since the last call: nothing, or that reads have failed; the pages are made such
// that they fail again.
enum class MappingState : uint8_t { kGood, kCut, kUnreadable };
MappingState check_mapping(Mapping& mapping);

}  // namespace hotset::model

#endif  // HOTSET_MODEL_FILE_MAPPING_H_
