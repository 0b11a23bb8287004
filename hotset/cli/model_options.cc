#include "hotset/cli/model_options.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/base/log.h"
#include "hotset/base/printable.h"
#include "hotset/base/units.h"
#include "hotset/cli/cache_verdict.h"
#include "hotset/cli/thread_search.h"
#include "hotset/engine/default_context.h"
#include "hotset/engine/tensor_types.h"

namespace hotset::cli {
namespace {

template <typename T>
Result<T> choose(std::string_view flag, std::string_view value,
                 std::initializer_list<std::pair<std::string_view, T>> choices) {
  std::string names;
  for (const auto& [name, meaning] : choices) {
    if (name == value) return meaning;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: found '{}', expected one of: {}", flag, value,
                    names);
}

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
  const CacheState state = cache_state(engine, asked);
  log_info("{} ({} threads, flash attention {}); {}; weights: {}.", cache_verdict(state),
           engine.n_threads(), engine.flash_attention() ? "on" : "off", context_text(engine),
           weights_text(engine.model().report()));
  if (const std::string warning = cache_warning(state); !warning.empty()) {
    log_warning("{}", warning);
  }
  for (const std::string& name : engine.model().report().unused) {
    log_warning("{}: tensor '{}' is not used by architecture {}", engine.model().file().name(),
                printable(name), engine.spec().architecture);
  }
}

Result<int64_t> parse_gpu_layers(const std::string& value) {
  if (value == "auto" || value == "all") return -1;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  if (error != std::errc() || end != value.data() + value.size() || n < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--n-gpu-layers: found '{}', expected auto or a number from 0", value);
  }
  return n;
}

}  // namespace

Result<std::string> choose_device(const std::string& value) {
  if (value == "none" || value == "cpu" || value == "CPU") return std::string();
  if (value != "auto") return value;
  HOTSET_TRY(const std::vector<device::DeviceInfo> devices, device::list_devices());
  return devices.empty() ? std::string() : devices.front().name;
}

Result<std::vector<int32_t>> parse_ids(std::string_view flag, std::string_view list) {
  std::vector<int32_t> ids;
  while (!list.empty()) {
    const size_t comma = list.find(',');
    std::string_view part = list.substr(0, comma);
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
    const size_t first = part.find_first_not_of(" \t\n");
    part = first == std::string_view::npos
               ? std::string_view()
               : part.substr(first, part.find_last_not_of(" \t\n") - first + 1);
    int32_t id = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    if (error != std::errc() || end != part.data() + part.size()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: found '{}', expected token ids separated by commas", flag, part);
    }
    ids.push_back(id);
  }
  if (ids.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found nothing, expected token ids", flag);
  }
  return ids;
}

Status check_ids(std::string_view flag, std::span<const int32_t> ids, int64_t n_vocab) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < n_vocab) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}: found token id {}, expected 0 to {}", flag,
                      id, n_vocab - 1);
  }
  return {};
}

Result<std::string> read_text(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{1} << 30;
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return make_error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                      "{}: cannot open: {}", path, std::strerror(errno));
  }
  std::string text;
  char buffer[1 << 16];
  size_t n = 0;
  while ((n = std::fread(buffer, 1, sizeof(buffer), file)) > 0 && text.size() <= kMaxBytes) {
    text.append(buffer, n);
  }
  const bool failed = std::ferror(file) != 0;
  const int error = errno;
  if (file != stdin) std::fclose(file);
  if (failed) {
    return make_error(ErrorCode::kIo, "{}: cannot read: {}", path, std::strerror(error));
  }
  if (text.size() > kMaxBytes) {
    return make_error(ErrorCode::kInvalidArgument, "{}: found more than 1 GiB, expected a text",
                      path);
  }
  return text;
}

Result<engine::EngineOptions> engine_options(const ModelOptions& options) {
  engine::EngineOptions result;
  if (options.n_threads < 0 || options.n_threads > 512) {
    return make_error(ErrorCode::kInvalidArgument, "--threads: found {}, expected 0 to 512",
                      options.n_threads);
  }
  if (options.n_ctx < 0) {
    return make_error(ErrorCode::kInvalidArgument, "--ctx-size: found {}, expected at least 0",
                      options.n_ctx);
  }
  if (options.n_ubatch < 1 || options.n_ubatch > 1 << 16) {
    return make_error(ErrorCode::kInvalidArgument, "--ubatch-size: found {}, expected 1 to {}",
                      options.n_ubatch, 1 << 16);
  }
  warn_of_threads("--threads", options.n_threads);
  result.n_threads = options.n_threads;
  result.n_ctx = options.n_ctx;
  result.n_ubatch = options.n_ubatch;
  HOTSET_TRY(result.n_gpu_layers, parse_gpu_layers(options.n_gpu_layers));
  using engine::FlashAttention;
  HOTSET_TRY(result.flash_attention, choose<FlashAttention>("--flash-attn", options.flash_attention,
                                                            {{"on", FlashAttention::kOn},
                                                             {"off", FlashAttention::kOff},
                                                             {"auto", FlashAttention::kAuto}}));
  HOTSET_TRY(result.key_type, engine::parse_type("--cache-type-k", options.key_type));
  HOTSET_TRY(result.value_type, engine::parse_type("--cache-type-v", options.value_type));
  using engine::LoadMode;
  HOTSET_TRY(result.load.load_mode, choose<LoadMode>("--load-mode", options.load_mode,
                                                     {{"mmap", LoadMode::kMmap},
                                                      {"pinned", LoadMode::kPinned},
                                                      {"auto", LoadMode::kAuto}}));
  HOTSET_TRY(result.load.repack,
             choose<bool>("--repack", options.repack, {{"auto", true}, {"off", false}}));
  HOTSET_RETURN_IF_ERROR(apply(options.cache, result));
  return result;
}

namespace {

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
  if (options.cache.stats) session.report_requests_ = std::make_unique<ReportRequestScope>();
  const bool may_cache = !engine_options.device.empty() && engine_options.cache_bytes != Bytes{};
  const bool keeps = options.cache.stats && may_cache;
  if (keeps || !options.cache.trace_out.empty()) {
    session.recorder_ = std::make_unique<engine::RoutingRecorder>(engine::RoutingRecorder::Options{
        .path = options.cache.trace_out, .memory = keeps ? kKeptRouting : Bytes{}});
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
  if (options.cache.trace_out.empty() && engine_->cache() == nullptr) return {};
  auto header = engine::trace_header(*engine_);
  if (!header) return add_context(header.error(), "--moe-cache-trace");
  return recorder_->begin(*std::move(header), engine::served_layers(*engine_));
}

std::string EngineSession::verdict() const {
  return cache_verdict(cache_state(*engine_, asked_cache_));
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
  report_ = std::make_unique<CacheReport>(cache_report(*engine_));
  if (report_->rows.empty()) {
    log_info("--stats: the expert cache had no lookup to serve");
    return {};
  }
  HOTSET_TRY(report_->replayed, replay_kept(*engine_, *recorder_));
  log_table(report_text(*report_));
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
  const CacheState state = cache_state(*engine_, asked_cache_);
  if (engine_->cache() == nullptr) return cli::cache_json(state, nullptr, false);
  if (report_) return cli::cache_json(state, report_.get(), true);
  const CacheReport report = cache_report(*engine_);
  return cli::cache_json(state, &report, false);
}

}  // namespace hotset::cli
