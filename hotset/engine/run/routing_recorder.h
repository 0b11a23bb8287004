// Records where the layers of a model route their tokens: as a trace (MCT1) in a file, and the last
// lookups in memory, for a replay beside what the cache did.
//
// An engine calls the recorder's observer; that begins before the engine is there, so nothing is
// recorded until begin() says what the trace is of. What cannot be written is kept as an error: an
// observer has nobody to return it to.
//
// Owns the file and the memory. Thread-compatible: the thread that drives the engine.
#ifndef HOTSET_ENGINE_RUN_ROUTING_RECORDER_H_
#define HOTSET_ENGINE_RUN_ROUTING_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/run/executor.h"
#include "hotset/trace/reader.h"
#include "hotset/trace/trace.h"
#include "hotset/trace/writer.h"

namespace hotset::engine {

// The header of a trace of what an engine routes: the groups of its expert cache, which leave out
// the layers that the CPU computes whole; without a cache all layers that have experts, in groups
// by layout.
// Errors: kInvalidArgument, no layer has experts; as find_weight and form_groups.
Result<trace::TraceHeader> trace_header(const Engine& engine);

// The layers whose lookups the engine's cache plans, ascending.
std::vector<int32_t> served_layers(const Engine& engine);

class RoutingRecorder {
 public:
  struct Options {
    std::string path = {};  // file to write; empty: none
    Bytes most_kept = {};   // of the last lookups, in memory; 0: none are kept
  };

  explicit RoutingRecorder(Options options) : options_(std::move(options)) {}
  RoutingRecorder(const RoutingRecorder&) = delete;
  RoutingRecorder& operator=(const RoutingRecorder&) = delete;

  // Calls this object, which must outlive it.
  RoutingObserver observer();

  // From now on lookups of the header's layers are recorded, and those of `kept_layers` kept in
  // memory. Errors: as TraceWriter::open. Requires: called once.
  Status begin(trace::TraceHeader header, std::span<const int32_t> kept_layers);

  // The first error of writing; nothing is written behind it.
  const Status& status() const { return status_; }
  // Ends the file, whatever happened: what was recorded is in it. Nothing is written afterwards.
  // Errors: kIo.
  Status end();

  // A reader of the lookups in memory, which borrows them: nothing may be recorded while it reads.
  // Requires: begin() succeeded.
  Result<trace::TraceReader> kept() const;
  // The trace of the last lookups in memory, at most about `most` of them, as the bytes of a file:
  // for a replay while recording goes on. Requires: begin() succeeded.
  std::vector<std::byte> copy_kept(Bytes most) const;
  int64_t n_kept() const { return n_kept_; }
  int64_t n_recorded() const { return n_recorded_; }  // of the kept layers
  bool was_cut() const { return n_kept_ < n_recorded_; }

 private:
  // Encoded lookups, all of them whole.
  struct Chunk {
    std::vector<std::byte> bytes;
    int64_t n_lookups = 0;
  };
  class KeptSource;

  void record(int64_t layer, std::span<const int32_t> ids, int64_t n_tokens);
  void keep(const trace::TraceLookup& lookup);

  Options options_;
  trace::TraceHeader header_;
  std::vector<uint8_t> is_kept_;         // [n_layer]
  std::vector<int32_t> group_by_layer_;  // empty before begin()
  std::optional<trace::TraceWriter> writer_;
  std::deque<Chunk> chunks_;
  int64_t n_kept_ = 0;
  int64_t n_recorded_ = 0;
  Status status_;
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_ROUTING_RECORDER_H_
