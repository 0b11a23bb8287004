#include "hotset/measure/tune_server.h"

#include <httplib.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "hotset/base/clock.h"
#include "hotset/base/interrupt.h"
#include "hotset/base/json.h"
#include "hotset/base/log.h"
#include "hotset/lanes/split_costs.h"
#include "hotset/measure/bench_text.h"
#include "hotset/measure/machine_info.h"
#include "hotset/measure/server_process.h"
#include "hotset/measure/tune_measure.h"
#include "hotset/measure/tune_record.h"
#include "hotset/measure/tune_report.h"
#include "hotset/report/replay_report.h"
#include "hotset/trace/reader.h"

namespace hotset::measure {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kServedTokens = 64;
constexpr size_t kPromptBytes = 600;  // of the built-in text: more than 32 tokens
constexpr int kStopTimeoutS = 60;
constexpr unsigned kHealthPollUs = 50'000;
// Between the hit rate that the server tells and that of the replay.
constexpr double kMostHitDifference = 0.02;

// Where the server listens.
struct Address {
  std::string host = "127.0.0.1";
  int port = 0;
};

// What a server's argument --name (or --name=) says; empty: it is not there.
std::string argument(const std::vector<std::string>& command, const std::string& name) {
  for (size_t i = 1; i < command.size(); ++i) {
    if (command[i] == name && i + 1 < command.size()) return command[i + 1];
    if (command[i].starts_with(name + "=")) return command[i].substr(name.size() + 1);
  }
  return {};
}

// One run of the server.
struct ServerRun {
  double ms_per_token = 0;
  double prompt_tokens_per_s = 0;
  int64_t skip_tokens = 0;  // of the warm-up
  std::string log = {};
};

class ServerTuner {
 public:
  ServerTuner(const TuneCommandOptions& options, const TuneProgress& progress)
      : o_(options), progress_(progress) {}

  Result<TuneOutcome> run();

 private:
  Status start();
  Status measure_runs();
  Result<sim::TuneRun> measure(Bytes cache, lanes::CpuShare share, const std::string& trace);
  Result<ServerRun> drive(Bytes cache, lanes::CpuShare share, const std::string& trace);
  Status wait_until_ready(httplib::Client& client, ServerProcess& process);
  // How the cache of the server decides, if it says so.
  void take_rules(const Json& props);
  Status complete_all(httplib::Client& client, ServerProcess& process, ServerRun& run);
  Result<Json> post(httplib::Client& client, ServerProcess& process, const std::string& prompt,
                    int32_t n);
  void say(const std::string& what) const {
    if (progress_) progress_(what);
  }

  const TuneCommandOptions& o_;
  const TuneProgress& progress_;
  Address address_;
  std::string path_;
  std::vector<std::string> prompts_;
  TuneOutcome outcome_;
};

// 0 where it is not there, or no number.
double number_of(const Json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

// The end of a log, as a part of a line.
std::string tail(std::string log) {
  constexpr size_t kBytes = 600;
  while (!log.empty() && log.back() == '\n') log.pop_back();
  if (log.size() > kBytes) log = "..." + log.substr(log.size() - kBytes);
  std::ranges::replace(log, '\n', '|');
  return log.empty() ? "it said nothing" : log;
}

Status ServerTuner::start() {
  if (!o_.max_mib || *o_.max_mib < 1) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "tune -- SERVER: found no --max-mib, expected the most device memory that its "
        "cache may have");
  }
  for (const char* name : {"--moe-cache-mib", "--moe-cache-cpu-share"}) {
    if (argument(o_.server, name).empty()) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "tune -- SERVER: found {}, which tune sets itself", name);
  }
  if (const std::string host = argument(o_.server, "--host"); !host.empty()) address_.host = host;
  if (const std::string port = argument(o_.server, "--port"); !port.empty()) {
    const auto [end, error] =
        std::from_chars(port.data(), port.data() + port.size(), address_.port);
    if (error != std::errc() || end != port.data() + port.size() || address_.port < 1) {
      return make_error(ErrorCode::kInvalidArgument,
                        "tune -- SERVER: --port: found '{}', expected a number", port);
    }
  }
  if (!o_.prompts_file.empty()) {
    HOTSET_TRY(prompts_, read_prompts(o_.prompts_file));
  } else {
    const std::string_view text = bench_texts().front().content;
    for (size_t begin = 0; begin + kPromptBytes <= text.size(); begin += kPromptBytes) {
      prompts_.emplace_back(text.substr(begin, kPromptBytes));
    }
  }
  std::string command;
  for (const std::string& part : o_.server) command += (command.empty() ? "" : " ") + part;
  const MachineInfo machine = machine_info();
  std::string key = fmt::format("server|{}|{}|{}|{}|{}|{}", command, *o_.max_mib, o_.n_tokens,
                                o_.n_warm_up, machine.cpu, machine.n_cores);
  for (const std::string& prompt : prompts_) key += "|" + prompt;
  HOTSET_TRY(path_, tune_record_path(o_.record_folder, key));
  TuneRecord& r = outcome_.record;
  r = o_.fresh ? TuneRecord{.key = key} : load_tune_record(path_, key);
  if (!r.runs.empty()) {
    say(fmt::format("{} earlier runs of the same command are reused (--fresh: measure again)",
                    r.runs.size()));
  }
  r.command = command;
  r.model = std::filesystem::path(o_.server.front()).filename().string();
  r.device = "as the server has it";
  r.machine = fmt::format("{}, {} cores, {}", machine.cpu, machine.n_cores, to_string(machine.ram));
  r.load_mode = "as the server has it";
  r.tokens = o_.prompts_file.empty() ? "text" : "prompts " + o_.prompts_file;
  r.n_tokens = o_.n_tokens;
  r.most_cache = mib(*o_.max_mib);
  if (!r.is_hotset) {
    r.rules.policy = "class_lru";
    r.rules.fills = false;
  }
  // Not known and not needed: the time model is fitted to bytes, and shares are fixed.
  r.rates = lanes::kTypicalRates;
  r.is_server = true;
  return {};
}

