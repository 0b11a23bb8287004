#include "hotset/measure/bench_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "hotset/base/clock.h"
#include "hotset/base/interrupt.h"
#include "hotset/base/log.h"
#include "hotset/engine/experts/expert_groups.h"
#include "hotset/engine/run/engine_settings.h"
#include "hotset/lanes/lane_costs.h"
#include "hotset/measure/bench_settings.h"
#include "hotset/report/cache_report.h"
#include "hotset/report/cache_verdict.h"

namespace hotset::measure {
namespace {

Status check_lists(const BenchOptions& o) {
  HOTSET_RETURN_IF_ERROR(check_settings(bench_settings(), o));
  for (const Setting<BenchOptions>& one : bench_settings()) {
    if (!one.is_list() || !one.text(o).empty()) continue;
    return make_error(ErrorCode::kInvalidArgument, "--{}: found no value, expected some",
                      one.info.name);
  }
  return {};
}

// What is measured with one cache.
std::vector<BenchCase> tests_of(const BenchOptions& o, const BenchCase& base) {
  std::vector<BenchCase> tests;
  const auto add = [&](int32_t n_prompt, int32_t n_gen) {
    for (const int32_t depth : o.depths) {
      for (const int32_t n_parallel : o.n_parallels) {
        BenchCase test = base;
        test.n_prompt = n_prompt;
        test.n_gen = n_gen;
        test.depth = depth;
        test.n_parallel = n_parallel;
        tests.push_back(std::move(test));
      }
    }
  };
  for (const int32_t n : o.n_prompts) {
    if (n > 0) add(n, 0);
  }
  for (const int32_t n : o.n_gens) {
    if (n > 0) add(0, n);
  }
  return tests;
}

// The flags of one case.
Result<engine::EngineOptions> options_of(const BenchOptions& options, const BenchCase& what) {
  ModelOptions model = options.model;
  model.engine.n_threads = what.n_threads;
  model.engine.context.n_ubatch = what.n_ubatch;
  const auto& settings = engine::engine_settings();
  HOTSET_RETURN_IF_ERROR(set_setting(settings, "moe-cache-mib", what.cache_mib, model.engine));
  HOTSET_RETURN_IF_ERROR(
      set_setting(settings, "moe-cache-cpu-share", what.cpu_share, model.engine));
  HOTSET_TRY(engine::EngineOptions result, engine_options(model));
  result.device = what.device;
  return result;
}

class Bench {
 public:
  Bench(const BenchOptions& options, std::vector<BenchCase> cases)
      : options_(options), cases_(std::move(cases)) {}

  Result<BenchResult> run(const BenchProgress& progress);

 private:
  Status prepare(const BenchCase& what);
  Status load(const BenchCase& what, engine::EngineOptions engine_options);
  Status describe_context();
  Result<int32_t> context_size() const;
  Result<BenchRow> measure(const BenchCase& what);
  // Computes `n` more tokens of each sequence, in one call (prefill) or one by one, with logits for
  // the last of each call.
  Status compute(std::vector<std::vector<int32_t>>& left, int32_t n, bool one_by_one);
  Result<double> repetition(const BenchCase& what, cache::CacheCounts& moved);
  // Of the engine's cache so far; all 0 without one.
  cache::CacheCounts counts() const {
    return engine_->cache() == nullptr ? cache::CacheCounts{}
                                       : engine_->cache()->core().total_counts();
  }
  BenchBytes bytes_of(const BenchCase& what, const cache::CacheCounts& moved) const;
  measure::MachineRates rates();
  void fill_bounds(std::vector<BenchRow>& rows);

  const BenchOptions& options_;
  std::vector<BenchCase> cases_;
  std::optional<engine::ModelDescription> description_;  // until the first load
  std::unique_ptr<engine::Engine> engine_;
  std::optional<BenchCase> loaded_;  // what the engine is set to
  std::optional<BenchTokens> tokens_;
  BenchContext context_;
  std::map<int, double> memory_gb_per_s_;  // by threads
};

// Whether the same loaded model serves both: only the cache differs, and both have one.
bool shares_load(const BenchCase& a, const BenchCase& b) {
  return a.device == b.device && a.n_threads == b.n_threads && a.n_ubatch == b.n_ubatch &&
         (a.cache_mib == "0") == (b.cache_mib == "0");
}

Result<int32_t> Bench::context_size() const {
  int64_t needed = 0;
  for (const BenchCase& what : cases_) {
    needed = std::max(needed, int64_t{what.n_parallel} *
                                  (int64_t{what.depth} + std::max(what.n_prompt, what.n_gen)));
  }
  if (needed > std::numeric_limits<int32_t>::max()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "found {} tokens in the context at once, expected at most {}", needed,
                      std::numeric_limits<int32_t>::max());
  }
  if (options_.model.engine.context.n_ctx == 0) return static_cast<int32_t>(needed);
  if (options_.model.engine.context.n_ctx < needed) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--ctx-size: found {}, expected at least {}, which the tests need",
                      options_.model.engine.context.n_ctx, needed);
  }
  return options_.model.engine.context.n_ctx;
}

