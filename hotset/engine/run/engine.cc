#include "hotset/engine/run/engine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/base/log.h"
#include "hotset/base/usable_cpus.h"
#include "hotset/engine/experts/overcommit.h"
#include "hotset/engine/experts/repacked_ratio.h"
#include "hotset/engine/run/cpu_executor.h"
#include "hotset/engine/run/default_context.h"
#include "hotset/engine/run/device_executor.h"
#include "hotset/lanes/cache_prediction.h"
#include "hotset/lanes/never_slower.h"

namespace hotset::engine {

// Hyper-threads of one core share its vector units: one kernel thread per core.
int default_threads() { return usable_cpus().n_cores; }

Status resolve(EngineOptions& options) {
  if (options.n_threads == 0) options.n_threads = default_threads();
  if (options.context.n_sequences < 1 || options.context.n_sequences > kMaxSequences) {
    return make_error(ErrorCode::kInvalidArgument, "sequences: found {}, expected 1 to {}",
                      options.context.n_sequences, kMaxSequences);
  }
  if (options.n_gpu_layers && *options.n_gpu_layers < 0) {
    return make_error(ErrorCode::kInvalidArgument, "device layers: found {}, expected at least 0",
                      *options.n_gpu_layers);
  }
  return {};
}

Result<ContextOptions> kv_context(const model::ModelSpec& spec, const ContextOptions& asked,
                                  bool flash_attention) {
  ContextOptions context = asked;
  context.flash_attention = flash_attention ? FlashAttention::kOn : FlashAttention::kOff;
  const int64_t n_cells_needed = spec.attention.window - 1 + std::min(asked.n_ubatch, asked.n_ctx);
  if (asked.n_window_cells > 0 && spec.attention.window > 0 &&
      asked.n_window_cells < std::min<int64_t>(n_cells_needed, asked.n_ctx)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "cells of windowed layers: found {}, expected at least {} for a window of {} "
                      "and ubatches of {}",
                      asked.n_window_cells, n_cells_needed, spec.attention.window, asked.n_ubatch);
  }
  if (asked.n_window_cells <= 0) {
    context.n_window_cells = window_cells(spec, asked.n_ctx, asked.n_ubatch, asked.n_sequences);
  }
  return context;
}

Result<std::unique_ptr<Engine>> Engine::create(ModelDescription description,
                                               const EngineOptions& options) {
  return catching_refusal("loading the model",
                          [&] { return create_best(std::move(description), options); });
}

Result<std::unique_ptr<Engine>> Engine::create_best(ModelDescription description,
                                                    const EngineOptions& options) {
  HOTSET_TRY(std::unique_ptr<Engine> engine, create_as_asked(std::move(description), options));
  HOTSET_TRY(const std::string why, engine->why_repacked());
  if (why.empty()) return engine;
  log_info("loading the experts once more, repacked: {}", why);
  engine->executor_.reset();
  engine->cache_.reset();
  ModelDescription again = std::move(*engine->model_).take_description();
  engine.reset();
  EngineOptions without_cache = options;
  without_cache.cache_bytes = Bytes{};
  HOTSET_TRY(engine, create_as_asked(std::move(again), without_cache));
  engine->plan_.why_no_cache = why;
  engine->repacked_instead_ = true;
  return engine;
}