void ServerTuner::take_rules(const Json& props) {
  if (!props.is_object() || !props.contains("moe_cache")) return;
  const Json& rules = props["moe_cache"];
  if (!rules.is_object() || !rules.contains("policy") || !rules["policy"].is_string()) return;
  TuneRecord& r = outcome_.record;
  r.is_hotset = true;
  r.rules.policy = rules["policy"].get<std::string>();
  r.rules.fills = rules.value("fills", Json(false)) == true;
  r.rules.cache_batch.reset();
  const Json n = rules.value("max_decode_tokens", Json());
  if (n.is_number_integer()) r.rules.cache_batch = n.get<int32_t>();
}

Status ServerTuner::wait_until_ready(httplib::Client& client, ServerProcess& process) {
  const double deadline_us = steady_clock().now_us() + o_.server_timeout_s * 1e6;
  while (true) {
    const auto answer = client.Get("/health");
    if (answer && answer->status == 200) break;
    if (InterruptScope::interrupted()) return make_error(ErrorCode::kCancelled, "interrupted");
    if (!process.is_running()) {
      return make_error(ErrorCode::kIo, "{}: ended before it was ready: {}", o_.server.front(),
                        tail(process.log()));
    }
    if (steady_clock().now_us() > deadline_us) {
      return make_error(ErrorCode::kIo, "{}: /health is not 200 after {} s: {}", o_.server.front(),
                        o_.server_timeout_s, tail(process.log()));
    }
    usleep(kHealthPollUs);
  }
  const auto props = client.Get("/props");
  if (!props || props->status != 200) return {};
  const Json json = parse_json(props->body).value_or(Json());
  if (json.is_object() && json.contains("model_path") && json["model_path"].is_string()) {
    outcome_.record.model =
        std::filesystem::path(json["model_path"].get<std::string>()).filename().string();
  }
  take_rules(json);
  return {};
}

Result<Json> ServerTuner::post(httplib::Client& client, ServerProcess& process,
                               const std::string& prompt, int32_t n) {
  const Json body = {{"prompt", prompt},   {"n_predict", n},        {"temperature", 0},
                     {"ignore_eos", true}, {"cache_prompt", false}, {"stream", false}};
  const auto answer = client.Post("/completion", body.dump(), "application/json");
  if (!answer) {
    return make_error(ErrorCode::kIo, "{}: /completion: {}: {}", o_.server.front(),
                      httplib::to_string(answer.error()), tail(process.log()));
  }
  const Json json = parse_json(answer->body).value_or(Json());
  const auto number = [&](const char* field) {
    return json.is_object() && json.contains("timings") && json["timings"].is_object() &&
           json["timings"].contains(field) && json["timings"][field].is_number();
  };
  if (answer->status != 200 || !number("predicted_n") || !number("predicted_ms")) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: /completion: found status {}: {}, expected 200 with "
                      "timings.predicted_n and timings.predicted_ms",
                      o_.server.front(), answer->status, answer->body.substr(0, 200));
  }
  return json["timings"];
}

