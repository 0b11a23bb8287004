// A model that answers: weights, KV memory and executor behind one interface.
#ifndef HOTSET_ENGINE_RUN_ENGINE_H_
#define HOTSET_ENGINE_RUN_ENGINE_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/units.h"
#include "hotset/device/backend.h"
#include "hotset/device/device.h"
#include "hotset/device/profile.h"
#include "hotset/engine/experts/cached_experts.h"
#include "hotset/engine/kv/kv_cache.h"
#include "hotset/engine/kv/kv_state.h"
#include "hotset/engine/run/engine_options.h"
#include "hotset/engine/run/engine_plan.h"
#include "hotset/engine/run/executor.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/engine/weights/placement.h"

namespace hotset::engine {

// A sequence whose numbers have become NaN or infinite.
struct SequenceFault {
  SequenceId sequence = 0;
  std::string message;  // where it began, as far as that is known
};

// What one decode() did.
struct DecodeResult {
  std::span<const float> logits;  // [tokens that wanted them, n_vocab]; valid until the next call
  // Of decode_each() alone; valid until the next call. The rows of such a sequence mean nothing.
  std::span<const SequenceFault> faults = {};
};

// Thread-compatible: one thread at a time. Owns everything it needs.
class Engine {
 public:
  // Errors: as LoadedModel::load, KvCache::create, device::open_device,
  // CpuExecutor::create and DeviceExecutor::create; kInvalidArgument. Says in the log if the
  // cache gives way to repacked experts.
  static Result<std::unique_ptr<Engine>> create(ModelDescription description,
                                                const EngineOptions& options);

  const LoadedModel& model() const { return *model_; }
  const model::ModelSpec& spec() const { return model_->spec(); }
  // Positions of all sequences together, and the most that one may have.
  int32_t n_ctx() const { return kv_->options().n_ctx; }
  int32_t n_ctx_sequence() const {
    return options_.context.n_ctx_sequence > 0 ? std::min(options_.context.n_ctx_sequence, n_ctx())
                                               : n_ctx();
  }
  // Whether nobody asked for n_ctx().
  bool has_default_context() const { return is_default_context_; }
  int32_t n_sequences() const { return options_.context.n_sequences; }
  int32_t n_ubatch() const { return options_.context.n_ubatch; }
  int n_threads() const { return options_.n_threads; }
  bool flash_attention() const { return kv_->flash_attention(); }
  const KvCache& kv() const { return *kv_; }
  const Executor& executor() const { return *executor_; }
  // The device in use; null on the CPU alone.
  device::Device* device() const { return device_.get(); }
  const Placement& placement() const { return options_.load.placement; }
  // What was planned before anything was allocated. Empty without a device.
  const EnginePlan& plan() const { return plan_; }
  // Whether a cache was asked for and gave way to repacked experts; plan().why_no_cache says why.
  bool repacked_instead() const { return repacked_instead_; }
  // The expert cache; null where no layer has slots.
  const CachedExperts* cache() const { return cache_.get(); }
  // The groups of the device's MoE layers and the slots that were planned for them; empty without a
  // device, and with a cache of 0 bytes.
  std::span<const cache::CacheGroup> cache_groups() const { return plan_.groups; }

  // Another cache for the loaded model: its size (none: all that was planned for; 0: the CPU lane
  // computes every expert) and how it works. It starts empty; the KV memory stays. Costs an
  // executor and a calibration, not a load. Requires: the engine was created with a cache that has
  // slots, and `cache` has its rules.most_in_batch(), by which memory was planned; else
  // kInvalidArgument. Errors: kOutOfMemory, more than was planned for; as CachedExperts::create and
  // DeviceExecutor::create, after which decode() fails until another call succeeds.
  Status set_cache(std::optional<Bytes> bytes, const CacheOptions& cache);
  // Other kernel threads for the CPU, 1 to 512; what an emulated device computes with stays, only
  // times on its virtual clock follow. The lanes' rates are measured anew by the next set_cache().
  // Errors: kInvalidArgument.
  Status set_threads(int n_threads);
  // The most that set_cache() may ask for; 0: it may not be called.
  Bytes most_cache() const { return most_cache_; }

  // Computes the tokens in order, ubatch by ubatch, and remembers them in the KV memory. With
  // `keep_going` given, it is asked before each ubatch; false ends the call with kCancelled.
  // Errors: kInvalidArgument (no token, an id outside the vocabulary, a position that is taken or
  // leaves a gap, too many outputs), kOutOfMemory (context full), kCancelled, kDevice, kCorrupt
  // (the numbers of a sequence are none), kIo (weights that it needs cannot be read any more, the
  // file was cut). After an error the tokens of this call are forgotten (and more, where forget()
  // says so); after one of a step on a device the next call begins with an empty cache.
  Result<DecodeResult> decode(std::span<const BatchToken> batch,
                              const std::function<bool()>& keep_going = {});
  // The same for sequences of which each may fail by itself: one whose numbers have become NaN or
  // infinite is named in the result and forgotten, all of it, and the others get what they would
  // have got beside a sound one, to the bit. A sequence that is not in the batch may be named too:
  // one that was restored from a state with such numbers.
  Result<DecodeResult> decode_each(std::span<const BatchToken> batch,
                                   const std::function<bool()>& keep_going = {});

