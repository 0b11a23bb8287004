#include "hotset/measure/tune_measure.h"
#include "hotset/base/text_file.h"
#include "hotset/engine/weights/model_tokenizer.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/base/interrupt.h"
#include "hotset/base/json.h"
#include "hotset/base/log.h"
#include "hotset/engine/run/sampler.h"
#include "hotset/measure/bench_run.h"
#include "hotset/measure/bench_tokens.h"
#include "hotset/report/cache_report.h"
#include "hotset/report/cache_verdict.h"

namespace hotset::measure {
namespace {

// Tokens of a passage of the built-in text: long enough for attention to have something to read.
constexpr int32_t kPassageTokens = 128;
// Generated from each prompt, at most.
constexpr int32_t kReplyTokens = 64;

bool keep_going() { return !InterruptScope::interrupted(); }

void forget_all(engine::Engine& engine) {
  engine.forget(0, 0, std::numeric_limits<int32_t>::max());
}

}  // namespace

Result<std::vector<std::string>> read_prompts(const std::string& path) {
  HOTSET_TRY(const std::string text, read_text(path));
  std::vector<std::string> prompts;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    const auto parsed = parse_json(text);
    if (!parsed) {
      return make_error(
          ErrorCode::kInvalidArgument,
          "{}: begins with '[' but is no JSON array, expected one of strings: it is {}", path,
          parsed.error().message);
    }
    const auto& json = *parsed;
    for (size_t i = 0; i < json.size(); ++i) {
      if (!json[i].is_string()) {
        return make_error(ErrorCode::kInvalidArgument, "{}: prompt {}: found {}, expected a string",
                          path, i, json[i].type_name());
      }
      prompts.push_back(json[i].get<std::string>());
    }
  } else {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      std::string line = text.substr(begin, end - begin);
      if (line.ends_with('\r')) line.pop_back();
      prompts.push_back(std::move(line));
      begin = end + 1;
    }
  }
  std::erase(prompts, "");
  if (prompts.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: found no prompt, expected one a line or a JSON array of strings", path);
  }
  return prompts;
}

Result<std::unique_ptr<TuneMeasure>> TuneMeasure::start(const TuneCommandOptions& options) {
  std::unique_ptr<TuneMeasure> measure(new TuneMeasure(options));
  HOTSET_RETURN_IF_ERROR(measure->load());
  HOTSET_RETURN_IF_ERROR(measure->make_passages());
  return measure;
}

Status TuneMeasure::load() {
  ModelOptions model = options_.model;
  model.engine.cache_bytes.reset();
  model.engine.cache.rules.cpu_share = 0;
  HOTSET_TRY(engine_options_, engine_options(model));
  engine_options_.context.n_sequences = 1;  // as `hotset run` has it
  HOTSET_TRY(engine_options_.device, choose_device(model.device));
  if (engine_options_.device.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tune: found no device, expected --device with one of --list-devices (emu is "
                      "an emulated one): without a device there is no cache to tune");
  }
  if (options_.max_mib) engine_options_.cache_bytes = mib(*options_.max_mib);
  engine_options_.observe_routing = [this](int64_t layer, std::span<const int32_t> ids,
                                           int64_t n_tokens) {
    if (is_recording_) observer_(layer, ids, n_tokens);
  };
  HOTSET_RETURN_IF_ERROR(create_engine());
  const report::CacheState state = report::cache_state(*engine_, engine_options_.cache_bytes);
  if (engine_->most_cache() == Bytes{} || !state.has_slots()) {
    return make_error(ErrorCode::kInvalidArgument, "tune: no cache to tune: {}",
                      report::cache_verdict(state));
  }
  const auto k = engine_->spec().router.n_expert_used;
  for (const cache::CacheGroup& group : engine_->cache_groups()) {
    all_experts_ += cache::bank_bytes(group.spec, group.spec.n_experts());
    least_ += cache::bank_bytes(group.spec, std::min<int64_t>(2 * k, group.spec.n_experts()));
  }
  all_fit_ = engine_->most_cache() >= all_experts_;
  most_ = all_fit_ ? all_experts_ : sim::round_cache_size(engine_->most_cache());
  least_ = std::min(sim::round_cache_size(least_ + mib(1) / 64), most_);
  return {};
}

