#include "hotset/measure/tune_record.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/base/log.h"
#include "hotset/base/text_file.h"
#include "hotset/engine/run/engine_settings.h"
#include "hotset/measure/tune_report.h"
#include "hotset/report/replay_report.h"

namespace hotset::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

// Reads the fields of an object; the first that is missing or of another type is kept as the error.
class RecordFields {
 public:
  RecordFields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  template <typename T>
  void get(const char* field, T& value) {
    const Json* found = find(field);
    if (found == nullptr) return;
    if constexpr (std::is_same_v<T, std::string>) {
      if (!found->is_string()) return fail(field, "a string", *found);
      value = found->get<std::string>();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!found->is_boolean()) return fail(field, "true or false", *found);
      value = found->get<bool>();
    } else if constexpr (std::is_same_v<T, Bytes>) {
      if (!found->is_number_integer()) return fail(field, "a number of bytes", *found);
      value = Bytes{found->get<int64_t>()};
    } else {
      if (std::is_integral_v<T> ? !found->is_number_integer() : !found->is_number()) {
        return fail(field, "a number", *found);
      }
      value = found->get<T>();
    }
  }
  void get(const char* field, lanes::CpuShare& share) {
    const Json* found = find(field);
    if (found == nullptr) return;
    if (*found == "auto") {
      share.reset();
    } else if (found->is_number()) {
      share = found->get<double>();
    } else {
      fail(field, "a number or \"auto\"", *found);
    }
  }
  void get(const char* field, std::optional<int32_t>& n) {
    const Json* found = find(field);
    if (found == nullptr) return;
    if (*found == "auto") {
      n.reset();
    } else if (found->is_number_integer()) {
      n = found->get<int32_t>();
    } else {
      fail(field, "a number or \"auto\"", *found);
    }
  }
  const Json* find(const char* field) {
    if (object_.is_object() && object_.contains(field)) return &object_[field];
    if (status_) status_ = make_error(ErrorCode::kCorrupt, "{}: {}: missing", where_, field);
    return nullptr;
  }
  // Errors: the first of all fields so far.
  Result<const Json*> array(const char* field) {
    const Json* found = find(field);
    if (found != nullptr && !found->is_array()) fail(field, "an array", *found);
    HOTSET_RETURN_IF_ERROR(status_);
    return found;
  }
  const Status& status() const { return status_; }

 private:
  void fail(const char* field, const char* expected, const Json& found) {
    if (!status_) return;
    status_ = make_error(ErrorCode::kCorrupt, "{}: {}: found {}, expected {}", where_, field,
                         found.dump(-1, ' ', false, Json::error_handler_t::replace), expected);
  }

  const Json& object_;
  std::string where_;
  Status status_;
};

// FNV-1a, 64 bits: names files, nothing more.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

