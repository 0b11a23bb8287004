#include "hotset/cli/replay_flags.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hotset/base/interrupt.h"
#include "hotset/cli/command.h"
#include "hotset/cli/replay_command.h"
#include "hotset/cli/trace_command.h"
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

// A flag that takes one argument with values separated by commas, so that what follows it is not
// taken for one more.
template <typename T>
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<T>& values,
                      const std::string& help) {
  return command.add_option(name, values, help)->delimiter(',')->allow_extra_args(false);
}

void add_replay(CLI::App& app, int& exit_status) {
  auto o = std::make_shared<ReplayCommandOptions>();
  CLI::App* command =
      app.add_subcommand("replay", "What a cache would have done with the routing of a trace");
  command->add_option("TRACE", o->matrix.traces, "Traces (MCT1)")->required();
  add_list(*command, "--policy", o->matrix.policies,
           fmt::format("Policies: {}; crf takes a half-life in tokens: crf:8",
                       fmt::join(policy::policy_names(), ", ")))
      ->capture_default_str();
  add_list(*command, "--cache-mib", o->sizes_mib, "Cache sizes in MiB, over all devices");
  add_list(*command, "--cache-pct", o->sizes_percent,
           "Cache sizes in percent of the bytes of all experts; without sizes 5,10,20,30,40");
  add_list(*command, "--share", o->share_texts,
           "Parts of the misses that the CPU computes: numbers from 0 to 1, or auto")
      ->capture_default_str();
  command->add_option("--skip-tokens", o->matrix.counted.skip_tokens,
                      "First tokens of each layer that are not counted; 100, or 0 with "
                      "--compat-zero-slots");
  command
      ->add_option("--moe-cache-batch", o->batch_text,
                   "Lookups of more tokens are streamed and evict nothing; auto: decided for each "
                   "by the costs with share auto, else 32")
      ->capture_default_str();
  command
      ->add_option("--moe-cache-fills", o->matrix.rules.fills,
                   "Copy experts that the CPU computed in the background: on or off")
      ->transform(
          CLI::CheckedTransformer(std::map<std::string, bool>{{"on", true}, {"off", false}}))
      ->default_str("on");
  command->add_flag("--compat-zero-slots", o->matrix.counted.compat_zero_slots,
                    "Keep to the limits of the reference implementation, for its exact counts");
  command
      ->add_option("--profile", o->matrix.profile_trace,
                   "Trace that the policy static takes its hot set from; without it, from the "
                   "trace that it replays, in hindsight")
      ->type_name("TRACE");
  auto& rates = o->matrix.rules.rates;
  const auto rate = [&](const char* name, double& value, const char* help) {
    command->add_option(name, value, help)->capture_default_str();
  };
  rate("--link-gbps", rates->link_gb_per_s, "Host to device, GB/s");
  rate("--launch-us", rates->launch_us, "Start of a copy, microseconds");
  rate("--cpu-gbps", rates->cpu_gb_per_s, "Expert bytes that the CPU computes, GB/s");
  rate("--turn-us", rates->turn_us, "Start of the CPU lane, microseconds");
  rate("--device-gbps", rates->device_gb_per_s, "Expert bytes that the device computes, GB/s");
  rate("--memory-gbps", rates->memory_gb_per_s, "Host memory, all readers together; 0: no limit");
  command
      ->add_option("-t,--threads", o->matrix.n_workers,
                   "Replays at a time; 0: one per CPU that may be used")
      ->capture_default_str();
  const auto format = [&](const char* name, ReplayFormat value, const char* help) {
    return command->add_flag_callback(name, [o, value] { o->format = value; }, help);
  };
  CLI::Option* csv = format("--csv", ReplayFormat::kCsv, "Print CSV");
  CLI::Option* markdown = format("--markdown", ReplayFormat::kMarkdown, "Print a Markdown table");
  CLI::Option* json = format("--json", ReplayFormat::kJson, "Print JSON");
  csv->excludes(markdown)->excludes(json);
  markdown->excludes(json);
  command->add_option("--svg", o->svg_path, "Draw hit rate over cache size into this file")
      ->type_name("FILE");
  command->callback([o, &exit_status] { exit_status = finish(run_replay(*o)); });
}

