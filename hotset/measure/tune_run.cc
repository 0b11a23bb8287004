#include "hotset/measure/tune_run.h"
#include "hotset/base/text_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "hotset/base/interrupt.h"
#include "hotset/base/log.h"
#include "hotset/engine/run/engine_settings.h"
#include "hotset/measure/build_info.h"
#include "hotset/measure/machine_info.h"
#include "hotset/measure/tune_measure.h"
#include "hotset/measure/tune_record.h"
#include "hotset/measure/tune_report.h"
#include "hotset/measure/tune_server.h"
#include "hotset/report/replay_report.h"

namespace hotset::measure {
namespace {

constexpr double kRunShares[] = {0, 0.5, 0.95};

// Everything that a measured time depends on.
Result<std::string> record_key(const TuneCommandOptions& o, const std::string& device) {
  struct stat file = {};
  if (stat(o.model.model.c_str(), &file) != 0) {
    return make_error(ErrorCode::kNotFound, "{}: cannot open", o.model.model);
  }
  const ModelOptions& m = o.model;
  const MachineInfo machine = machine_info();
  std::string prompts = "text";
  if (!o.prompts_file.empty()) {
    HOTSET_TRY(prompts, read_text(o.prompts_file));
  }
  std::string key =
      fmt::format("{}|{}|{}|{}", std::filesystem::absolute(m.model).string(),
                  static_cast<int64_t>(file.st_size), static_cast<int64_t>(file.st_mtime), device);
  for (const auto& one : engine::engine_settings()) key += "|" + one.text(m.engine);
  return key + fmt::format("|{}|{}|{}|{}|{}|{}|{}|{}|{}", o.n_tokens, o.n_warm_up,
                           o.max_mib.value_or(-1), machine.cpu, machine.n_cores,
                           build_info().version, build_info().commit, prompts.size(),
                           std::hash<std::string>{}(prompts));
}

std::string setting_text(Bytes cache, lanes::CpuShare share) {
  return cache == Bytes{} ? std::string("no cache")
                          : fmt::format("cache {} MiB, share {}", cache_mib_text(cache),
                                        report::share_text(share));
}

bool same_setting(const sim::TuneRun& a, const sim::TuneRun& b) {
  return a.cache == b.cache && a.share == b.share;
}

// Where the device computes resident experts slower than the CPU, a token gets faster the more the
// CPU computes, and no rate of the CPU lane above 0 fits; then what was measured still says
// something. Runs that do not fit together say nothing.
bool no_run_is_faster(const TuneOutcome& outcome) {
  const TuneRecord& r = outcome.record;
  const auto& fit = outcome.result->fit;
  return fit && fit->worst_error <= sim::TuneOptions().max_error && r.no_cache_ms > 0 &&
         std::ranges::all_of(
             r.runs, [&](const sim::TuneRun& run) { return run.ms_per_token >= r.no_cache_ms; });
}

class ModelTuner {
 public:
  ModelTuner(const TuneCommandOptions& options, const TuneProgress& progress)
      : o_(options), progress_(progress) {}

  Result<TuneOutcome> run();

 private:
  Status start();
  Status load();
  Status search_threads();
  Status measure_runs();
  // Whether the recommendation is as fast with the experts in the file as in pinned memory.
  Status compare_load_modes();
  std::string why_not_pinned() const;
  // Where no cache is recommended: whether the device is of use at all.
  Status compare_cpu_alone();
  Result<TuneMeasurement> measure(Bytes cache, lanes::CpuShare share);
  void say(const std::string& what) const {
    if (progress_) progress_(what);
  }

