#include "hotset/measure/engine_session.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/base/interrupt.h"
#include "hotset/base/log.h"
#include "hotset/base/printable.h"
#include "hotset/base/units.h"
#include "hotset/engine/run/default_context.h"
#include "hotset/report/cache_json.h"
#include "hotset/report/cache_verdict.h"

namespace hotset::measure {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Where the weights are.
std::string weights_text(const engine::LoadReport& report) {
  std::string where;
  const auto add = [&](Bytes n, std::string_view what) {
    if (n.count > 0) where += fmt::format("{}{} {}", where.empty() ? "" : ", ", to_string(n), what);
  };
  add(report.on_device, "on the device");
  add(report.mapped, "used in place");
  add(report.repacked, fmt::format("repacked ({})", joined(report.layouts)));
  add(report.copied, report.locked ? "copied and locked in RAM" : "copied");
  return where;
}

// "context of 32768 positions for each of 4 sequences (as trained), 1.5 GiB".
std::string context_text(const engine::Engine& engine) {
  const int32_t n_ctx = engine.n_ctx();
  const int32_t n = engine.n_sequences();
  const bool is_shared =
      n > 1 && (!engine.has_default_context() ||
                n_ctx / n < std::min<int64_t>(engine.spec().n_ctx_train, engine::kLeastContext));
  const std::string of_whom = n == 1      ? ""
                              : is_shared ? fmt::format(" for {} sequences together", n)
                                          : fmt::format(" for each of {} sequences", n);
  const int32_t shown = is_shared ? n_ctx : n_ctx / n;
  std::string why;
  if (engine.has_default_context()) {
    why = shown >= engine.spec().n_ctx_train
              ? " (as trained)"
              : fmt::format(" (trained for {}; -c sets it)", engine.spec().n_ctx_train);
  }
  return fmt::format("context of {} positions{}{}, {}", shown, of_whom, why,
                     to_string(engine.kv().n_bytes()));
}

// What is going on with the cache and why, in one line.
void say_verdict(const engine::Engine& engine, std::optional<Bytes> asked) {
  const report::CacheState state = report::cache_state(engine, asked);
  log_info("{} ({} threads, flash attention {}); {}; weights: {}.", report::cache_verdict(state),
           engine.n_threads(), engine.flash_attention() ? "on" : "off", context_text(engine),
           weights_text(engine.model().report()));
  if (const std::string warning = report::cache_warning(state); !warning.empty()) {
    log_warning("{}", warning);
  }
  for (const std::string& name : engine.model().report().unused) {
    log_warning("{}: tensor '{}' is not used by architecture {}", engine.model().file().name(),
                printable(name), engine.spec().architecture);
  }
}

// Of the routing that is kept for the comparison with Belady: some 30,000 tokens of a model with 48
// layers and 8 experts per token per 64 MiB.
constexpr Bytes kKeptRouting = mib(256);

engine::RoutingObserver both(engine::RoutingObserver first, engine::RoutingObserver second) {
  if (!first) return second;
  return [first = std::move(first), second = std::move(second)](
             int64_t layer, std::span<const int32_t> ids, int64_t n_tokens) {
    first(layer, ids, n_tokens);
    second(layer, ids, n_tokens);
  };
}

}  // namespace