Result<std::string> Engine::why_repacked() {
  // A cache that the CPU has left unused takes what the CPU takes.
  if (!repacked_ratio_ || cache_ == nullptr) return std::string();
  const auto k = static_cast<int32_t>(spec().router.n_expert_used);
  lanes::BaselineTimes times;
  for (int32_t group = 0; group < cache_->core().n_groups(); ++group) {
    if (!cache_->learner().has_model(group)) continue;
    const cache::GroupSpec& group_spec = cache_->core().spec(group);
    const auto n_layers = static_cast<double>(group_spec.layers.size());
    const double share = static_cast<double>(cache_->core().slots(group).n_slots()) /
                         static_cast<double>(group_spec.n_experts());
    const double plain_us = n_layers * cache_->learner().model(group).no_cache_us(k);
    HOTSET_TRY(
        const double cached_us,
        lanes::predicted_layer_us(cache_->costs(group), group_spec.bytes_per_expert(), k, share));
    times.plain_us += plain_us;
    times.cache_us += cache_->why_unused().empty() ? n_layers * cached_us : plain_us;
  }
  if (!(times.plain_us > 0)) return std::string();
  times.repacked_us = times.plain_us * *repacked_ratio_;
  HOTSET_TRY(const lanes::BaselineChoice choice, lanes::choose_baseline(times));
  if (choice.use_cache || choice.baseline != lanes::Baseline::kRepacked) return std::string();
  return lanes::describe(choice);
}

Result<std::unique_ptr<Engine>> Engine::create_as_asked(ModelDescription description,
                                                        const EngineOptions& options) {
  std::unique_ptr<Engine> engine(new Engine(options));
  EngineOptions& o = engine->options_;
  HOTSET_RETURN_IF_ERROR(resolve(o));
  HOTSET_TRY(engine->cpu_, device::Backend::cpu(o.n_threads));
  HOTSET_RETURN_IF_ERROR(engine->open_device(description));
  bool flash_attention = o.context.flash_attention != FlashAttention::kOff;
  if (engine->device_ != nullptr) flash_attention = engine->plan_.flash_attention;
  if (o.may_repack_instead && o.load.repack && o.load.upload_experts && !o.cache_bytes &&
      !o.cache.rules.cpu_share && !o.cache.rules.rates && !engine->device_->info().virtual_clock) {
    engine->repacked_ratio_ = o.repacked_ratio;
    if (!o.repacked_ratio) {
      HOTSET_TRY(engine->repacked_ratio_,
                 repacked_ratio(description, o.load.placement, *engine->cpu_));
    }
  }
  // What is not enough memory for the context should not take the time of loading to find out.
  HOTSET_RETURN_IF_ERROR(engine->create_kv(description.spec, flash_attention));
  HOTSET_TRY(engine->model_, LoadedModel::load(std::move(description), *engine->cpu_, o.load));
  HOTSET_RETURN_IF_ERROR(engine->warm_up());
  HOTSET_RETURN_IF_ERROR(engine->create_cache());
  Status status = engine->create_executor();
  if (!status && status.error().code == ErrorCode::kUnsupported && flash_attention &&
      o.context.flash_attention == FlashAttention::kAuto) {
    HOTSET_RETURN_IF_ERROR(engine->choose_host_context(engine->model_->description(), false));
    HOTSET_RETURN_IF_ERROR(engine->create_kv(engine->spec(), false));
    status = engine->create_executor();
  }
  HOTSET_RETURN_IF_ERROR(engine->unless_lost(std::move(status)));
  o.context.n_ubatch = std::min(o.context.n_ubatch, engine->kv_->cells().n_cells());
  return engine;
}

Status Engine::choose_host_context(const ModelDescription& description, bool flash_attention) {
  if (!is_default_context_ || device_ != nullptr) return {};
  HOTSET_TRY(const int32_t n_ctx, host_context(description, options_.context, {}, flash_attention));
  set_default_context(description.spec, n_ctx, options_.context);
  return {};
}

Status Engine::create_kv(const model::ModelSpec& spec, bool flash_attention) {
  kv_.reset();
  HOTSET_TRY(const ContextOptions asked, kv_context(spec, options_.context, flash_attention));
  HOTSET_TRY(kv_, KvCache::create(spec, asked, cpu_->buffer_type(), device_.get(),
                                  options_.load.placement));
  return {};
}

namespace {

// Pinned memory makes uploads fast, but what is pinned is lost to everybody else.
LoadMode choose_load_mode(const ModelDescription& description, const device::DeviceInfo& info) {
  Bytes experts;
  for (const model::TensorInfo& tensor : description.file.tensors()) {
    if (tensor.name.find("_exps.") != std::string::npos) experts += tensor.n_bytes;
  }
  const Bytes ram{sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE)};
  const bool allowed = info.pinned_memory && experts * 2 <= ram &&
                       experts + experts / 8 <= device::available_host_memory();
  return allowed ? LoadMode::kPinned : LoadMode::kMmap;
}

}  // namespace

