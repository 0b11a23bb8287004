#include "hotset/engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <set>
#include <utility>

#include "hotset/engine/cpu_executor.h"
#include "hotset/engine/device_executor.h"

namespace hotset::engine {

int default_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return 4;
  // Hyper-threads of one core share its vector units: one kernel thread per core.
  std::set<std::string> cores;
  int n_logical = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    ++n_logical;
    std::ifstream in(fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings", cpu));
    std::string siblings;
    if (in >> siblings) cores.insert(siblings);
  }
  return std::max(1, cores.empty() ? n_logical : static_cast<int>(cores.size()));
}

Result<std::unique_ptr<Engine>> Engine::create(ModelDescription description,
                                               const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(options));
  EngineOptions& o = engine->options_;
  if (o.n_threads == 0) o.n_threads = default_threads();
  if (o.n_ctx == 0) {
    o.n_ctx =
        static_cast<int32_t>(std::min<int64_t>(description.spec.n_ctx_train, kDefaultContext));
  }
  HOTSET_TRY(engine->cpu_, device::Backend::cpu(o.n_threads));
  HOTSET_RETURN_IF_ERROR(engine->open_device(description.spec));
  HOTSET_RETURN_IF_ERROR(engine->plan_cache(description));
  const auto create_kv = [&](const model::ModelSpec& spec, bool flash_attention) -> Status {
    const KvCacheOptions kv_options{.n_ctx = o.n_ctx,
                                    .key_type = o.key_type,
                                    .value_type = o.value_type,
                                    .flash_attention = flash_attention};
    HOTSET_TRY(engine->kv_, KvCache::create(spec, kv_options, engine->cpu_->buffer_type(),
                                            engine->device_.get(), o.load.placement));
    return {};
  };
  HOTSET_RETURN_IF_ERROR(create_kv(description.spec, o.flash_attention != FlashAttention::kOff));
  HOTSET_TRY(engine->model_, LoadedModel::load(std::move(description), *engine->cpu_, o.load));
  HOTSET_RETURN_IF_ERROR(engine->create_cache());
  Status status = engine->create_executor();
  if (!status && status.error().code == ErrorCode::kUnsupported &&
      o.flash_attention == FlashAttention::kAuto) {
    engine->kv_.reset();
    HOTSET_RETURN_IF_ERROR(create_kv(engine->spec(), false));
    status = engine->create_executor();
  }
  if (!status) return std::unexpected(std::move(status).error());
  o.n_ubatch = std::min(o.n_ubatch, engine->kv_->cells().n_cells());
  return engine;
}

Status Engine::open_device(const model::ModelSpec& spec) {
  LoadOptions& load = options_.load;
  load.placement = {};
  if (options_.device.empty() || options_.n_gpu_layers == 0) return {};
  HOTSET_TRY(device_, device::open_device(options_.device, {.n_threads = options_.n_threads,
                                                            .profile = options_.profile}));
  load.device = device_.get();
  load.placement = place_layers(spec.n_layer, options_.n_gpu_layers);
  return {};
}

Status Engine::plan_cache(const ModelDescription& description) {
  if (device_ == nullptr || options_.cache_bytes == Bytes{}) return {};
  HOTSET_TRY(cache_groups_,
             DeviceCache::form_groups(description, *device_, options_.load.placement,
                                      options_.cache_bytes.value_or(device_->free_memory())));
  options_.load.upload_experts =
      std::ranges::any_of(cache_groups_, [](const CacheGroup& group) { return group.n_slots > 0; });
  return {};
}

Status Engine::create_cache() {
  if (!options_.load.upload_experts) return {};
  HOTSET_TRY(cache_, DeviceCache::create(*model_, *device_, cache_groups_, options_.cache));
  return {};
}

Status Engine::create_executor() {
  const ExecutorOptions executor_options{.n_ubatch = options_.n_ubatch,
                                         .n_outputs = options_.n_outputs,
                                         .observe_routing = options_.observe_routing,
                                         .max_decode_tokens = options_.cache.max_decode_tokens};
  if (device_ == nullptr) {
    HOTSET_TRY(executor_,
               CpuExecutor::create(*model_, *kv_, *cpu_, executor_options, spec().n_layer));
    return {};
  }
  HOTSET_TRY(executor_,
             DeviceExecutor::create(*model_, *kv_, *device_, *cpu_, options_.load.placement,
                                    executor_options, options_.profile, cache_.get()));
  return {};
}

