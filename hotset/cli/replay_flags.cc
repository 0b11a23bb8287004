#include "hotset/cli/replay_flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/base/interrupt.h"
#include "hotset/cli/command.h"
#include "hotset/cli/replay_command.h"
#include "hotset/cli/trace_command.h"
#include "hotset/engine/experts/cache_settings.h"
#include "hotset/policy/registry.h"

namespace hotset::cli {
namespace {

// Prints what a command has to say, or why it has nothing.
int finish(const Result<std::string>& text) {
  if (!text) {
    const int status = report(std::unexpected(text.error()));
    return text.error().code == ErrorCode::kCancelled ? kInterruptedExitStatus : status;
  }
  if (std::fwrite(text->data(), 1, text->size(), stdout) != text->size() ||
      std::fflush(stdout) != 0) {
    return report(make_error(ErrorCode::kIo, "the output cannot be written"));
  }
  return 0;
}

using Options = ReplayCommandOptions;

// What the cache of an engine is told by the same name, or by the last part of it.
SettingInfo of_cache(std::string_view name, std::string help) {
  return find_setting(engine::cache_settings(), name).info.with_help(std::move(help));
}

SettingInfo share_setting() {
  SettingInfo info =
      of_cache("moe-cache-cpu-share",
               "Parts of the misses that the CPU computes: numbers from 0 to 1, or auto");
  info.name = "share";
  info.value_name = "LIST";
  return info;
}

SettingInfo rate(const char* name, const char* unit, const char* help) {
  return {.name = name, .help = help, .unit = unit};
}

Settings<Options> rate_settings() {
  return {
      setting<Options>(rate("link-gbps", "GB/s", "Host to device, GB/s"),
                       [](auto& o) -> auto& { return o.rates.link_gb_per_s; }),
      setting<Options>(rate("launch-us", "US", "Start of a copy, microseconds"),
                       [](auto& o) -> auto& { return o.rates.launch_us; }),
      setting<Options>(rate("cpu-gbps", "GB/s", "Expert bytes that the CPU computes, GB/s"),
                       [](auto& o) -> auto& { return o.rates.cpu_gb_per_s; }),
      setting<Options>(rate("turn-us", "US", "Start of the CPU lane, microseconds"),
                       [](auto& o) -> auto& { return o.rates.turn_us; }),
      setting<Options>(rate("device-gbps", "GB/s", "Expert bytes that the device computes, GB/s"),
                       [](auto& o) -> auto& { return o.rates.device_gb_per_s; }),
      setting<Options>(
          rate("memory-gbps", "GB/s", "Host memory, all readers together; 0: no limit"),
          [](auto& o) -> auto& { return o.rates.memory_gb_per_s; }),
  };
}

Settings<Options> make_settings() {
  Settings<Options> table = {
      setting<Options>({.name = "policy",
                        .help = fmt::format("Policies: {}; crf takes a half-life in tokens: crf:8",
                                            fmt::join(policy::policy_names(), ", ")),
                        .value_name = "LIST"},
                       [](auto& o) -> auto& { return o.matrix.policies; }),
      setting<Options>({.name = "cache-mib",
                        .help = "Cache sizes in MiB, over all devices",
                        .value_name = "LIST"},
                       [](auto& o) -> auto& { return o.cache_mib; }),
      setting<Options>(
          {.name = "cache-pct",
           .help =
               "Cache sizes in percent of the bytes of all experts; without sizes 5,10,20,30,40",
           .value_name = "LIST"},
          [](auto& o) -> auto& { return o.cache_pct; }),
      setting<Options>(share_setting(), [](auto& o) -> auto& { return o.shares; }),
      setting<Options>(
          {.name = "skip-tokens",
           .help = "First tokens of each layer that are not counted; auto: 100, or 0 with "
                   "--compat-zero-slots",
           .auto_words = {"auto"}},
          [](auto& o) -> auto& { return o.matrix.counted.skip_tokens; }),
      setting<Options>(
          of_cache("moe-cache-batch",
                   "Lookups of more tokens are streamed and evict nothing; auto: decided for each "
                   "by the costs with share auto, else 32"),
          [](auto& o) -> auto& { return o.matrix.rules.cache_batch; }),
      setting<Options>(of_cache("moe-cache-fills",
                                "Copy experts that the CPU computed in the background: on or off"),
                       [](auto& o) -> auto& { return o.matrix.rules.fills; }),
      setting<Options>(
          {.name = "compat-zero-slots",
           .help = "Keep to the limits of the reference implementation, for its exact counts"},
          [](auto& o) -> auto& { return o.matrix.counted.compat_zero_slots; }),
      setting<Options>(
          {.name = "profile",
           .help = "Trace that the policy static takes its hot set from; without it, from the "
                   "trace that it replays, in hindsight",
           .value_name = "TRACE"},
          [](auto& o) -> auto& { return o.matrix.profile_trace; }),
      setting<Options>({.name = "threads",
                        .letters = "t",
                        .help = "Replays at a time; 0: one per CPU that may be used"},
                       [](auto& o) -> auto& { return o.matrix.n_workers; }),
      setting<Options>({.name = "svg",
                        .help = "Draw hit rate over cache size into this file",
                        .value_name = "FILE"},
                       [](auto& o) -> auto& { return o.svg_path; }),
  };
  std::ranges::move(rate_settings(), std::back_inserter(table));
  return table;
}

void add_replay(Command& program) {
  auto o = std::make_shared<Options>();
  Command command =
      program.add_command("replay", "What a cache would have done with the routing of a trace");
  command.add_argument("TRACE", "Traces (MCT1)", o->matrix.traces).required();
  command.add(replay_settings(), *o);
  command.add_choices<ReplayFormat>(
      o->format, {{"csv", ReplayFormat::kCsv, "Print CSV"},
                  {"markdown", ReplayFormat::kMarkdown, "Print a Markdown table"},
                  {"json", ReplayFormat::kJson, "Print JSON"}});
  command.on_run([o] { return finish(run_replay(*o)); });
}

void add_output(Command& command, std::string& path) {
  command.add({.name = "out", .letters = "o", .help = "Trace to write", .value_name = "FILE"}, path)
      .required();
}

void add_trace_info(Command& trace) {
  auto o = std::make_shared<TraceInfoOptions>();
  Command command = trace.add_command("info", "The shape of traces");
  command.add_argument("TRACE", "Traces (MCT1)", o->traces).required();
  command.add({.name = "by-layer", .help = "A line for each layer as well"}, o->layers);
  command.add({.name = "json", .help = "Print JSON"}, o->json);
  command.on_run([o] { return finish(trace_info(*o)); });
}

void add_trace_cut(Command& trace) {
  auto o = std::make_shared<TraceCutOptions>();
  Command command = trace.add_command("cut", "A part of a trace");
  command.add_argument("TRACE", "Trace to cut", o->in).required();
  add_output(command, o->out);
  command.add({.name = "from-token", .help = "First token of each layer to keep"},
              o->cut.first_token);
  command.add({.name = "tokens", .help = "Tokens of each layer to keep; 0: to the end"},
              o->cut.n_tokens);
  command.add({.name = "layers", .help = "Layers to keep: 0-3,7; all if absent"}, o->layers);
  command.on_run([o] { return finish(trace_cut(*o)); });
}

void add_trace_merge(Command& trace) {
  auto o = std::make_shared<TraceMergeOptions>();
  Command command = trace.add_command("merge", "One trace from several of the same model");
  command.add_argument("TRACE", "Traces to merge", o->in).required();
  add_output(command, o->out);
  command.add(
      {.name = "mode",
       .help = "concatenate: texts that follow each other; interleave: users that take turns; "
               "batch: users served together"},
      o->mode);
  command.add({.name = "interleave-steps", .help = "Token steps of each trace per turn"},
              o->interleave_steps);
  command.on_run([o] { return finish(trace_merge(*o)); });
}

void add_trace_synth(Command& trace) {
  auto o = std::make_shared<TraceSynthOptions>();
  trace::SynthOptions& synth = o->synth;
  Command command = trace.add_command(
      "synth", "A synthetic trace: popular experts, tokens like the one before, changing topics");
  add_output(command, o->out);
  command.add({.name = "layers", .help = "Layers, all with experts"}, synth.n_layer);
  command.add({.name = "experts", .help = "Experts per layer"}, synth.n_expert);
  command.add({.name = "experts-used", .help = "Experts per token"}, synth.experts_per_token);
  command.add({.name = "tokens", .help = "Tokens"}, synth.n_tokens);
  command.add({.name = "tokens-per-step",
               .help = "Tokens of a step, drawn from this list",
               .value_name = "LIST"},
              synth.tokens_per_step);
  command.add({.name = "zipf", .help = "Skew of the experts' popularity, 0 to 8"},
              synth.zipf_exponent);
  command.add({.name = "repeat", .help = "Chance that an expert stays for the next token, 0 to 1"},
              synth.repeat);
  command.add({.name = "topics", .help = "Topics, each with popular experts of its own"},
              synth.n_topics);
  command.add({.name = "topic-tokens", .help = "Mean length of a topic"}, synth.topic_tokens);
  command.add({.name = "groups", .help = "Groups that the layers are divided into"},
              synth.n_groups);
  command.add({.name = "devices", .help = "Devices that the groups are divided among"},
              synth.n_devices);
  command.add(
      {.name = "expert-bytes", .help = "Bytes of one expert of each tensor", .value_name = "LIST"},
      o->expert_bytes);
  command.add(
      {.name = "seed", .letters = "s", .help = "Seed; equal flags and seed give equal bytes"},
      synth.seed);
  command.on_run([o] { return finish(trace_synth(*o)); });
}

}  // namespace

const Settings<ReplayCommandOptions>& replay_settings() {
  static const Settings<Options> table = make_settings();
  return table;
}

void add_replay_commands(Command& program) {
  add_replay(program);
  Command trace = program.add_command("trace", "Look at routing traces and make new ones");
  trace.needs_command();
  add_trace_info(trace);
  add_trace_cut(trace);
  add_trace_merge(trace);
  add_trace_synth(trace);
}

}  // namespace hotset::cli