Status Bench::load(const BenchCase& what, engine::EngineOptions engine_options) {
  HOTSET_TRY(engine_options.context.n_ctx, context_size());
  engine_options.context.n_outputs = std::ranges::max(options_.n_parallels);
  // The largest cache of those that will share this load.
  std::optional<Bytes> most = engine_options.cache_bytes;
  for (const BenchCase& other : cases_) {
    if (!most || !shares_load(other, what)) continue;
    HOTSET_TRY(const engine::EngineOptions o, options_of(options_, other));
    most = o.cache_bytes ? std::optional(std::max(*most, *o.cache_bytes)) : std::nullopt;
  }
  engine_options.cache_bytes = most;
  loaded_.reset();
  if (engine_) {
    // One model at a time: two may not fit.
    engine_.reset();
    description_.reset();
  }
  if (!description_) {
    HOTSET_TRY(description_, engine::describe_model(options_.model.model));
  }
  const bool is_first = !tokens_;
  if (is_first) {
    HOTSET_TRY(tokens_, BenchTokens::create(*description_, options_.tokens));
  }
  HOTSET_TRY(engine_,
             engine::Engine::create(*std::exchange(description_, std::nullopt), engine_options));
  loaded_ = what;
  return is_first ? describe_context() : Status();
}

Status Bench::describe_context() {
  const model::ModelSpec& spec = engine_->spec();
  context_ = {.build = build_info(),
              .ggml = device::ggml_build(),
              .machine = machine_info(),
              .model = std::filesystem::path(options_.model.model).filename().string(),
              .architecture = spec.architecture,
              .n_layer = spec.n_layer,
              .n_expert = spec.router.n_expert,
              .n_expert_used = spec.router.n_expert_used,
              .tokens = tokens_->name(),
              .n_repetitions = options_.n_repetitions};
  for (const model::TensorInfo& tensor : engine_->model().file().tensors()) {
    context_.model_bytes += tensor.n_bytes;
  }
  HOTSET_TRY(const auto layers, engine::moe_layers(engine_->model().description()));
  for (const cache::MoeLayer& layer : layers) {
    for (const cache::ExpertTensor& tensor : layer.tensors) {
      context_.expert_bytes += tensor.expert_bytes * layer.n_expert;
    }
  }
  for (const char* name :
       {"flash-attn", "cache-type-k", "cache-type-v", "load-mode", "repack", "n-gpu-layers",
        "moe-cache-batch", "moe-cache-policy", "moe-cache-fills", "moe-cache-rates"}) {
    const auto& setting = find_setting(engine::engine_settings(), name);
    context_.flags += fmt::format("{}{} {}", context_.flags.empty() ? "" : ", ", name,
                                  setting.text(options_.model.engine));
  }
  return {};
}

Status Bench::prepare(const BenchCase& what) {
  HOTSET_TRY(const engine::EngineOptions wanted, options_of(options_, what));
  const bool new_load = !loaded_ || !shares_load(*loaded_, what);
  if (new_load) HOTSET_RETURN_IF_ERROR(load(what, wanted));
  // One cache for everything it measures, as a user has it.
  const bool same_cache =
      !new_load && loaded_->cache_mib == what.cache_mib && loaded_->cpu_share == what.cpu_share;
  loaded_ = what;
  if (same_cache || engine_->most_cache() == Bytes{}) return {};
  const Status set = engine_->set_cache(wanted.cache_bytes, wanted.cache);
  if (!set) loaded_.reset();
  return set;
}

