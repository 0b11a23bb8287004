// A model at work for a command: the engine that the flags ask for, and what is recorded meanwhile.
// Thread-compatible. Owns the engine.
#ifndef HOTSET_MEASURE_ENGINE_SESSION_H_
#define HOTSET_MEASURE_ENGINE_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "hotset/base/error.h"
#include "hotset/base/interrupt.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/run/routing_recorder.h"
#include "hotset/measure/engine_session.h"
#include "hotset/measure/model_options.h"
#include "hotset/report/cache_report.h"

namespace hotset::measure {

// An engine for the flags, and what is recorded while it works. Move-only.
class EngineSession {
 public:
  // What a command has to find in a file beside its weights.
  using Prepare = std::function<Status(const engine::ModelDescription&)>;

  // Says the verdict line. `prepare` is called before the weights are loaded, which may take long:
  // what it refuses is told at once. Errors: those of the flags, the device, the file, `prepare`
  // and the engine; of RoutingRecorder::begin.
  static Result<EngineSession> start(const ModelOptions& options,
                                     engine::EngineOptions engine_options,
                                     const Prepare& prepare = {});

  engine::Engine& engine() const { return *engine_; }
  // Null: nothing is recorded.
  const engine::RoutingRecorder* recorder() const { return recorder_.get(); }
  // The verdict line, as things are now.
  std::string verdict() const;

  // As Engine::decode, and between two ubatches Ctrl-C ends it (kCancelled) and statistics are
  // printed when SIGUSR1 asks for them. Errors: those of Engine::decode; kIo, the trace cannot be
  // written.
  Result<engine::DecodeResult> decode(std::span<const engine::BatchToken> batch);
  // The same as Engine::decode_each.
  Result<engine::DecodeResult> decode_each(std::span<const engine::BatchToken> batch);

  // Writes what was asked for, also of a run that failed: ends the trace and the profile, and
  // prints the statistics. Errors: kIo. Call once.
  Status finish();

  // What the cache is and what it did; with --stats, after finish(), in detail.
  nlohmann::ordered_json cache_json() const;

 private:
  EngineSession() = default;
  Status start_recording(const ModelOptions& options);
  bool keep_going();
  Status report_statistics();

  std::string profile_path_;
  std::unique_ptr<device::Profile> profile_;             // outlives the engine
  std::unique_ptr<engine::RoutingRecorder> recorder_;    // outlives the engine
  std::unique_ptr<ReportRequestScope> report_requests_;  // with --stats
  std::unique_ptr<engine::Engine> engine_;
  std::optional<Bytes> asked_cache_;
  std::unique_ptr<report::CacheReport> report_;  // the last one
};

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_ENGINE_SESSION_H_
