// Flags that every command which computes with a model takes, as plain values, and what they mean
// to the engine.
// Thread-compatible: plain values.
#ifndef HOTSET_CLI_MODEL_OPTIONS_H_
#define HOTSET_CLI_MODEL_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/cli/cache_flags.h"
#include "hotset/cli/cache_report.h"
#include "hotset/cli/interrupt.h"
#include "hotset/engine/engine.h"
#include "hotset/engine/routing_recorder.h"

namespace hotset::cli {

struct ModelOptions {
  std::string model;
  int n_threads = 0;                     // 0: one per core
  int32_t n_ctx = 0;                     // positions of all sequences; 0: by training and memory
  int32_t n_ubatch = 512;                // tokens of a prompt computed together
  std::string flash_attention = "auto";  // on, off, auto
  std::string key_type = "f16";          // f32, f16, q8_0
  std::string value_type = "f16";
  std::string load_mode = "mmap";     // mmap, pinned, auto
  std::string repack = "auto";        // auto, off
  std::string device = "auto";        // a device's name, emu[:...], auto (the first GPU) or none
  std::string n_gpu_layers = "auto";  // auto (all) or a number
  std::string profile_out = {};       // Chrome trace file to write; empty: none
  CacheFlags cache = {};
};

// Errors: kInvalidArgument, naming the flag, the value and what was expected.
Result<engine::EngineOptions> engine_options(const ModelOptions& options);

// The device that a --device value means; empty: the CPU alone. Errors: kDevice.
Result<std::string> choose_device(const std::string& value);

// "1,2,3" to ids. Errors: kInvalidArgument, naming `flag` and the part that is no number.
Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list);

// That ids are tokens of a model. Errors: kInvalidArgument, naming `flag`, the id and the range.
Status check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t n_vocab);

// The bytes of a file, or of standard input for "-". Errors: kNotFound, kIo; kInvalidArgument for
// more than 1 GiB.
Result<std::string> read_text(const std::string& path);

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
  std::unique_ptr<CacheReport> report_;  // the last one
};

}  // namespace hotset::cli

#endif  // HOTSET_CLI_MODEL_OPTIONS_H_