Status Bench::compute(std::vector<std::vector<int32_t>>& left, int32_t n, bool one_by_one) {
  const int32_t n_calls = one_by_one ? n : 1;
  const int32_t n_each = one_by_one ? 1 : n;
  std::vector<engine::BatchToken> batch;
  for (int32_t call = 0; call < n_calls && n > 0; ++call) {
    batch.clear();
    for (size_t s = 0; s < left.size(); ++s) {
      const auto sequence = static_cast<engine::SequenceId>(s);
      const int32_t first = engine_->next_position(sequence);
      for (int32_t i = 0; i < n_each; ++i) {
        batch.push_back({.token = left[s][first + i],
                         .position = first + i,
                         .sequence = sequence,
                         .want_logits = i + 1 == n_each});
      }
    }
    HOTSET_TRY([[maybe_unused]] const auto result,
               engine_->decode(batch, [] { return !InterruptScope::interrupted(); }));
  }
  return {};
}

Result<double> Bench::repetition(const BenchCase& what, cache::CacheCounts& moved) {
  const int32_t n = std::max(what.n_prompt, what.n_gen);
  std::vector<std::vector<int32_t>> sequences;
  for (int32_t s = 0; s < engine::kMaxSequences; ++s) {
    engine_->forget(s, 0, std::numeric_limits<int32_t>::max());
  }
  for (int32_t s = 0; s < what.n_parallel; ++s) sequences.push_back(tokens_->take(what.depth + n));
  HOTSET_RETURN_IF_ERROR(compute(sequences, what.depth, false));
  const cache::CacheCounts before = counts();
  const double start_us = now_us(*engine_);
  HOTSET_RETURN_IF_ERROR(compute(sequences, n, what.n_gen > 0));
  const double us = now_us(*engine_) - start_us;
  cache::CacheCounts done = counts();
  done -= before;
  moved += done;
  return us;
}

BenchBytes Bench::bytes_of(const BenchCase& what, const cache::CacheCounts& moved) const {
  const int32_t n = std::max(what.n_prompt, what.n_gen);
  const double n_tokens = static_cast<double>(n) * what.n_parallel * options_.n_repetitions;
  // Tokens that read the dense weights together.
  const double n_step = what.n_gen > 0 ? what.n_parallel
                                       : std::min<double>(engine_->n_ubatch(),
                                                          static_cast<double>(n) * what.n_parallel);
  const bool one_token = what.n_gen > 0 && what.n_parallel == 1;
  BenchBytes bytes;
  const auto per_token = [&](Bytes moved_bytes) {
    return static_cast<double>(moved_bytes.count) / n_tokens;
  };
  const Bytes demanded = moved.uploaded_bytes + moved.streamed_bytes;
  bytes.reads.hits = per_token(moved.hit_bytes);
  bytes.reads.misses = per_token(demanded + moved.cpu_bytes);
  bytes.linked = per_token(demanded + moved.filled_bytes);
  bytes.cpu = per_token(moved.cpu_bytes);
  const auto& description = engine_->model().description();
  const auto layers = engine::moe_layers(description);
  if (!layers) return bytes;
  bytes.all_known = true;
  const engine::CachedExperts* cache = engine_->cache();
  const bool uses_cache = cache != nullptr && cache->why_unused().empty();
  double experts = 0;  // of the layers that no lookup counts
  for (const cache::MoeLayer& layer : *layers) {
    if (uses_cache && cache->serves(layer.layer)) continue;
    Bytes expert;
    for (const cache::ExpertTensor& tensor : layer.tensors) expert += tensor.expert_bytes;
    const double all =
        static_cast<double>(expert.count) * static_cast<double>(context_.n_expert_used);
    // How many different experts several tokens select is not counted there.
    if (!one_token) bytes.all_known = false;
    const bool resident = uses_cache && cache->banks().layer(layer.layer) != nullptr;
    (resident ? bytes.reads.hits : bytes.reads.misses) += one_token ? all : 0;
    if (!resident && one_token) experts += all;
  }
  bytes.cpu += experts;
  bytes.cpu_known = bytes.all_known || uses_cache;
  if (engine_->device() != nullptr) {
    bytes.reads.dense = static_cast<double>(engine_->model().report().on_device.count) / n_step;
    return bytes;
  }
  // Without a device everything comes from host memory, but of the embedding only a row.
  double dense = static_cast<double>((context_.model_bytes - context_.expert_bytes).count);
  for (const model::TensorInfo& tensor : engine_->model().file().tensors()) {
    const bool is_tied = engine_->model().file().find_tensor("output.weight") == nullptr;
    if (tensor.name == "token_embd.weight" && !is_tied) {
      dense -= static_cast<double>(tensor.n_bytes.count);
    }
  }
  bytes.reads.misses += dense / n_step;
  bytes.cpu += dense / n_step;
  return bytes;
}

