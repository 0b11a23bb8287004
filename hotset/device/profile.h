// What ran when on which lane or queue, for a Chrome trace file (chrome://tracing, Perfetto).
// An emulated device's queues show what ran when, on its virtual clock as computed. Backends give
// no device times, so the queues of a real device show what the host observed: an entry lasts from
// when it was queued, or the one before it was seen to be done, until it was seen to be done.
// Thread-safe: any thread may record.
#ifndef HOTSET_DEVICE_PROFILE_H_
#define HOTSET_DEVICE_PROFILE_H_

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "hotset/base/error.h"

namespace hotset::device {

enum class Track : uint8_t { kHost, kCpuLane, kCompute, kTransfer };

class Profile {
 public:
  // Keeps the first `max_events`; what comes later is counted only. Nothing is allocated while
  // recording.
  explicit Profile(size_t max_events = 1 << 20);

  // `name` must be a string literal. `layer` -1: none.
  void add(Track track, const char* name, int32_t layer, double start_us, double duration_us);

  int64_t n_dropped() const;
  // Writes JSON in the Trace Event Format. Errors: kIo.
  Status write(const std::filesystem::path& path) const;

  struct Entry {
    const char* name;
    double start_us;
    double duration_us;
    int32_t layer;
    Track track;
  };
  // A copy, in the order of recording.
  std::vector<Entry> entries() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  int64_t n_dropped_ = 0;
};

}  // namespace hotset::device

#endif  // HOTSET_DEVICE_PROFILE_H_