Result<EngineSession> EngineSession::start(const ModelOptions& options,
                                           engine::EngineOptions engine_options,
                                           const Prepare& prepare) {
  EngineSession session;
  session.profile_path_ = options.profile_out;
  session.asked_cache_ = engine_options.cache_bytes;
  HOTSET_TRY(engine_options.device, choose_device(options.device));
  engine_options.may_repack_instead = true;
  if (!options.profile_out.empty()) {
    session.profile_ = std::make_unique<device::Profile>();
    engine_options.profile = session.profile_.get();
    if (engine_options.device.empty()) {
      log_warning("--profile: nothing to record without a device (--device)");
    }
  }
  if (options.stats) session.report_requests_ = std::make_unique<ReportRequestScope>();
  const bool may_cache = !engine_options.device.empty() && engine_options.cache_bytes != Bytes{};
  const bool keeps = options.stats && may_cache;
  if (keeps || !options.trace_out.empty()) {
    session.recorder_ = std::make_unique<engine::RoutingRecorder>(engine::RoutingRecorder::Options{
        .path = options.trace_out, .most_kept = keeps ? kKeptRouting : Bytes{}});
    engine_options.observe_routing =
        both(std::move(engine_options.observe_routing), session.recorder_->observer());
  }
  HOTSET_TRY(engine::ModelDescription description, engine::describe_model(options.model));
  if (prepare) HOTSET_RETURN_IF_ERROR(prepare(description));
  HOTSET_TRY(session.engine_, engine::Engine::create(std::move(description), engine_options));
  HOTSET_RETURN_IF_ERROR(session.start_recording(options));
  say_verdict(*session.engine_, session.asked_cache_);
  return session;
}

Status EngineSession::start_recording(const ModelOptions& options) {
  if (!recorder_) return {};
  // Statistics alone are of a cache.
  if (options.trace_out.empty() && engine_->cache() == nullptr) return {};
  auto header = engine::trace_header(*engine_);
  if (!header) return add_context(header.error(), "--moe-cache-trace");
  return recorder_->begin(*std::move(header), engine::served_layers(*engine_));
}

std::string EngineSession::verdict() const {
  return report::cache_verdict(report::cache_state(*engine_, asked_cache_));
}

bool EngineSession::keep_going() {
  if (report_requests_ && ReportRequestScope::take()) {
    if (const Status status = report_statistics(); !status) {
      log_warning("--stats: {}", status.error().message);
    }
  }
  return !InterruptScope::interrupted() && (!recorder_ || recorder_->status());
}

Result<engine::DecodeResult> EngineSession::decode(std::span<const engine::BatchToken> batch) {
  auto result = engine_->decode(batch, [this] { return keep_going(); });
  if (recorder_) HOTSET_RETURN_IF_ERROR(recorder_->status());
  return result;
}

Result<engine::DecodeResult> EngineSession::decode_each(std::span<const engine::BatchToken> batch) {
  auto result = engine_->decode_each(batch, [this] { return keep_going(); });
  if (recorder_) HOTSET_RETURN_IF_ERROR(recorder_->status());
  return result;
}

Status EngineSession::report_statistics() {
  const engine::CachedExperts* cache = engine_->cache();
  if (cache == nullptr) {
    log_info("--stats: the expert cache is off");
    return {};
  }
  report_ = std::make_unique<report::CacheReport>(report::cache_report(*engine_));
  if (report_->rows.empty()) {
    log_info("--stats: the expert cache had no lookup to serve");
    return {};
  }
  HOTSET_TRY(report_->replayed, report::replay_kept(*engine_, *recorder_));
  log_table(report::report_text(*report_));
  return {};
}

Status EngineSession::finish() {
  Status status = recorder_ ? recorder_->end() : Status();
  if (profile_) {
    if (profile_->n_dropped() > 0) {
      log_warning("{}: {} later events did not fit", profile_path_, profile_->n_dropped());
    }
    const Status written = profile_->write(profile_path_);
    if (status) status = written;
  }
  if (!report_requests_) return status;
  const Status reported = report_statistics();
  return status ? reported : status;
}

nlohmann::ordered_json EngineSession::cache_json() const {
  const report::CacheState state = report::cache_state(*engine_, asked_cache_);
  if (engine_->cache() == nullptr) return report::cache_json(state, nullptr, false);
  if (report_) return report::cache_json(state, report_.get(), true);
  const report::CacheReport report = report::cache_report(*engine_);
  return report::cache_json(state, &report, false);
}

}  // namespace hotset::measure