measure::MachineRates Bench::rates() {
  const bool is_virtual = engine_->device() != nullptr && engine_->device()->info().virtual_clock;
  measure::MachineRates rates = lane_rates(*engine_);
  if (is_virtual) return rates;
  const int n_threads = engine_->n_threads();
  if (!memory_gb_per_s_.contains(n_threads)) {
    memory_gb_per_s_[n_threads] = measure_memory_gb_per_s(n_threads);
  }
  rates.memory = memory_gb_per_s_[n_threads];
  // The CPU alone reads with all that memory gives.
  if (engine_->device() == nullptr) rates.cpu = rates.memory / lanes::kConcurrentShare;
  return rates;
}

Result<BenchRow> Bench::measure(const BenchCase& what) {
  HOTSET_RETURN_IF_ERROR(prepare(what));
  const auto asked = options_of(options_, what);
  BenchRow row{.what = what, .n_threads = engine_->n_threads()};
  const report::CacheState state = report::cache_state(*engine_, asked->cache_bytes);
  row.device_name = engine_->device() == nullptr ? "none" : engine_->device()->info().name;
  row.virtual_clock = engine_->device() != nullptr && engine_->device()->info().virtual_clock;
  row.flash_attention = engine_->flash_attention();
  row.verdict = report::cache_verdict(state);
  for (const cache::CacheGroup& group : engine_->cache_groups()) {
    row.n_slots += group.n_slots;
    row.n_experts += group.spec.n_experts();
  }
  cache::CacheCounts moved;
  tokens_->rewind();
  if (options_.warm_up) {
    HOTSET_TRY([[maybe_unused]] const double us, repetition(what, moved));
    moved = {};
  }
  const double n_tokens =
      static_cast<double>(std::max(what.n_prompt, what.n_gen)) * what.n_parallel;
  for (int32_t i = 0; i < options_.n_repetitions; ++i) {
    HOTSET_TRY(const double us, repetition(what, moved));
    row.tokens_per_s.push_back(us > 0 ? n_tokens * 1e6 / us : 0);
  }
  if (moved.selected > 0) row.hit_rate = moved.hit_rate();
  const auto groups = engine_->cache_groups();
  const bool all_resident =
      !groups.empty() && std::ranges::all_of(groups, [](const cache::CacheGroup& group) {
        return group.n_slots == group.spec.n_experts();
      });
  if (all_resident && engine_->cache() != nullptr) row.hit_rate = 1;
  row.bytes = bytes_of(what, moved);
  row.rates = rates();
  return row;
}

// Where a row knows no rates, because nothing was calibrated for it, those of another row of the
// same device and threads.
void Bench::fill_bounds(std::vector<BenchRow>& rows) {
  for (BenchRow& row : rows) {
    if (row.rates.device == 0) {
      const auto other = std::ranges::find_if(rows, [&](const BenchRow& r) {
        return r.rates.device > 0 && r.what.device == row.what.device &&
               r.n_threads == row.n_threads;
      });
      if (other != rows.end()) row.rates = other->rates;
    }
    if (!row.bytes.all_known) continue;
    const double us = measure::bound_us_per_token(row.bytes.reads, row.rates);
    if (us > 0) row.bound_tokens_per_s = 1e6 / us;
  }
}

Result<BenchResult> Bench::run(const BenchProgress& progress) {
  BenchResult result;
  std::optional<Error> last_error;
  for (size_t i = 0; i < cases_.size() && !result.interrupted; ++i) {
    if (progress) progress(i, cases_.size(), cases_[i]);
    auto row = measure(cases_[i]);
    if (row) {
      result.rows.push_back(*std::move(row));
    } else if (row.error().code == ErrorCode::kCancelled) {
      result.interrupted = true;
    } else if (row.error().code == ErrorCode::kOutOfMemory) {
      log_warning("left out: {} with --moe-cache-mib {}: {}", test_name(cases_[i]),
                  cases_[i].cache_mib, row.error().message);
      last_error = std::move(row).error();
    } else {
      return std::unexpected(std::move(row).error());
    }
  }
  if (result.rows.empty() && last_error) return std::unexpected(*std::move(last_error));
  fill_bounds(result.rows);
  if (tokens_) context_.text_repeats = tokens_->was_repeated();
  result.context = context_;
  return result;
}

}  // namespace