Status TuneMeasure::create_engine() {
  HOTSET_TRY(engine::ModelDescription description, engine::describe_model(options_.model.model));
  if (!tokens_ && !tokenizer_) HOTSET_RETURN_IF_ERROR(read_tokens(description));
  // Both at once may be more than there is memory for.
  engine_.reset();
  HOTSET_TRY(engine_, engine::Engine::create(std::move(description), engine_options_));
  return {};
}

Status TuneMeasure::read_tokens(const engine::ModelDescription& model) {
  if (options_.prompts_file.empty()) {
    HOTSET_TRY(tokens_, BenchTokens::create(model, {}));
    return {};
  }
  HOTSET_TRY(prompts_, read_prompts(options_.prompts_file));
  HOTSET_TRY(tokenizer_, engine::model_tokenizer(model));
  return {};
}

Status TuneMeasure::set_threads(int n_threads) {
  HOTSET_RETURN_IF_ERROR(engine_->set_threads(n_threads));
  return engine_->set_cache(most_, engine_options_.cache);
}

Result<TuneMeasurement> TuneMeasure::run_in_load_mode(engine::LoadMode mode, Bytes cache,
                                                      lanes::CpuShare share) {
  engine_options_.n_threads = engine_->n_threads();
  engine_options_.load.load_mode = mode;
  engine_options_.cache_bytes = most_;
  HOTSET_RETURN_IF_ERROR(create_engine());
  return run(cache, share);
}

Result<TuneMeasurement> TuneMeasure::run_without_device(int n_threads) {
  engine_options_.n_threads = n_threads;
  engine_options_.device.clear();
  engine_options_.cache_bytes = Bytes{};
  engine_options_.load.load_mode = engine::LoadMode::kMmap;
  HOTSET_RETURN_IF_ERROR(create_engine());
  return compute();
}

lanes::LaneRates TuneMeasure::rates() const {
  const measure::MachineRates found = lane_rates(*engine_);
  if (!(found.link > 0 && found.cpu > 0 && found.device > 0)) return lanes::kTypicalRates;
  lanes::LaneRates rates = {
      .link_gb_per_s = found.link, .cpu_gb_per_s = found.cpu, .device_gb_per_s = found.device};
  const lanes::LaneCosts& costs = engine_->cache()->costs(0);
  rates.launch_us = costs.upload_solo_us.fixed;
  rates.turn_us = costs.cpu_solo.turn_us;
  rates.rows_us = costs.rows_us;
  rates.device_launch_us = costs.pairs.turn_us;
  return rates;
}

Status TuneMeasure::make_passages() {
  if (!options_.prompts_file.empty()) {
    tokens_name_ = "prompts " + options_.prompts_file;
    return generate();
  }
  tokens_name_ = tokens_->name();
  const int32_t length = std::min(kPassageTokens, engine_->n_ctx());
  for (int32_t left = options_.n_warm_up + options_.n_tokens; left > 0; left -= length) {
    passages_.push_back({.prompt = {}, .tokens = tokens_->take(std::min(left, length))});
  }
  return {};
}

Status TuneMeasure::generate() {
  HOTSET_TRY(engine::Sampler sampler, engine::Sampler::create({.seed = 1}));
  int32_t left = options_.n_warm_up + options_.n_tokens;
  // Several times over where there are few prompts: then the cache knows them, as it would in use.
  for (size_t i = 0; left > 0; i = (i + 1) % prompts_.size()) {
    TunePassage passage;
    HOTSET_TRY(passage.prompt,
               tokenizer_->encode(prompts_[i], {.parse_special = true, .add_bos = true}));
    if (std::ssize(passage.prompt) >= engine_->n_ctx()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: prompt {} has {} tokens, but the context holds {}; raise it with -c",
                        options_.prompts_file, i, passage.prompt.size(), engine_->n_ctx());
    }
    if (passage.prompt.empty()) continue;
    const auto n_prompt = static_cast<int32_t>(passage.prompt.size());
    const int32_t n = std::min({left, kReplyTokens, engine_->n_ctx() - n_prompt});
    forget_all(*engine_);
    std::vector<engine::BatchToken> batch;
    for (int32_t p = 0; p < n_prompt; ++p) {
      batch.push_back(
          {.token = passage.prompt[p], .position = p, .want_logits = p + 1 == n_prompt});
    }
    for (int32_t t = 0; t < n; ++t) {
      HOTSET_TRY(const auto result, engine_->decode(batch, keep_going));
      const int32_t id = sampler.sample(result.logits);
      passage.tokens.push_back(id);
      batch = {{.token = id, .position = n_prompt + t, .want_logits = true}};
    }
    left -= n;
    passages_.push_back(std::move(passage));
  }
  return {};
}