Status ServerTuner::complete_all(httplib::Client& client, ServerProcess& process, ServerRun& run) {
  double ms = 0;
  double prompt_ms = 0;
  double n_prompt = 0;
  double n_counted = 0;
  int64_t n_done = 0;
  for (size_t i = 0; n_done < o_.n_warm_up + o_.n_tokens; ++i) {
    if (InterruptScope::interrupted()) return make_error(ErrorCode::kCancelled, "interrupted");
    HOTSET_TRY(const Json timings,
               post(client, process, prompts_[i % prompts_.size()], kServedTokens));
    const double n = timings["predicted_n"].get<double>();
    if (!(n >= 1)) {
      return make_error(ErrorCode::kCorrupt, "{}: timings.predicted_n: found {}, expected {}",
                        o_.server.front(), n, kServedTokens);
    }
    const double n_of_prompt = number_of(timings, "prompt_n");
    if (n_done < o_.n_warm_up) {
      // The last token that was sampled has not been computed.
      run.skip_tokens += static_cast<int64_t>(n + n_of_prompt) - 1;
    } else {
      ms += timings["predicted_ms"].get<double>();
      n_counted += n;
      prompt_ms += number_of(timings, "prompt_ms");
      n_prompt += n_of_prompt;
    }
    n_done += static_cast<int64_t>(n);
  }
  if (!(ms > 0)) {
    return make_error(ErrorCode::kCorrupt, "{}: timings.predicted_ms: found {}, expected above 0",
                      o_.server.front(), ms);
  }
  run.ms_per_token = ms / n_counted;
  if (prompt_ms > 0) run.prompt_tokens_per_s = 1000 * n_prompt / prompt_ms;
  return {};
}

Result<ServerRun> ServerTuner::drive(Bytes cache, lanes::CpuShare share, const std::string& trace) {
  std::vector<std::string> command = o_.server;
  Address address = address_;
  if (address.port == 0) {
    address.port = free_port();
    command.insert(command.end(), {"--port", fmt::format("{}", address.port)});
  }
  command.insert(command.end(), {"--moe-cache-mib", cache_mib_text(cache), "--moe-cache-cpu-share",
                                 report::share_text(share)});
  std::error_code ignored;
  std::filesystem::remove(trace, ignored);
  HOTSET_TRY(ServerProcess process,
             ServerProcess::start(command, {{"LLAMA_MOE_CACHE_TRACE", trace}}, path_ + ".log"));
  httplib::Client client(address.host, address.port);
  client.set_read_timeout(o_.server_timeout_s, 0);
  client.set_connection_timeout(2, 0);
  ServerRun run;
  HOTSET_RETURN_IF_ERROR(wait_until_ready(client, process));
  HOTSET_RETURN_IF_ERROR(complete_all(client, process, run));
  HOTSET_RETURN_IF_ERROR(process.stop(kStopTimeoutS));
  run.log = process.log();
  return run;
}

Result<sim::TuneRun> ServerTuner::measure(Bytes cache, lanes::CpuShare share,
                                          const std::string& trace) {
  HOTSET_TRY(const ServerRun driven, drive(cache, share, trace));
  TuneRecord& r = outcome_.record;
  r.prefill_tokens_per_s = std::max(r.prefill_tokens_per_s, driven.prompt_tokens_per_s);
  if (r.runs.empty()) r.skip_tokens = driven.skip_tokens;
  const auto reader = trace::TraceReader::open(trace);
  if (!reader) {
    return add_context(reader.error(), o_.server.front() + ": LLAMA_MOE_CACHE_TRACE");
  }
  r.expert_bytes = reader->header().host_bytes();
  sim::TuneOptions options{.trace = [&] { return trace::TraceReader::open(trace); },
                           .rules = r.rules,
                           .counted = {.skip_tokens = driven.skip_tokens,
                                       .max_counted_tokens = 1,
                                       .compat_zero_slots = !r.is_hotset}};
  HOTSET_TRY(const sim::ReplayResult replayed,
             sim::replay_setting(options, reader->header(), cache, share, nullptr));
  sim::TuneRun run{.cache = cache,
                   .share = share,
                   .ms_per_token = driven.ms_per_token,
                   .up_gib = replayed.upload_gib_per_token(),
                   .cpu_gib = replayed.cpu_gib_per_token(),
                   .hit_rate = replayed.hit_rate()};
  // The reference's rules are taken on trust, hotset's are known.
  if (r.is_hotset) return run;
  const auto logged = logged_hits(driven.log);
  if (!logged) {
    log_warning("{}: said no \"hits = N, misses = M\" at its end: the replay is not checked",
                o_.server.front());
    return run;
  }
  options.counted.skip_tokens = 0;
  options.counted.max_counted_tokens = r.rules.most_in_batch();
  HOTSET_TRY(const sim::ReplayResult whole,
             sim::replay_setting(options, reader->header(), cache, share, nullptr));
  const double told = static_cast<double>(logged->first) /
                      std::max(1.0, static_cast<double>(logged->first + logged->second));
  if (std::abs(told - whole.hit_rate()) > kMostHitDifference) {
    log_warning(
        "cache {} MiB, share {}: the server had {:.1f}% hits, the replay {:.1f}%: its cache "
        "works by other rules, and predictions of other sizes may be off",
        cache_mib_text(cache), report::share_text(share), 100 * told, 100 * whole.hit_rate());
  }
  return run;
}