Status Engine::open_device(ModelDescription& description) {
  LoadOptions& load = options_.load;
  load.placement = {};
  if (options_.device.empty() || options_.n_gpu_layers == 0) {
    if (load.load_mode == LoadMode::kAuto) load.load_mode = LoadMode::kMmap;
    return choose_host_context(description,
                               options_.context.flash_attention != FlashAttention::kOff);
  }
  // An emulated device computes on the CPU, at the same time as the CPU lane: they share the
  // threads, because kernel threads that wait for each other on too few cores take many times as
  // long.
  const int n_device_threads = std::max(1, options_.n_threads / 2);
  HOTSET_TRY(device_, device::open_device(options_.device, {.n_threads = n_device_threads,
                                                            .profile = options_.profile}));
  device_->set_lane_threads(options_.n_threads);
  if (device_->info().computes_on_cpu) {
    HOTSET_TRY(cpu_, device::Backend::cpu(std::max(1, options_.n_threads - n_device_threads)));
  }
  HOTSET_TRY(plan_, plan_engine(description, options_, *device_, *cpu_));
  HOTSET_RETURN_IF_ERROR(plan_.memory.fits());
  options_.context.n_ctx = plan_.n_ctx;
  options_.context.n_ctx_sequence = plan_.n_ctx_sequence;
  load.device = device_.get();
  load.placement = plan_.placement;
  load.upload_experts = std::ranges::any_of(
      plan_.groups, [](const cache::CacheGroup& group) { return group.n_slots > 0; });
  if (load.load_mode == LoadMode::kAuto) {
    load.load_mode =
        load.upload_experts ? choose_load_mode(description, device_->info()) : LoadMode::kMmap;
  }
  return {};
}

Status Engine::warm_up() {
  const bool sizes_by_memory = !options_.cache_bytes && options_.load.upload_experts;
  if (!sizes_by_memory || device_->info().exact_memory) return {};
  HOTSET_TRY(const auto executor,
             DeviceExecutor::create(*model_, *kv_, *device_, *cpu_, options_.load.placement,
                                    executor_options(), nullptr, nullptr));
  return executor->warm_up();
}

Status Engine::create_cache() {
  if (!options_.load.upload_experts) return {};
  if (!options_.cache_bytes && !device_->info().exact_memory) {
    HOTSET_RETURN_IF_ERROR(shrink_to_free_memory(model_->description(), *device_, options_, plan_));
  }
  most_cache_ = plan_.memory.devices.front().banks;
  HOTSET_TRY(cache_, CachedExperts::create(*model_, *device_, plan_.groups, options_.cache));
  return shrink_overcommitted();
}

Status Engine::shrink_overcommitted() {
  if (device_->info().exact_memory) return {};
  HOTSET_TRY(auto shrunk, without_slow_slots(*model_, *device_, cache_->banks(), plan_.groups));
  if (!shrunk) return {};
  const auto k = static_cast<int64_t>(spec().router.n_expert_used);
  for (cache::CacheGroup& group : shrunk->groups) {
    if (group.n_slots < k) group.n_slots = 0;
  }
  log_warning(
      "{}: copies to the end of the expert cache take many times as long as to its beginning, so "
      "the driver keeps a part of it in host memory; {} (a smaller --moe-cache-mib, or fewer other "
      "users of the device, avoid this)",
      device_->info().name, shrunk->found);
  plan_.groups = std::move(shrunk->groups);
  most_cache_ = Bytes{};
  for (const cache::CacheGroup& group : plan_.groups) {
    if (group.n_slots > 0) most_cache_ += cache::bank_bytes(group.spec, group.n_slots);
  }
  cache_.reset();
  if (std::ranges::none_of(plan_.groups,
                           [](const cache::CacheGroup& g) { return g.n_slots > 0; })) {
    plan_.why_no_cache = "the device has too little memory of its own left for a token's experts";
    return {};
  }
  HOTSET_TRY(cache_, CachedExperts::create(*model_, *device_, plan_.groups, options_.cache));
  return {};
}