Status TuneMeasure::record_next(const std::string& trace_path) {
  recorder_ = std::make_unique<engine::RoutingRecorder>(
      engine::RoutingRecorder::Options{.path = trace_path});
  observer_ = recorder_->observer();
  HOTSET_TRY(trace::TraceHeader header, engine::trace_header(*engine_));
  HOTSET_RETURN_IF_ERROR(recorder_->begin(std::move(header), {}));
  is_recording_ = true;
  return {};
}

cache::CacheCounts TuneMeasure::counts() const {
  cache::CacheCounts counts;
  const engine::CachedExperts* cache = engine_->cache();
  for (int32_t layer = 0; cache != nullptr && layer < engine_->spec().n_layer; ++layer) {
    counts += cache->core().counts(layer)[cache::BatchClass::kOne];
  }
  return counts;
}

Result<TuneMeasurement> TuneMeasure::compute() {
  TuneMeasurement measured;
  cache::CacheCounts before = counts();
  double us = 0;
  double prompt_us = 0;
  int64_t n_prompt = 0;
  int32_t n_steps = 0;
  std::vector<engine::BatchToken> batch;
  const auto timed = [&]() -> Result<double> {
    const double start_us = now_us(*engine_);
    HOTSET_TRY([[maybe_unused]] const auto result, engine_->decode(batch, keep_going));
    return now_us(*engine_) - start_us;
  };
  for (const TunePassage& passage : passages_) {
    forget_all(*engine_);
    batch.clear();
    int32_t position = 0;
    for (const int32_t id : passage.prompt) batch.push_back({.token = id, .position = position++});
    if (!batch.empty()) {
      batch.back().want_logits = true;
      HOTSET_TRY(const double prefill_us, timed());
      prompt_us += prefill_us;
      n_prompt += std::ssize(batch);
    }
    if (n_steps < options_.n_warm_up) measured.skip_tokens += std::ssize(passage.prompt);
    for (const int32_t id : passage.tokens) {
      if (n_steps == options_.n_warm_up) before = counts();
      batch = {{.token = id, .position = position++, .want_logits = true}};
      HOTSET_TRY(const double token_us, timed());
      if (n_steps >= options_.n_warm_up) us += token_us;
      ++n_steps;
    }
  }
  measured.skip_tokens += options_.n_warm_up;
  const double n = n_steps - options_.n_warm_up;
  cache::CacheCounts moved = counts();
  moved -= before;
  measured.ms_per_token = us / n / 1e3;
  measured.up_gib = moved.uploaded_bytes.gib() / n;
  measured.cpu_gib = moved.cpu_bytes.gib() / n;
  measured.hit_rate = moved.hit_rate();
  if (prompt_us > 0)
    measured.prefill_tokens_per_s = static_cast<double>(n_prompt) * 1e6 / prompt_us;
  return measured;
}

Result<TuneMeasurement> TuneMeasure::run(Bytes cache, lanes::CpuShare share) {
  engine::CacheOptions cache_options = engine_options_.cache;
  cache_options.rules.cpu_share = share;
  HOTSET_RETURN_IF_ERROR(engine_->set_cache(cache, cache_options));
  auto measured = compute();
  if (is_recording_) {
    is_recording_ = false;
    HOTSET_RETURN_IF_ERROR(recorder_->end());
    HOTSET_RETURN_IF_ERROR(recorder_->status());
  }
  return measured;
}

}  // namespace hotset::measure
