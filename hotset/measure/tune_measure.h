// Measures one loaded model with one cache setting after the other, always with the same tokens.
// Thread-compatible: the thread that created it.
#ifndef HOTSET_MEASURE_TUNE_MEASURE_H_
#define HOTSET_MEASURE_TUNE_MEASURE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/engine/run/engine.h"
#include "hotset/engine/run/routing_recorder.h"
#include "hotset/measure/bench_tokens.h"
#include "hotset/measure/tune_options.h"
#include "hotset/sim/tuning.h"
#include "hotset/text/tokenizer.h"

namespace hotset::measure {

// What all runs compute: passages, each in an empty context.
struct TunePassage {
  std::vector<int32_t> prompt;  // computed at once, not timed; may be empty
  std::vector<int32_t> tokens;  // computed one by one
};

// One run.
struct TuneMeasurement {
  double ms_per_token = 0;
  double up_gib = 0;   // per token, for lookups of one token
  double cpu_gib = 0;  // per token
  double hit_rate = 0;
  double prefill_tokens_per_s = 0;  // 0: no prompts
  int64_t skip_tokens = 0;          // before those that count, prompts included
};

class TuneMeasure {
 public:
  // Loads the model with as large a cache as is allowed, and makes the passages: of the built-in
  // text, or generated from the prompts.
  // Errors: those of the flags, of loading and generating; kInvalidArgument, no cache is possible
  // (no device, no experts on it, too little memory), naming what to change; no prompt.
  static Result<std::unique_ptr<TuneMeasure>> start(const TuneCommandOptions& options);

  const engine::Engine& engine() const { return *engine_; }
  // The least cache that gives a group slots, and the most that is allowed.
  Bytes least_cache() const { return least_; }
  Bytes most_cache() const { return most_; }
  Bytes expert_bytes() const { return all_experts_; }
  bool all_fit() const { return all_fit_; }
  lanes::LaneRates rates() const;  // as calibrated last
  // What the runs compute: "text", "prompts FILE", or "random" for a model without a tokenizer.
  const std::string& tokens_name() const { return tokens_name_; }

  // Other threads for the runs to come, and rates() by them. Errors: as Engine::set_threads and
  // Engine::set_cache.
  Status set_threads(int n_threads);

  // run() with the experts elsewhere, now and in runs to come: loads the model once more. Threads,
  // passages and sizes stay. Errors: those of the engine and of run().
  Result<TuneMeasurement> run_in_load_mode(engine::LoadMode mode, Bytes cache,
                                           lanes::CpuShare share);
  // The same tokens without the device, with `n_threads` (0: one per core): loads the model once
  // more. No other run may follow. Errors: those of the engine; kCancelled.
  Result<TuneMeasurement> run_without_device(int n_threads);

  // Records the routing of the next run. Errors: as RoutingRecorder::begin.
  Status record_next(const std::string& trace_path);

  // Cache 0: the CPU computes all experts. Between two tokens Ctrl-C ends it.
  // Errors: those of Engine::set_cache and Engine::decode; kCancelled.
  Result<TuneMeasurement> run(Bytes cache, lanes::CpuShare share);

 private:
  explicit TuneMeasure(const TuneCommandOptions& options) : options_(options) {}

  Status load();
  // Creates the engine by the options as they are.
  Status create_engine();
  Status make_passages();
  // What the passages are made of, once.
  Status read_tokens(const engine::ModelDescription& model);
  Status generate();
  // Of steps of one token, so far.
  cache::CacheCounts counts() const;
  Result<TuneMeasurement> compute();

  const TuneCommandOptions& options_;
  engine::EngineOptions engine_options_;
  std::unique_ptr<engine::RoutingRecorder> recorder_;  // outlives the engine
  engine::RoutingObserver observer_;                   // the recorder's
  std::unique_ptr<engine::Engine> engine_;
  std::vector<TunePassage> passages_;
  std::optional<BenchTokens> tokens_;
  std::vector<std::string> prompts_;          // in place of those
  std::optional<text::Tokenizer> tokenizer_;  // of the prompts
  std::string tokens_name_;
  Bytes least_;
  Bytes most_;
  Bytes all_experts_;
  bool all_fit_ = false;
  bool is_recording_ = false;
};

// Prompts of a file: a JSON array of strings, or one a line, empty ones left out.
// Errors: as read_text; kInvalidArgument, there is none, or an element is no string.
Result<std::vector<std::string>> read_prompts(const std::string& path);

}  // namespace hotset::measure

#endif  // HOTSET_MEASURE_TUNE_MEASURE_H_
