#include "hotset/cli/bench_command.h"
#include "hotset/base/text_file.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "hotset/base/interrupt.h"
#include "hotset/base/log.h"
#include "hotset/cli/command.h"
#include "hotset/cli/model_flags.h"
#include "hotset/measure/bench_report.h"
#include "hotset/measure/bench_run.h"

namespace hotset::cli {
namespace {

std::string text_of(const measure::BenchResult& result, measure::BenchFormat format) {
  switch (format) {
    case measure::BenchFormat::kCsv:
      return measure::bench_csv(result);
    case measure::BenchFormat::kMarkdown:
      return measure::bench_markdown(result);
    case measure::BenchFormat::kJson:
      return measure::bench_json(result);
    case measure::BenchFormat::kTable:
      break;
  }
  return measure::bench_table(result);
}

int put(const std::string& text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    return report(stdout_error());
  }
  return report({});
}

// A flag that takes one argument with values separated by commas.
template <typename T>
CLI::Option* add_list(CLI::App& command, const std::string& name, std::vector<T>& values,
                      const std::string& help) {
  return command.add_option(name, values, help)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("LIST")
      ->capture_default_str();
}

void add_lists(CLI::App& command, measure::BenchOptions& o) {
  // Those of every command take one value.
  for (const char* name : {"--device", "--threads", "--ubatch-size", "--moe-cache-mib",
                           "--moe-cache-cpu-share", "--stats", "--moe-cache-trace", "--profile"}) {
    command.remove_option(command.get_option(name));
  }
  add_list(command, "--device", o.devices, "Devices, as `hotset run` takes them; none: the CPU");
  add_list(command, "-t,--threads", o.threads, "CPU threads; 0: one per core that may be used");
  add_list(command, "--ubatch-size", o.ubatches, "-ub: tokens of a prompt computed together");
  add_list(command, "--moe-cache-mib", o.cache_mib, "Device memory for experts, MiB, auto, or 0");
  add_list(command, "--moe-cache-cpu-share", o.cpu_shares,
           "Part of the missing experts that the CPU computes, 0 to 1, or auto");
  add_list(command, "-p,--n-prompt", o.n_prompts, "Lengths of prompts to time; 0: none");
  add_list(command, "-n,--n-gen", o.n_gens, "Numbers of generated tokens to time; 0: none");
  add_list(command, "-d,--depth", o.depths, "Tokens in the context before those timed");
  add_list(command, "--parallel", o.n_parallels, "Sequences computed together");
}

}  // namespace

Result<BenchOutput> bench(const measure::BenchOptions& options) {
  if (!measure::why_not_measured().empty()) {
    return make_error(ErrorCode::kUnsupported,
                      "bench: this is {}, expected a release build (scripts/build release)",
                      measure::why_not_measured());
  }
  const InterruptScope interrupt;
  HOTSET_TRY(const measure::BenchResult result,
             measure::run_bench(options, [](size_t i, size_t n, const measure::BenchCase& what) {
               log_info("{} of {}: {}, {}, cache {} MiB, share {}", i + 1, n,
                        measure::test_name(what), what.device.empty() ? "CPU" : what.device,
                        what.cache_mib, what.cpu_share);
             }));
  return BenchOutput{.text = text_of(result, options.format), .interrupted = result.interrupted};
}

Result<std::string> bench_compare(const std::vector<std::string>& paths,
                                  measure::BenchFormat format) {
  HOTSET_TRY(const std::string a, read_text(paths.at(0)));
  HOTSET_TRY(const std::string b, read_text(paths.at(1)));
  return measure::compare_bench(paths[0], a, paths[1], b, format);
}

void add_bench_command(CLI::App& app, int& exit_status) {
  auto o = std::make_shared<measure::BenchOptions>();
  auto compared = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand(
      "bench", "How fast a model is: every combination of the lists, and how fast it could be");
  add_model_options(*command, o->model);
  add_lists(*command, *o);
  command->get_option("--model")->required(false);
  command->add_option("-r,--repetitions", o->n_repetitions, "Measurements of each test")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_flag_callback(
      "--no-warm-up", [o] { o->warm_up = false; },
      "Do not compute each test once before timing it");
  command->add_option("--text", o->text_file, "Text to compute instead of the built-in one")
      ->type_name("FILE");
  command->add_flag("--random-tokens", o->random_tokens,
                    "Compute uniformly random tokens: they route unlike text");
  command->add_option("-s,--seed", o->seed, "Seed of the random tokens")->capture_default_str();
  const auto format = [&](const char* name, measure::BenchFormat value, const char* help) {
    return command->add_flag_callback(name, [o, value] { o->format = value; }, help);
  };
  CLI::Option* csv = format("--csv", measure::BenchFormat::kCsv, "Print CSV");
  CLI::Option* markdown = format("--markdown", measure::BenchFormat::kMarkdown, "Print Markdown");
  CLI::Option* json = format("--json", measure::BenchFormat::kJson, "Print JSON, an array of rows");
  csv->excludes(markdown)->excludes(json);
  markdown->excludes(json);
  command
      ->add_option("--compare", *compared,
                   "Measure nothing: put two files of --json beside each other")
      ->expected(2)
      ->type_name("A.json B.json");
  command->callback([o, compared, &exit_status] {
    if (!compared->empty()) {
      const auto text = bench_compare(*compared, o->format);
      exit_status = text ? put(*text) : report(std::unexpected(text.error()));
      return;
    }
    if (o->model.model.empty()) throw CLI::RequiredError("--model");
    const auto output = bench(*o);
    exit_status = output ? put(output->text) : report(std::unexpected(output.error()));
    if (output && output->interrupted && exit_status == 0) exit_status = kInterruptedExitStatus;
  });
}

}  // namespace hotset::cli