std::string tune_record_json(const TuneRecord& r) {
  Json runs = Json::array();
  for (const sim::TuneRun& run : r.runs) {
    runs.push_back({{"cache_bytes", run.cache.count},
                    {"cpu_share", report::share_json(run.share)},
                    {"ms_per_token", run.ms_per_token},
                    {"up_gib", run.up_gib},
                    {"cpu_gib", run.cpu_gib},
                    {"hit_rate", run.hit_rate}});
  }
  Json trials = Json::array();
  for (const ThreadTrial& trial : r.thread_trials) {
    trials.push_back({{"n_threads", trial.n_threads}, {"ms_per_token", trial.ms_per_token}});
  }
  const Json json = {
      {"version", kVersion},
      {"key", r.key},
      {"command", r.command},
      {"model", r.model},
      {"device", r.device},
      {"machine", r.machine},
      {"load_mode", r.load_mode},
      {"n_threads", r.n_threads},
      {"tokens", r.tokens},
      {"n_tokens", r.n_tokens},
      {"expert_bytes", r.expert_bytes.count},
      {"most_cache_bytes", r.most_cache.count},
      {"all_fit", r.all_fit},
      {"link_gb_per_s", r.rates.link_gb_per_s},
      {"cpu_gb_per_s", r.rates.cpu_gb_per_s},
      {"device_gb_per_s", r.rates.device_gb_per_s},
      {"launch_us", r.rates.launch_us},
      {"turn_us", r.rates.turn_us},
      {"rows_us", r.rates.rows_us},
      {"device_launch_us", r.rates.device_launch_us},
      {"no_cache_ms", r.no_cache_ms},
      {"prefill_tokens_per_s", r.prefill_tokens_per_s},
      {"skip_tokens", r.skip_tokens},
      {"trace", r.trace},
      {"policy", r.rules.policy},
      {"fills", r.rules.fills},
      {"max_decode_tokens", r.rules.cache_batch ? Json(*r.rules.cache_batch) : Json("auto")},
      {"is_server", r.is_server},
      {"is_hotset", r.is_hotset},
      {"thread_trials", std::move(trials)},
      {"runs", std::move(runs)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<TuneRecord> parse_tune_record(const std::string& name, const std::string& text) {
  const auto parsed = parse_json(text);
  if (!parsed || !parsed->is_object()) {
    return make_error(ErrorCode::kCorrupt, "{}: found no JSON object, expected a tune record{}",
                      name, parsed ? "" : ": it is " + parsed.error().message);
  }
  const Json& json = *parsed;
  TuneRecord r;
  RecordFields fields(json, name);
  int version = 0;
  fields.get("version", version);
  if (fields.status() && version != kVersion) {
    return make_error(ErrorCode::kCorrupt, "{}: version: found {}, expected {}", name, version,
                      kVersion);
  }
  fields.get("key", r.key);
  fields.get("command", r.command);
  fields.get("model", r.model);
  fields.get("device", r.device);
  fields.get("machine", r.machine);
  fields.get("load_mode", r.load_mode);
  fields.get("n_threads", r.n_threads);
  fields.get("tokens", r.tokens);
  fields.get("n_tokens", r.n_tokens);
  fields.get("expert_bytes", r.expert_bytes);
  fields.get("most_cache_bytes", r.most_cache);
  fields.get("all_fit", r.all_fit);
  fields.get("link_gb_per_s", r.rates.link_gb_per_s);
  fields.get("cpu_gb_per_s", r.rates.cpu_gb_per_s);
  fields.get("device_gb_per_s", r.rates.device_gb_per_s);
  fields.get("launch_us", r.rates.launch_us);
  fields.get("turn_us", r.rates.turn_us);
  fields.get("rows_us", r.rates.rows_us);
  fields.get("device_launch_us", r.rates.device_launch_us);
  fields.get("no_cache_ms", r.no_cache_ms);
  fields.get("prefill_tokens_per_s", r.prefill_tokens_per_s);
  fields.get("skip_tokens", r.skip_tokens);
  fields.get("trace", r.trace);
  fields.get("policy", r.rules.policy);
  fields.get("fills", r.rules.fills);
  fields.get("max_decode_tokens", r.rules.cache_batch);
  fields.get("is_server", r.is_server);
  if (json.contains("is_hotset")) fields.get("is_hotset", r.is_hotset);
  HOTSET_TRY(const Json* runs, fields.array("runs"));
  for (size_t i = 0; i < runs->size(); ++i) {
    sim::TuneRun run;
    RecordFields of_run((*runs)[i], fmt::format("{}: run {}", name, i));
    of_run.get("cache_bytes", run.cache);
    of_run.get("cpu_share", run.share);
    of_run.get("ms_per_token", run.ms_per_token);
    of_run.get("up_gib", run.up_gib);
    of_run.get("cpu_gib", run.cpu_gib);
    of_run.get("hit_rate", run.hit_rate);
    HOTSET_RETURN_IF_ERROR(of_run.status());
    r.runs.push_back(run);
  }
  if (!json.contains("thread_trials")) return r;
  HOTSET_TRY(const Json* trials, fields.array("thread_trials"));
  for (size_t i = 0; i < trials->size(); ++i) {
    ThreadTrial trial;
    RecordFields of_trial((*trials)[i], fmt::format("{}: thread trial {}", name, i));
    of_trial.get("n_threads", trial.n_threads);
    of_trial.get("ms_per_token", trial.ms_per_token);
    HOTSET_RETURN_IF_ERROR(of_trial.status());
    r.thread_trials.push_back(trial);
  }
  return r;
}

Result<std::string> tune_record_path(const std::string& folder, const std::string& key) {
  std::filesystem::path where = folder;
  if (folder.empty()) {
    const char* cache = std::getenv("XDG_CACHE_HOME");
    const char* home = std::getenv("HOME");
    if (cache != nullptr && *cache != '\0') {
      where = cache;
    } else if (home != nullptr && *home != '\0') {
      where = std::filesystem::path(home) / ".cache";
    } else {
      where = std::filesystem::temp_directory_path();
    }
    where = where / "hotset" / "tune";
  }
  std::error_code error;
  std::filesystem::create_directories(where, error);
  if (error) {
    return make_error(ErrorCode::kIo, "{}: cannot be created: {}", where.string(), error.message());
  }
  return (where / fmt::format("{:016x}", hash_of(key))).string();
}

TuneRecord load_tune_record(const std::string& path, const std::string& key) {
  const TuneRecord empty = {.key = key};
  const std::string file = path + ".json";
  if (!std::filesystem::exists(file)) return empty;
  const auto text = read_text(file);
  auto record = text ? parse_tune_record(file, *text) : std::unexpected(text.error());
  if (!record) {
    log_warning("earlier runs are not used: {}", record.error().message);
    return empty;
  }
  if (record->key != key || !std::filesystem::exists(record->trace)) return empty;
  return *std::move(record);
}

Status save_tune_record(const std::string& path, const TuneRecord& record) {
  const std::string file = path + ".json";
  HOTSET_RETURN_IF_ERROR(write_text_file(file + ".new", tune_record_json(record)));
  std::error_code error;
  std::filesystem::rename(file + ".new", file, error);
  if (error) {
    return make_error(ErrorCode::kIo, "{}: cannot be written: {}", file, error.message());
  }
  return {};
}

std::string tune_config(const TuneOutcome& outcome, const TuneCommandOptions& options) {
  const TuneRecord& r = outcome.record;
  std::string text =
      fmt::format("# Written by hotset tune: {}\n# {}\n", r.machine, outcome.why_chosen);
  const auto add = [&](std::string_view flag, const std::string& value) {
    text += fmt::format("{} = {}\n", flag, value);
  };
  add("model", std::filesystem::absolute(options.model.model).string());
  add("device", recommended_device(outcome));
  add("moe-cache-mib", cache_mib_text(outcome.chosen->cache));
  if (outcome.chosen->cache > Bytes{}) {
    add("moe-cache-cpu-share", report::share_text(outcome.chosen->share));
  }
  add("threads", fmt::format("{}", recommended_threads(outcome)));
  add("load-mode", recommended_load_mode(outcome));
  // The others are those of the runs.
  const engine::EngineOptions defaults = ModelOptions{}.engine;
  for (const auto& one : engine::engine_settings()) {
    constexpr std::string_view kDecided[] = {"moe-cache-mib", "moe-cache-cpu-share", "threads",
                                             "load-mode"};
    if (std::ranges::contains(kDecided, one.info.name)) continue;
    const std::string value = one.text(options.model.engine);
    if (value != one.text(defaults)) add(one.info.name, value);
  }
  return text;
}

}  // namespace hotset::measure