Status ServerTuner::measure_runs() {
  TuneRecord& r = outcome_.record;
  const auto planned = planned_runs(mib(1), r.most_cache, false);
  for (size_t i = 0; i < planned.size(); ++i) {
    const auto known = std::ranges::any_of(r.runs, [&](const sim::TuneRun& run) {
      return run.cache == planned[i].cache && run.share == planned[i].share;
    });
    if (known) continue;
    say(fmt::format("run {} of {}: cache {} MiB, share {}", i + 1, planned.size(),
                    cache_mib_text(planned[i].cache), report::share_text(planned[i].share)));
    const std::string trace = fmt::format("{}{}.mct", path_, r.runs.empty() ? "" : "-other");
    HOTSET_TRY(const sim::TuneRun run, measure(planned[i].cache, planned[i].share, trace));
    if (r.runs.empty()) r.trace = trace;
    r.runs.push_back(run);
    HOTSET_RETURN_IF_ERROR(save_tune_record(path_, r));
  }
  return {};
}

Result<TuneOutcome> ServerTuner::run() {
  HOTSET_RETURN_IF_ERROR(start());
  HOTSET_RETURN_IF_ERROR(measure_runs());
  TuneRecord& r = outcome_.record;
  if (r.expert_bytes <= r.most_cache) {
    r.all_fit = true;
    outcome_.why_chosen = fmt::format("all {} of experts fit into {}: no cache is needed",
                                      to_string(r.expert_bytes), to_string(r.most_cache));
    outcome_.chosen = TuneChoice{.cache = r.most_cache, .measured_ms = r.runs.front().ms_per_token};
    return std::move(outcome_);
  }
  HOTSET_TRY(outcome_.result, tune_from_record(r, r.most_cache / 8, progress_));
  HOTSET_RETURN_IF_ERROR(
      choose(outcome_, [&](Bytes cache, lanes::CpuShare share) -> Result<double> {
        say(fmt::format("measuring what is recommended: cache {} MiB, share {}",
                        cache_mib_text(cache), report::share_text(share)));
        HOTSET_TRY(const sim::TuneRun run, measure(cache, share, path_ + "-other.mct"));
        return run.ms_per_token;
      }));
  return std::move(outcome_);
}

}  // namespace

std::optional<std::pair<int64_t, int64_t>> logged_hits(const std::string& log) {
  std::pair<int64_t, int64_t> sum = {0, 0};
  bool found = false;
  constexpr std::string_view kHits = "hits = ";
  constexpr std::string_view kMisses = ", misses = ";
  for (size_t at = log.find(kHits); at != std::string::npos; at = log.find(kHits, at + 1)) {
    const char* const end = log.data() + log.size();
    int64_t hits = 0;
    const auto [after, error] = std::from_chars(log.data() + at + kHits.size(), end, hits);
    if (error != std::errc()) continue;
    const auto rest = std::string_view(after, static_cast<size_t>(end - after));
    if (!rest.starts_with(kMisses)) continue;
    int64_t misses = 0;
    const auto [last, second] = std::from_chars(after + kMisses.size(), end, misses);
    if (second != std::errc() || last == after + kMisses.size() || hits < 0 || misses < 0) continue;
    sum.first += hits;
    sum.second += misses;
    found = true;
  }
  if (!found) return std::nullopt;
  return sum;
}

Result<TuneOutcome> run_tune_server(const TuneCommandOptions& options,
                                    const TuneProgress& progress) {
  return ServerTuner(options, progress).run();
}

}  // namespace hotset::measure