CLI::Option* add_output(CLI::App& command, std::string& path) {
  return command.add_option("-o,--out", path, "Trace to write")->required()->type_name("FILE");
}

void add_trace_info(CLI::App& trace, int& exit_status) {
  auto o = std::make_shared<TraceInfoOptions>();
  CLI::App* command = trace.add_subcommand("info", "The shape of traces");
  command->add_option("TRACE", o->traces, "Traces (MCT1)")->required();
  command->add_flag("--by-layer", o->layers, "A line for each layer as well");
  command->add_flag("--json", o->json, "Print JSON");
  command->callback([o, &exit_status] { exit_status = finish(trace_info(*o)); });
}

void add_trace_cut(CLI::App& trace, int& exit_status) {
  auto o = std::make_shared<TraceCutOptions>();
  CLI::App* command = trace.add_subcommand("cut", "A part of a trace");
  command->add_option("TRACE", o->in, "Trace to cut")->required();
  add_output(*command, o->out);
  command->add_option("--from-token", o->cut.first_token, "First token of each layer to keep")
      ->capture_default_str();
  command->add_option("--tokens", o->cut.n_tokens, "Tokens of each layer to keep; 0: to the end")
      ->capture_default_str();
  command->add_option("--layers", o->layers, "Layers to keep: 0-3,7; all if absent");
  command->callback([o, &exit_status] { exit_status = finish(trace_cut(*o)); });
}

void add_trace_merge(CLI::App& trace, int& exit_status) {
  auto o = std::make_shared<TraceMergeOptions>();
  CLI::App* command = trace.add_subcommand("merge", "One trace from several of the same model");
  command->add_option("TRACE", o->in, "Traces to merge")->required();
  add_output(*command, o->out);
  command
      ->add_option("--mode", o->mode,
                   "concatenate: texts that follow each other; interleave: users that take turns; "
                   "batch: users served together")
      ->capture_default_str();
  command
      ->add_option("--interleave-steps", o->interleave_steps, "Token steps of each trace per turn")
      ->capture_default_str();
  command->callback([o, &exit_status] { exit_status = finish(trace_merge(*o)); });
}

void add_trace_synth(CLI::App& trace, int& exit_status) {
  auto o = std::make_shared<TraceSynthOptions>();
  trace::SynthOptions& synth = o->synth;
  CLI::App* command = trace.add_subcommand(
      "synth", "A synthetic trace: popular experts, tokens like the one before, changing topics");
  add_output(*command, o->out);
  const auto option = [&](const char* name, auto& value, const char* help) {
    command->add_option(name, value, help)->capture_default_str();
  };
  option("--layers", synth.n_layer, "Layers, all with experts");
  option("--experts", synth.n_expert, "Experts per layer");
  option("--experts-used", synth.experts_per_token, "Experts per token");
  option("--tokens", synth.n_tokens, "Tokens");
  add_list(*command, "--tokens-per-step", synth.tokens_per_step,
           "Tokens of a step, drawn from this list")
      ->capture_default_str();
  option("--zipf", synth.zipf_exponent, "Skew of the experts' popularity, 0 to 8");
  option("--repeat", synth.repeat, "Chance that an expert stays for the next token, 0 to 1");
  option("--topics", synth.n_topics, "Topics, each with popular experts of its own");
  option("--topic-tokens", synth.topic_tokens, "Mean length of a topic");
  option("--groups", synth.n_groups, "Groups that the layers are divided into");
  option("--devices", synth.n_devices, "Devices that the groups are divided among");
  add_list(*command, "--expert-bytes", o->expert_bytes, "Bytes of one expert of each tensor")
      ->capture_default_str();
  command->add_option("-s,--seed", synth.seed, "Seed; equal flags and seed give equal bytes")
      ->capture_default_str();
  command->callback([o, &exit_status] { exit_status = finish(trace_synth(*o)); });
}

}  // namespace

void add_replay_commands(CLI::App& app, int& exit_status) {
  add_replay(app, exit_status);
  CLI::App* trace = app.add_subcommand("trace", "Look at routing traces and make new ones");
  trace->require_subcommand(1);
  add_trace_info(*trace, exit_status);
  add_trace_cut(*trace, exit_status);
  add_trace_merge(*trace, exit_status);
  add_trace_synth(*trace, exit_status);
}

}  // namespace hotset::cli