Status Engine::check_batch(std::span<const BatchToken> batch) const {
  if (batch.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "batch: found no token, expected at least 1");
  }
  std::array<int32_t, kMaxSequences> next;
  next.fill(-1);
  for (size_t i = 0; i < batch.size(); ++i) {
    const BatchToken& t = batch[i];
    if (t.token < 0 || t.token >= spec().n_vocab) {
      return make_error(ErrorCode::kInvalidArgument,
                        "token {} of the batch: found id {}, expected 0 to {}", i, t.token,
                        spec().n_vocab - 1);
    }
    if (t.sequence < 0 || t.sequence >= kMaxSequences) {
      return make_error(ErrorCode::kInvalidArgument,
                        "token {} of the batch: found sequence {}, expected 0 to {}", i, t.sequence,
                        kMaxSequences - 1);
    }
    int32_t& expected = next[static_cast<size_t>(t.sequence)];
    if (expected < 0) expected = next_position(t.sequence);
    if (t.position != expected) {
      return make_error(ErrorCode::kInvalidArgument,
                        "token {} of the batch: found position {} of sequence {}, expected {}", i,
                        t.position, t.sequence, expected);
    }
    ++expected;
  }
  const int32_t n_free = std::min(kv_->cells().n_cells(), n_ctx()) - kv_->cells().n_used();
  if (std::cmp_greater(batch.size(), n_free)) {
    return make_error(ErrorCode::kOutOfMemory,
                      "the context is full: {} of {} positions are used, {} more were needed; "
                      "raise it with -c",
                      kv_->cells().n_used(), n_ctx(), batch.size());
  }
  return {};
}

Status Engine::run_ubatch(std::span<const BatchToken> ubatch) {
  cells_.resize(ubatch.size());
  HOTSET_RETURN_IF_ERROR(kv_->cells().find_free(cells_));
  for (size_t i = 0; i < ubatch.size(); ++i) {
    kv_->cells().occupy(cells_[i], ubatch[i].position, ubatch[i].sequence);
  }
  return executor_->run(ubatch, cells_, logits_);
}

Result<DecodeResult> Engine::decode(std::span<const BatchToken> batch,
                                    const std::function<bool()>& keep_going) {
  HOTSET_RETURN_IF_ERROR(check_batch(batch));
  logits_.clear();
  const auto n_ubatch = static_cast<size_t>(options_.n_ubatch);
  Status status;
  for (size_t begin = 0; begin < batch.size() && status;) {
    // A ubatch ends early where it would want more logits than were planned for.
    size_t n = 0;
    int32_t n_outputs = 0;
    while (n < n_ubatch && begin + n < batch.size()) {
      n_outputs += batch[begin + n].want_logits ? 1 : 0;
      if (n_outputs > options_.n_outputs) break;
      ++n;
    }
    status = keep_going && !keep_going()
                 ? make_error(ErrorCode::kCancelled, "the computation was cancelled")
                 : run_ubatch(batch.subspan(begin, n));
    begin += n;
  }
  if (!status) {
    forget_batch(batch);
    return std::unexpected(std::move(status).error());
  }
  return DecodeResult{.logits = logits_};
}

void Engine::forget_batch(std::span<const BatchToken> batch) {
  // Positions of a batch follow on what is known of their sequence, so its first one is enough; one
  // by one would be a pass over all cells for every token of a long prompt.
  std::array<bool, kMaxSequences> done{};
  for (const BatchToken& t : batch) {
    if (std::exchange(done[static_cast<size_t>(t.sequence)], true)) continue;
    forget(t.sequence, t.position, std::numeric_limits<int32_t>::max());
  }
}

void Engine::forget(SequenceId sequence, int32_t begin, int32_t end) {
  kv_->cells().remove(sequence, begin, end);
}

void Engine::share_prefix(SequenceId from, SequenceId to, int32_t end) {
  kv_->cells().copy(from, to, 0, end);
}

int32_t Engine::next_position(SequenceId sequence) const {
  return kv_->cells().last_position(sequence) + 1;
}

}  // namespace hotset::engine
