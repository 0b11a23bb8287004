// A model that answers: weights, KV memory and executor behind one interface.
#ifndef HOTSET_ENGINE_ENGINE_H_
#define HOTSET_ENGINE_ENGINE_H_

#include <cstdint>
#include <functional>
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
#include "hotset/engine/cache_options.h"
#include "hotset/engine/device_cache.h"
#include "hotset/engine/executor.h"
#include "hotset/engine/kv_cache.h"
#include "hotset/engine/loaded_model.h"
#include "hotset/engine/placement.h"

namespace hotset::engine {

enum class FlashAttention { kOff, kOn, kAuto };

struct EngineOptions {
  int n_threads = 0;       // kernel threads, 1 to 512; 0: one per core
  int32_t n_ctx = 0;       // positions; 0: the model's own context, at most kDefaultContext
  int32_t n_ubatch = 512;  // tokens computed together, at least 1
  int32_t n_outputs = 1;   // tokens of a ubatch whose logits may be wanted
  FlashAttention flash_attention = FlashAttention::kAuto;
  ggml_type key_type = GGML_TYPE_F16;
  ggml_type value_type = GGML_TYPE_F16;
  LoadOptions load = {};  // its device and placement are filled in by create()
  // "NAME" or "emu[:...]" as open_device() takes it; empty: the CPU alone.
  std::string device = {};
  int64_t n_gpu_layers = -1;           // as place_layers() takes it; with a device only
  device::Profile* profile = nullptr;  // must outlive the engine
  RoutingObserver observe_routing = {};
  // The expert cache of the device: its size, none for what the memory plan leaves, 0 for no cache.
  std::optional<Bytes> cache_bytes = Bytes{};
  // Device memory that stays free; none for what the memory plan thinks right.
  std::optional<Bytes> headroom = {};
  CacheOptions cache = {};
};

inline constexpr int32_t kDefaultContext = 4096;

// What one decode() did.
struct DecodeResult {
  std::span<const float> logits;  // [tokens that wanted them, n_vocab]; valid until the next call
};

// Thread-compatible: one thread at a time. Owns everything it needs.
class Engine {
 public:
  // Errors: as LoadedModel::load, KvCache::create, device::open_device,
  // CpuExecutor::create and DeviceExecutor::create; kInvalidArgument.
  static Result<std::unique_ptr<Engine>> create(ModelDescription description,
                                                const EngineOptions& options);

  const LoadedModel& model() const { return *model_; }
  const model::ModelSpec& spec() const { return model_->spec(); }
  int32_t n_ctx() const { return kv_->options().n_ctx; }
  int32_t n_ubatch() const { return options_.n_ubatch; }
  int n_threads() const { return options_.n_threads; }
  bool flash_attention() const { return kv_->options().flash_attention; }
  const KvCache& kv() const { return *kv_; }
  const Executor& executor() const { return *executor_; }
  // The device in use; null on the CPU alone.
  device::Device* device() const { return device_.get(); }
  const Placement& placement() const { return options_.load.placement; }
  // The expert cache; null where no layer has slots.
  const DeviceCache* cache() const { return cache_.get(); }
  // The groups of the device's MoE layers and the slots that were planned for them; empty without a
  // device, and with a cache of 0 bytes.
  std::span<const CacheGroup> cache_groups() const { return cache_groups_; }

  // Computes the tokens in order, ubatch by ubatch, and remembers them in the KV memory. With
  // `keep_going` given, it is asked before each ubatch; false ends the call with kCancelled.
  // Errors: kInvalidArgument (no token, an id outside the vocabulary, a position that is taken or
  // leaves a gap, too many outputs), kOutOfMemory (context full), kCancelled, kDevice. After an
  // error the tokens of this call are forgotten.
  Result<DecodeResult> decode(std::span<const BatchToken> batch,
                              const std::function<bool()>& keep_going = {});

  // Forgets positions [begin, end) of a sequence. Requires: 0 <= sequence < kMaxSequences.
  void forget(SequenceId sequence, int32_t begin, int32_t end);
  // Lets `to` continue from the positions [0, end) of `from` without computing them again.
  void share_prefix(SequenceId from, SequenceId to, int32_t end);
  // The position that comes next in a sequence; 0 for an empty one.
  int32_t next_position(SequenceId sequence) const;

 private:
  explicit Engine(const EngineOptions& options) : options_(options) {}
  Status open_device(const model::ModelSpec& spec);
  Status plan_cache(const ModelDescription& description);
  Status create_cache();
  Status create_executor();
  Status check_batch(std::span<const BatchToken> batch) const;
  Status run_ubatch(std::span<const BatchToken> ubatch);
  // Takes back what a failed decode() has entered so far. Requires: check_batch() succeeded.
  void forget_batch(std::span<const BatchToken> batch);

  EngineOptions options_;
  std::unique_ptr<device::Device> device_;  // outlives all that uses its memory
  std::optional<device::Backend> cpu_;
  std::unique_ptr<LoadedModel> model_;
  std::optional<KvCache> kv_;
  std::vector<CacheGroup> cache_groups_;
  std::unique_ptr<DeviceCache> cache_;
  std::unique_ptr<Executor> executor_;
  std::vector<float> logits_;
  std::vector<int32_t> cells_;
};

// Kernel threads when the user gave none: one per physical core that this process may use.
int default_threads();

}  // namespace hotset::engine

#endif  // HOTSET_ENGINE_ENGINE_H_