  // Forgets positions [begin, end) of a sequence, and all others as well where windowed layers no
  // longer have what its next position would see: next_position() tells.
  // Requires: 0 <= sequence < kMaxSequences.
  void forget(SequenceId sequence, int32_t begin, int32_t end);
  // Lets `to`, which is empty, continue from the positions [0, end) of `from` without computing
  // them again. It stays empty where windowed layers no longer have what position `end` would see.
  void share_prefix(SequenceId from, SequenceId to, int32_t end);
  // What the KV memory holds of a sequence, as bytes (kv_state.h), with `tokens` beside it.
  // Requires: 0 <= sequence < kMaxSequences. Errors: as save_state().
  Result<std::vector<uint8_t>> save_sequence(SequenceId sequence,
                                             std::span<const int32_t> tokens = {}) const;
  // What save_sequence() will give.
  Bytes saved_bytes(SequenceId sequence, size_t n_tokens) const {
    return state_bytes(*kv_, sequence, n_tokens);
  }
  // Lets a sequence go on from a saved state, whatever it had before. Returns the tokens that were
  // saved beside it. Requires: 0 <= sequence < kMaxSequences. Errors: as restore_state().
  Result<std::vector<int32_t>> restore_sequence(SequenceId sequence,
                                                std::span<const uint8_t> state);
  // The position that comes next in a sequence; 0 for an empty one.
  int32_t next_position(SequenceId sequence) const;

 private:
  explicit Engine(const EngineOptions& options)
      : options_(options), is_default_context_(options.context.n_ctx == 0) {}
  static Result<std::unique_ptr<Engine>> create_best(ModelDescription description,
                                                     const EngineOptions& options);
  static Result<std::unique_ptr<Engine>> create_as_asked(ModelDescription description,
                                                         const EngineOptions& options);
  Status open_device(ModelDescription& description);
  // Why repacked experts without a cache are to be preferred, with the numbers; empty if not.
  Result<std::string> why_repacked();
  // Chooses the context, where nobody did, for a model on the CPU alone.
  Status choose_host_context(const ModelDescription& description, bool flash_attention);
  Status create_kv(const model::ModelSpec& spec, bool flash_attention);
  // Runs the largest graphs once, so that drivers have taken what they take.
  Status warm_up();
  Status create_cache();
  // Gives up slots that are not in the device's own memory.
  Status shrink_overcommitted();
  Status replace_cache(std::optional<Bytes> bytes, const CacheOptions& cache);
  // Until nothing is queued. Errors: the device's failure.
  Status wait_for_device();
  // Cache and executor anew, as planned.
  Status renew_cache();
  // After a failed decode(), of which nobody knows which experts it had moved: as renew_cache().
  Status recover();
  ExecutorOptions executor_options() const;
  Status create_executor();
  Result<uint64_t> fingerprint() const;
  Status check_batch(std::span<const BatchToken> batch) const;
  Status run_ubatch(std::span<const BatchToken> ubatch);
  // Executor::run() with the cells in `cells_`, again if what it read of the model's file was lost
  // meanwhile. Errors: as that; kIo, it was lost the second time as well.
  Status run_tokens(std::span<const BatchToken> tokens);
  // `status`, unless the model's file was cut or could not be read since it was last asked for.
  Status unless_lost(Status status);
  // Looks whether the numbers of a ubatch that has run, whose logits begin at `first_logit`, are
  // numbers; if not, ends the sequences whose fault it is and computes the others again.
  // Errors: as Executor::run(), KvFaults::find().
  Status contain_faults(std::span<const BatchToken> ubatch, size_t first_logit);
  // Bit s: a token of sequence s has numbers that are none.
  uint64_t faulty_sequences(std::span<const BatchToken> ubatch, size_t first_logit) const;
  // Where numbers come from that are none from `layer` on; n_layer: in the logits only.
  std::string describe_fault(int64_t layer);
  bool has_failed(SequenceId sequence) const { return (failed_ >> sequence & 1) != 0; }
  // Takes back what a failed decode() has entered so far. Requires: check_batch() succeeded.
  void forget_batch(std::span<const BatchToken> batch);

  EngineOptions options_;
  bool is_default_context_;
  std::unique_ptr<device::Device> device_;  // outlives all that uses its memory
  std::optional<device::Backend> cpu_;
  std::unique_ptr<LoadedModel> model_;
  std::optional<KvCache> kv_;
  EnginePlan plan_;
  bool repacked_instead_ = false;
  std::optional<double> repacked_ratio_;  // of a token's experts, over the file's layout
  Bytes most_cache_;                      // that set_cache() may ask for
  std::unique_ptr<CachedExperts> cache_;
  std::unique_ptr<Executor> executor_;
  bool has_failed_ = false;  // the last step
  std::vector<float> logits_;
  std::vector<int32_t> cells_;
  std::vector<SequenceFault> faults_;  // of the present decode_each(), as the next one
  std::string lost_;                   // what was last said of a file that cannot be read
  uint64_t failed_ = 0;                // bit s: sequence s is in `faults_`
  std::map<int64_t, std::string> faults_by_layer_;  // what describe_fault() has found
  mutable std::optional<uint64_t> fingerprint_;     // of the model, once it was asked for
};

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_RUN_ENGINE_H_
