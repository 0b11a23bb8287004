#include "hotset/cli/bench_command.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <utility>

#include "hotset/base/interrupt.h"
#include "hotset/base/log.h"
#include "hotset/base/text_file.h"
#include "hotset/cli/command.h"
#include "hotset/cli/model_flags.h"
#include "hotset/measure/bench_report.h"
#include "hotset/measure/bench_run.h"
#include "hotset/measure/bench_settings.h"

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

void add_bench_command(Command& program) {
  auto o = std::make_shared<measure::BenchOptions>();
  auto compared = std::make_shared<std::vector<std::string>>();
  Command command = program.add_command(
      "bench", "How fast a model is: every combination of the lists, and how fast it could be");
  // Of lists every other command takes one value.
  add_model_options(command, o->model,
                    {"device", "threads", "ubatch-size", "moe-cache-mib", "moe-cache-cpu-share",
                     "stats", "moe-cache-trace", "profile"});
  command.flag("model").required(false);
  command.add(measure::bench_settings(), *o);
  command.add_switch("no-warm-up", "Do not compute each test once before timing it",
                     [o = o.get()] { o->warm_up = false; });
  command.add_choices<measure::BenchFormat>(
      o->format, {{"csv", measure::BenchFormat::kCsv, "Print CSV"},
                  {"markdown", measure::BenchFormat::kMarkdown, "Print Markdown"},
                  {"json", measure::BenchFormat::kJson, "Print JSON, an array of rows"}});
  command
      .add_repeated({.name = "compare",
                     .help = "Measure nothing: put two files of --json beside each other",
                     .value_name = "A.json B.json"},
                    *compared)
      .takes(2);
  command.require([o, compared] {
    return std::string(compared->empty() && o->model.model.empty() ? "--model" : "");
  });
  command.on_run([o, compared] {
    if (!compared->empty()) {
      const auto text = bench_compare(*compared, o->format);
      return text ? put(*text) : report(std::unexpected(text.error()));
    }
    const auto output = bench(*o);
    const int status = output ? put(output->text) : report(std::unexpected(output.error()));
    return output && output->interrupted && status == 0 ? kInterruptedExitStatus : status;
  });
}

}  // namespace hotset::cli
