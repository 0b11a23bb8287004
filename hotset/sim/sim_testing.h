// Help for tests of the simulator: traces in memory.
// Thread-compatible.
#ifndef HOTSET_SIM_SIM_TESTING_H_
#define HOTSET_SIM_SIM_TESTING_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "hotset/sim/replay.h"
#include "hotset/trace/synth.h"
#include "hotset/trace/trace_testing.h"

namespace hotset::sim {

// A trace that can be opened again and again; it must outlive its openers.
class MemoryTrace {
 public:
  explicit MemoryTrace(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) {}
  MemoryTrace(const trace::TraceHeader& header, const std::vector<trace::OwnedLookup>& lookups)
      : bytes_(trace::encode_trace(header, lookups)) {}

  TraceOpener opener() const {
    return [this] { return trace::read_bytes(bytes_); };
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace hotset::sim

#endif  // HOTSET_SIM_SIM_TESTING_H_