  const TuneCommandOptions& o_;
  const TuneProgress& progress_;
  std::string path_;  // of the record, without extension
  std::unique_ptr<TuneMeasure> measure_;
  TuneOutcome outcome_;
};

Status ModelTuner::start() {
  HOTSET_TRY(const std::string device, choose_device(o_.model.device));
  HOTSET_TRY(const std::string key, record_key(o_, device));
  HOTSET_TRY(path_, tune_record_path(o_.record_folder, key));
  outcome_.record = o_.fresh ? TuneRecord{.key = key} : load_tune_record(path_, key);
  if (!outcome_.record.runs.empty()) {
    say(fmt::format("{} earlier runs of the same command are reused (--fresh: measure again)",
                    outcome_.record.runs.size()));
  }
  return load();
}

Status ModelTuner::load() {
  say("loading " + o_.model.model);
  HOTSET_TRY(measure_, TuneMeasure::start(o_));
  const engine::Engine& engine = measure_->engine();
  if (!why_not_measured().empty() && !engine.device()->info().virtual_clock) {
    return make_error(ErrorCode::kUnsupported,
                      "tune: this is {}, expected a release build (scripts/build release)",
                      why_not_measured());
  }
  TuneRecord& r = outcome_.record;
  const MachineInfo machine = machine_info();
  r.command = "hotset run -m " + o_.model.model;
  r.model = std::filesystem::path(o_.model.model).filename().string();
  r.device = engine.device()->info().name;
  if (o_.model.device != "auto") r.device = o_.model.device;
  r.machine = fmt::format("{}, {} cores, {}; {}", machine.cpu, machine.n_cores,
                          to_string(machine.ram), engine.device()->info().description);
  r.load_mode = engine.model().report().experts_pinned ? "pinned" : "mmap";
  r.n_threads = engine.n_threads();
  r.tokens = measure_->tokens_name();
  r.n_tokens = o_.n_tokens;
  r.expert_bytes = measure_->expert_bytes();
  r.most_cache = measure_->most_cache();
  r.all_fit = measure_->all_fit();
  r.rules = o_.model.engine.cache.rules;
  if (r.runs.empty()) r.rates = measure_->rates();
  return {};
}

Result<TuneMeasurement> ModelTuner::measure(Bytes cache, lanes::CpuShare share) {
  TuneRecord& r = outcome_.record;
  const bool is_recorded = !r.trace.empty();
  if (!is_recorded) HOTSET_RETURN_IF_ERROR(measure_->record_next(path_ + ".mct"));
  HOTSET_TRY(TuneMeasurement measured, measure_->run(cache, share));
  if (!is_recorded) {
    r.trace = path_ + ".mct";
    r.skip_tokens = measured.skip_tokens;
  }
  return measured;
}

Status ModelTuner::search_threads() {
  TuneRecord& r = outcome_.record;
  const device::DeviceInfo& device = measure_->engine().device()->info();
  // What computes on the CPU itself shares the threads with the CPU lane.
  const bool are_shared = device.computes_on_cpu && !device.virtual_clock;
  if (o_.model.engine.n_threads != 0 || are_shared) return {};
  const CoreCount cores = o_.cores.value_or(core_count());
  while (const auto n_threads = next_thread_trial(r.thread_trials, cores)) {
    say(fmt::format("searching threads: {} of {} cores, {}", *n_threads, cores.n_cores,
                    setting_text(measure_->most_cache(), lanes::CpuShare())));
    HOTSET_RETURN_IF_ERROR(measure_->set_threads(*n_threads));
    HOTSET_TRY(const TuneMeasurement m, measure(measure_->most_cache(), lanes::CpuShare()));
    r.thread_trials.push_back({.n_threads = *n_threads, .ms_per_token = m.ms_per_token});
    HOTSET_RETURN_IF_ERROR(save_tune_record(path_, r));
  }
  r.n_threads = fewest_threads(r.thread_trials);
  HOTSET_RETURN_IF_ERROR(measure_->set_threads(r.n_threads));
  if (r.runs.empty()) r.rates = measure_->rates();
  return {};
}

Status ModelTuner::measure_runs() {
  TuneRecord& r = outcome_.record;
  const std::vector<sim::TuneRun> planned =
      planned_runs(measure_->least_cache(), measure_->most_cache(), true);
  for (size_t i = 0; i < planned.size(); ++i) {
    if (std::ranges::any_of(r.runs, [&](const auto& x) { return same_setting(x, planned[i]); })) {
      continue;
    }
    say(fmt::format("run {} of {}: {}", i + 1, planned.size() + 1,
                    setting_text(planned[i].cache, planned[i].share)));
    HOTSET_TRY(const TuneMeasurement m, measure(planned[i].cache, planned[i].share));
    r.prefill_tokens_per_s = std::max(r.prefill_tokens_per_s, m.prefill_tokens_per_s);
    sim::TuneRun run = planned[i];
    run.ms_per_token = m.ms_per_token;
    run.up_gib = m.up_gib;
    run.cpu_gib = m.cpu_gib;
    run.hit_rate = m.hit_rate;
    r.runs.push_back(run);
    HOTSET_RETURN_IF_ERROR(save_tune_record(path_, r));
  }
  if (r.no_cache_ms > 0) return {};
  say(fmt::format("run {} of {}: no cache", planned.size() + 1, planned.size() + 1));
  HOTSET_TRY(const TuneMeasurement m, measure({}, 0.0));
  r.no_cache_ms = m.ms_per_token;
  return save_tune_record(path_, r);
}

std::string ModelTuner::why_not_pinned() const {
  const TuneRecord& r = outcome_.record;
  if (!measure_->engine().device()->info().pinned_memory) {
    return fmt::format("{} has no pinned memory", r.device);
  }
  return fmt::format("{} of experts are more than may be pinned of {}, or than is free",
                     to_string(r.expert_bytes), to_string(machine_info().ram));
}

Status ModelTuner::compare_cpu_alone() {
  if (!outcome_.chosen || outcome_.chosen->cache > Bytes{}) return {};
  // Times of a virtual clock are of another machine than this CPU.
  if (measure_->engine().device()->info().virtual_clock) return {};
  say("comparing with the CPU alone: loading the model once more, without the device");
  const auto alone = measure_->run_without_device(o_.model.engine.n_threads);
  if (!alone) {
    if (alone.error().code == ErrorCode::kCancelled) return std::unexpected(alone.error());
    log_warning("the CPU alone could not be measured: {}", alone.error().message);
    return {};
  }
  outcome_.cpu_alone = CpuAloneTrial{.ms_per_token = alone->ms_per_token,
                                     .n_threads = measure_->engine().n_threads()};
  TuneChoice& chosen = *outcome_.chosen;
  if (alone->ms_per_token * (1 + kMeasuredTolerance) >= chosen.measured_ms) return {};
  outcome_.without_device = true;
  outcome_.why_chosen +=
      fmt::format(". The CPU alone takes {:.3f} ms: leave out the device", alone->ms_per_token);
  chosen.measured_ms = alone->ms_per_token;
  return {};
}

Status ModelTuner::compare_load_modes() {
  const TuneRecord& r = outcome_.record;
  if (o_.model.engine.load.load_mode != engine::LoadMode::kAuto || !outcome_.chosen) return {};
  const TuneChoice& chosen = *outcome_.chosen;
  outcome_.load_mode = "mmap";
  if (r.all_fit && chosen.cache > Bytes{}) {
    outcome_.why_load_mode = "the experts are copied to the device once";
    return {};
  }
  if (r.load_mode == "mmap") {
    outcome_.why_load_mode = why_not_pinned();
    return {};
  }
  say("comparing load modes: loading the model once more, its experts in the file (mmap)");
  const auto in_file =
      measure_->run_in_load_mode(engine::LoadMode::kMmap, chosen.cache, chosen.share);
  if (!in_file) {
    if (in_file.error().code == ErrorCode::kCancelled) return std::unexpected(in_file.error());
    outcome_.load_mode = r.load_mode;
    outcome_.why_load_mode =
        "as measured; with mmap it could not be compared: " + in_file.error().message;
    return {};
  }
  outcome_.load_mode_trials = {{.mode = "mmap", .ms_per_token = in_file->ms_per_token},
                               {.mode = r.load_mode, .ms_per_token = chosen.measured_ms}};
  // Memory that is pinned is lost to everybody else: only for more speed than measurements differ.
  if (in_file->ms_per_token <= chosen.measured_ms * (1 + kMeasuredTolerance)) {
    outcome_.why_load_mode = "as fast, and nothing is locked in RAM";
  } else {
    outcome_.load_mode = r.load_mode;
    outcome_.why_load_mode = "uploads come straight from where the experts are";
  }
  return {};
}

Result<TuneOutcome> ModelTuner::run() {
  HOTSET_RETURN_IF_ERROR(start());
  if (outcome_.record.all_fit) {
    outcome_.why_chosen = fmt::format(
        "all {} of experts fit on {}: they are copied there once, and no cache is needed",
        to_string(outcome_.record.expert_bytes), outcome_.record.device);
    say("all experts fit: measuring them on the device, and on the CPU");
    // Nothing is replayed, so no routing is recorded.
    HOTSET_TRY(const TuneMeasurement on_device, measure_->run(measure_->most_cache(), 0.0));
    HOTSET_TRY(const TuneMeasurement on_cpu, measure_->run({}, 0.0));
    outcome_.record.no_cache_ms = on_cpu.ms_per_token;
    const bool device_wins = on_device.ms_per_token <= on_cpu.ms_per_token;
    outcome_.chosen =
        TuneChoice{.cache = device_wins ? outcome_.record.most_cache : Bytes{},
                   .measured_ms = device_wins ? on_device.ms_per_token : on_cpu.ms_per_token};
    if (!device_wins) {
      outcome_.why_chosen = fmt::format(
          "all experts fit on {}, but the CPU computes them faster: {:.3f} ms per token against "
          "{:.3f}",
          outcome_.record.device, on_cpu.ms_per_token, on_device.ms_per_token);
    }
    HOTSET_RETURN_IF_ERROR(compare_load_modes());
    HOTSET_RETURN_IF_ERROR(compare_cpu_alone());
    return std::move(outcome_);
  }
  HOTSET_RETURN_IF_ERROR(search_threads());
  HOTSET_RETURN_IF_ERROR(measure_runs());
  HOTSET_TRY(outcome_.result,
             tune_from_record(outcome_.record, measure_->least_cache(), progress_));
  const Status chosen = choose(outcome_, [&](Bytes cache, lanes::CpuShare share) -> Result<double> {
    say("measuring what is recommended: " + setting_text(cache, share));
    HOTSET_TRY(const TuneMeasurement m, measure(cache, share));
    return m.ms_per_token;
  });
  HOTSET_RETURN_IF_ERROR(chosen);
  HOTSET_RETURN_IF_ERROR(compare_load_modes());
  HOTSET_RETURN_IF_ERROR(compare_cpu_alone());
  return std::move(outcome_);
}

}  // namespace

std::vector<sim::TuneRun> planned_runs(Bytes least, Bytes most, bool with_auto) {
  // A quarter of the memory misses clearly more often, and is not so small that it misses always.
  const Bytes small = std::max(least, sim::round_cache_size(most / 4));
  std::vector<sim::TuneRun> runs;
  for (const Bytes cache : {most, small}) {
    for (const double share : kRunShares) runs.push_back({.cache = cache, .share = share});
    if (with_auto) runs.push_back({.cache = cache, .share = {}});
    if (small == most) break;
  }
  return runs;
}

Result<sim::TuneResult> tune_from_record(const TuneRecord& record, Bytes least,
                                         const TuneProgress& progress) {
  if (progress) progress("replaying the routing with other sizes and shares");
  std::vector<Bytes> measured;
  for (const sim::TuneRun& run : record.runs) measured.push_back(run.cache);
  constexpr size_t kSizes = 6;
  sim::TuneOptions options{
      .runs = record.runs,
      .no_cache_ms_per_token = record.no_cache_ms,
      .trace = [&] { return trace::TraceReader::open(record.trace); },
      .rules = record.rules,
      .counted = {.skip_tokens = record.skip_tokens,
                  .max_counted_tokens = 1,
                  .compat_zero_slots = record.is_server && !record.is_hotset},
      .table_sizes = sim::tune_sizes(least, record.most_cache, kSizes, measured),
      .cancelled = &InterruptScope::flag()};
  options.rules.rates = record.rates;
  std::vector<lanes::CpuShare>& shares = options.table_shares;
  for (int i = 0; i <= 10; ++i) shares.emplace_back(i / 10.0);
  shares.insert(shares.end() - 1, 0.95);
  if (!record.is_server) shares.emplace_back();
  return sim::tune(options);
}

Status choose(TuneOutcome& outcome, const MeasureChoice& measure) {
  const sim::TuneResult& result = *outcome.result;
  const TuneRecord& record = outcome.record;
  if (!result.recommended) {
    outcome.why_not = result.why_not;
    if (result.no_cache_is_faster) {
      outcome.why_not.clear();
      outcome.why_chosen = result.why_not;
      outcome.chosen = TuneChoice{.measured_ms = record.no_cache_ms};
    } else if (no_run_is_faster(outcome)) {
      outcome.why_not += fmt::format(
          ". What was measured is that no run with a cache was faster than {:.3f} ms per token, "
          "which it takes without one (--moe-cache-mib 0)",
          record.no_cache_ms);
    }
    return {};
  }
  const auto as_choice = [](const sim::TunePrediction& p) {
    return TuneChoice{.cache = p.cache, .share = p.share, .predicted_ms = p.ms_per_token};
  };
  std::vector<TuneChoice> choices = {as_choice(result.table[*result.recommended])};
  const auto fastest =
      std::ranges::min_element(result.table, {}, &sim::TunePrediction::ms_per_token);
  if (fastest->share != choices[0].share) choices.push_back(as_choice(*fastest));
  for (TuneChoice& choice : choices) {
    HOTSET_TRY(choice.measured_ms, measure(choice.cache, choice.share));
  }
  outcome.predicted = choices[0];
  // What was measured before counts as well.
  const Bytes cache = choices[0].cache;
  for (const sim::TuneRun& run : record.runs) {
    if (run.cache != cache) continue;
    const auto known =
        std::ranges::find_if(choices, [&](const auto& c) { return c.share == run.share; });
    if (known != choices.end()) continue;
    TuneChoice choice{.cache = cache, .share = run.share, .measured_ms = run.ms_per_token};
    for (const sim::TunePrediction& p : result.table) {
      if (p.cache == cache && p.share == run.share) choice.predicted_ms = p.ms_per_token;
    }
    choices.push_back(choice);
  }
  const double best_ms = std::ranges::min(choices, {}, &TuneChoice::measured_ms).measured_ms;
  if (record.no_cache_ms > 0 && record.no_cache_ms < best_ms) {
    outcome.chosen = TuneChoice{.measured_ms = record.no_cache_ms};
    outcome.why_chosen =
        fmt::format("measured: without a cache a token takes {:.3f} ms, with the best one {:.3f}",
                    record.no_cache_ms, best_ms);
    return {};
  }
  TuneChoice best = choices[0];
  bool changed = false;
  if (best.measured_ms > best_ms * (1 + kMeasuredTolerance)) {
    changed = true;
    const auto rank = [](const TuneChoice& c) { return c.share.value_or(0); };
    best.measured_ms = 0;
    for (const TuneChoice& choice : choices) {
      if (choice.measured_ms > best_ms * (1 + kMeasuredTolerance)) continue;
      if (best.measured_ms == 0 || rank(choice) < rank(best)) best = choice;
    }
  }
  outcome.chosen = best;
  outcome.why_chosen =
      changed       ? fmt::format("share {} was predicted, but share {} was measured to be faster",
                                  report::share_text(outcome.predicted->share),
                                  report::share_text(best.share))
      : !best.share ? std::string("share auto is the fastest")
                    : fmt::format("the lowest share within 5% of the fastest");
  return {};
}

Result<TuneOutcome> run_tune(const TuneCommandOptions& options, const TuneProgress& progress) {
  if (!options.server.empty()) return run_tune_server(options, progress);
  return ModelTuner(options, progress).run();
}

}  // namespace hotset::measure