Status Engine::set_cache(std::optional<Bytes> bytes, const CacheOptions& cache) {
  return catching_refusal("the expert cache", [&] { return replace_cache(bytes, cache); });
}

Status Engine::replace_cache(std::optional<Bytes> bytes, const CacheOptions& cache) {
  if (most_cache_ == Bytes{}) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the engine was created without an expert cache, expected one with slots");
  }
  if (cache.rules.most_in_batch() != options_.cache.rules.most_in_batch()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--moe-cache-batch: found {}, expected {}, by which memory was planned",
                      cache.rules.most_in_batch(), options_.cache.rules.most_in_batch());
  }
  // More than all experts is all of them.
  const bool fits_all = most_cache_ >= plan_.memory.devices.front().all_experts;
  if (bytes && *bytes > most_cache_ && !fits_all) {
    return make_error(ErrorCode::kOutOfMemory,
                      "the expert cache: found {}, expected at most {}, which was planned for",
                      to_string(*bytes), to_string(most_cache_));
  }
  HOTSET_RETURN_IF_ERROR(wait_for_device());
  executor_.reset();
  cache_.reset();
  options_.cache_bytes = bytes;
  options_.cache = cache;
  plan_.groups.clear();
  if (bytes != Bytes{}) {
    HOTSET_RETURN_IF_ERROR(
        size_cache(model_->description(), *device_, bytes.value_or(most_cache_), plan_));
  }
  return renew_cache();
}

Status Engine::renew_cache() {
  executor_.reset();
  cache_.reset();
  if (std::ranges::any_of(plan_.groups, [](const cache::CacheGroup& g) { return g.n_slots > 0; })) {
    HOTSET_TRY(cache_, CachedExperts::create(*model_, *device_, plan_.groups, options_.cache));
  }
  const Status created = unless_lost(create_executor());
  if (!created) {
    executor_.reset();
    return created;
  }
  has_failed_ = false;
  return {};
}

Status Engine::recover() {
  if (!has_failed_ || device_ == nullptr) return {};
  HOTSET_RETURN_IF_ERROR(wait_for_device());
  return renew_cache();
}

Status Engine::wait_for_device() {
  Status idle = device_->wait_idle();
  // Memory that a step was refused: that step has said so.
  if (!idle && idle.error().code == ErrorCode::kOutOfMemory) return {};
  return idle;
}

Status Engine::set_threads(int n_threads) {
  HOTSET_RETURN_IF_ERROR(device::Backend::check_threads(n_threads));
  if (device_ == nullptr || !device_->info().computes_on_cpu) {
    HOTSET_RETURN_IF_ERROR(cpu_->set_threads(n_threads));
  }
  if (device_ != nullptr) device_->set_lane_threads(n_threads);
  options_.n_threads = n_threads;
  return {};
}

ExecutorOptions Engine::executor_options() const {
  return {.context = options_.context,
          .observe_routing = options_.observe_routing,
          .rules = options_.cache.rules};
}

Status Engine::create_executor() {
  if (device_ == nullptr) {
    HOTSET_TRY(executor_,
               CpuExecutor::create(*model_, *kv_, *cpu_, executor_options(), spec().n_layer));
    return {};
  }
  HOTSET_TRY(executor_,
             DeviceExecutor::create(*model_, *kv_, *device_, *cpu_, options_.load.placement,
                                    executor_options(), options_.profile, cache_.get()));
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
    int32_t& expected = next[t.sequence];
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
  bool has_begun = false;
  Status status = catching_refusal("computing tokens", [&]() -> Status {
    HOTSET_RETURN_IF_ERROR(kv_->assign(ubatch, cells_));
    has_begun = true;
    const size_t first_logit = logits_.size();
    HOTSET_RETURN_IF_ERROR(run_tokens(ubatch));
    return contain_faults(ubatch, first_logit);
  });
  // It may have stopped between planning a lookup and moving its experts.
  has_failed_ = has_failed_ || (has_begun && !status);
  return status;
}