double BenchRow::mean() const {
  if (tokens_per_s.empty()) return 0;
  return std::accumulate(tokens_per_s.begin(), tokens_per_s.end(), 0.0) /
         static_cast<double>(tokens_per_s.size());
}

double BenchRow::deviation() const {
  if (tokens_per_s.size() < 2) return 0;
  double sum = 0;
  for (const double x : tokens_per_s) sum += (x - mean()) * (x - mean());
  return std::sqrt(sum / static_cast<double>(tokens_per_s.size() - 1));
}

std::vector<std::string> join_device_specs(std::vector<std::string> parts) {
  std::vector<std::string> names;
  for (std::string& part : parts) {
    const bool is_key = part.find('=') != std::string::npos && part.find(':') == std::string::npos;
    if (is_key && !names.empty() && names.back().starts_with("emu")) {
      names.back() += (names.back() == "emu" ? ":" : ",") + part;
    } else {
      names.push_back(std::move(part));
    }
  }
  return names;
}

Result<std::vector<BenchCase>> bench_cases(const BenchOptions& options) {
  HOTSET_RETURN_IF_ERROR(check_lists(options));
  std::vector<BenchCase> cases;
  for (const std::string& name : join_device_specs(options.devices)) {
    HOTSET_TRY(const std::string device, choose_device(name));
    BenchCase base{.device = device};
    for (const int n_threads : options.threads) {
      base.n_threads = n_threads;
      for (const int32_t n_ubatch : options.ubatches) {
        base.n_ubatch = n_ubatch;
        const auto add = [&] {
          for (BenchCase& test : tests_of(options, base)) cases.push_back(std::move(test));
        };
        if (device.empty()) {
          base.cache_mib = "0";
          base.cpu_share = "auto";
          add();
          continue;
        }
        for (const std::string& cache_mib : options.cache_mib) {
          base.cache_mib = cache_mib;
          HOTSET_TRY(const engine::EngineOptions parsed, options_of(options, base));
          if (parsed.cache_bytes == Bytes{}) base.cache_mib = "0";
          for (const std::string& share : options.cpu_shares) {
            base.cpu_share = share;
            add();
            if (base.cache_mib == "0") break;  // no share without a cache
          }
        }
      }
    }
  }
  if (cases.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "nothing to measure: found --n-prompt 0 and --n-gen 0");
  }
  for (const BenchCase& what : cases) {
    HOTSET_RETURN_IF_ERROR(options_of(options, what));
  }
  return cases;
}

Result<BenchResult> run_bench(const BenchOptions& options, const BenchProgress& progress) {
  HOTSET_TRY(std::vector<BenchCase> cases, bench_cases(options));
  return Bench(options, std::move(cases)).run(progress);
}

measure::MachineRates lane_rates(const engine::Engine& engine) {
  const engine::CachedExperts* cache = engine.cache();
  if (cache == nullptr) return {};
  Bytes most;
  measure::MachineRates rates;
  for (int32_t g = 0; g < cache->core().n_groups(); ++g) {
    const cache::GroupSpec& group = cache->core().spec(g);
    const Bytes all = group.bytes_per_expert() * group.n_experts();
    if (all <= most || (cache->learns() && !cache->learner().has_model(g))) continue;
    most = all;
    const lanes::LaneCosts& costs = cache->costs(g);
    const auto rate = [](double bytes, double us) { return us > 0 ? bytes / us / 1e3 : 0; };
    const auto expert_bytes = static_cast<double>(group.bytes_per_expert().count);
    rates = {.link = rate(1, costs.upload_solo_us.per_unit),
             .cpu = rate(expert_bytes, costs.cpu_solo.expert_us.at(1)),
             .device = rate(expert_bytes, costs.pairs.expert_us.at(1))};
  }
  return rates;
}

double now_us(const engine::Engine& engine) {
  return engine.device() == nullptr ? steady_clock().now_us() : engine.device()->now_us();
}

std::string test_name(const BenchCase& what) {
  std::string name =
      what.n_gen > 0 ? fmt::format("tg{}", what.n_gen) : fmt::format("pp{}", what.n_prompt);
  if (what.depth > 0) name += fmt::format(" @ d{}", what.depth);
  if (what.n_parallel > 1) name += fmt::format(" x {}", what.n_parallel);
  return name;
}

}  // namespace hotset::measure