Result<DecodeResult> Engine::decode(std::span<const BatchToken> batch,
                                    const std::function<bool()>& keep_going) {
  HOTSET_TRY(const DecodeResult result, decode_each(batch, keep_going));
  if (result.faults.empty()) return result;
  forget_batch(batch);
  return make_error(ErrorCode::kCorrupt, "{}: {}", model_->file().name(),
                    result.faults.front().message);
}

Result<DecodeResult> Engine::decode_each(std::span<const BatchToken> batch,
                                         const std::function<bool()>& keep_going) {
  HOTSET_RETURN_IF_ERROR(check_batch(batch));
  HOTSET_RETURN_IF_ERROR(catching_refusal("the expert cache", [&] { return recover(); }));
  if (executor_ == nullptr) {
    return make_error(ErrorCode::kDevice, "the engine has no executor: set_cache() failed");
  }
  logits_.clear();
  faults_.clear();
  failed_ = 0;
  const auto n_ubatch = static_cast<size_t>(options_.context.n_ubatch);
  Status status;
  for (size_t begin = 0; begin < batch.size() && status;) {
    // Of a sequence that has failed nothing more is computed; its rows are there, and mean nothing.
    if (has_failed(batch[begin].sequence)) {
      if (batch[begin].want_logits) {
        logits_.resize(logits_.size() + static_cast<size_t>(spec().n_vocab));
      }
      ++begin;
      continue;
    }
    // A ubatch ends early where it would want more logits than were planned for.
    size_t n = 0;
    int32_t n_outputs = 0;
    while (n < n_ubatch && begin + n < batch.size() && !has_failed(batch[begin + n].sequence)) {
      n_outputs += batch[begin + n].want_logits ? 1 : 0;
      if (n_outputs > options_.context.n_outputs) break;
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
  return DecodeResult{.logits = logits_, .faults = faults_};
}

void Engine::forget_batch(std::span<const BatchToken> batch) {
  // Positions of a batch follow on what is known of their sequence, so its first one is enough; one
  // by one would be a pass over all cells for every token of a long prompt.
  std::array<bool, kMaxSequences> done{};
  for (const BatchToken& t : batch) {
    if (std::exchange(done[t.sequence], true)) continue;
    forget(t.sequence, t.position, std::numeric_limits<int32_t>::max());
  }
}

void Engine::forget(SequenceId sequence, int32_t begin, int32_t end) {
  kv_->forget(sequence, begin, end);
}

void Engine::share_prefix(SequenceId from, SequenceId to, int32_t end) {
  kv_->share(from, to, end);
}

Result<uint64_t> Engine::fingerprint() const {
  if (!fingerprint_) {
    const uint64_t found = model_fingerprint(model_->file());
    HOTSET_RETURN_IF_ERROR(model_->file().check());
    fingerprint_ = found;
  }
  return *fingerprint_;
}

Result<std::vector<uint8_t>> Engine::save_sequence(SequenceId sequence,
                                                   std::span<const int32_t> tokens) const {
  HOTSET_TRY(const uint64_t model, fingerprint());
  return catching_refusal("the state of a sequence",
                          [&] { return save_state(*kv_, model, sequence, tokens); });
}

Result<std::vector<int32_t>> Engine::restore_sequence(SequenceId sequence,
                                                      std::span<const uint8_t> state) {
  HOTSET_TRY(const uint64_t model, fingerprint());
  return catching_refusal("the state of a sequence",
                          [&] { return restore_state(*kv_, model, sequence, state); });
}

int32_t Engine::next_position(SequenceId sequence) const {
  return kv_->cells().last_position(sequence) + 1;
}

}  // namespace hotset::engine
