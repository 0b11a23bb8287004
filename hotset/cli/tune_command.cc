#include "hotset/cli/tune_command.h"

#include <cerrno>
#include <cstdio>
#include <memory>

#include "hotset/base/interrupt.h"
#include "hotset/base/log.h"
#include "hotset/base/text_file.h"
#include "hotset/cli/command.h"
#include "hotset/cli/model_flags.h"
#include "hotset/measure/tune_record.h"
#include "hotset/measure/tune_report.h"
#include "hotset/measure/tune_run.h"
#include "hotset/measure/tune_settings.h"

namespace hotset::cli {

Status tune_command(const measure::TuneCommandOptions& options) {
  if (!options.apply_path.empty() && !options.server.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--apply: found a server to tune, expected a model: a server reads no "
                      "configuration of hotset's");
  }
  const InterruptScope interrupt;
  auto outcome = measure::run_tune(options, [](const std::string& what) { log_info("{}", what); });
  if (!outcome) {
    if (outcome.error().code != ErrorCode::kCancelled) return std::unexpected(outcome.error());
    return make_error(
        ErrorCode::kCancelled,
        "interrupted: what was measured is kept, the same command goes on from there");
  }
  if (!options.html_path.empty()) {
    HOTSET_RETURN_IF_ERROR(write_text_file(options.html_path, measure::tune_html(*outcome)));
  }
  if (!options.apply_path.empty() && outcome->chosen) {
    HOTSET_RETURN_IF_ERROR(
        write_text_file(options.apply_path, measure::tune_config(*outcome, options)));
    log_info("written: {}; use it with: hotset run --config {} -p \"...\"", options.apply_path,
             options.apply_path);
  }
  const std::string text =
      options.format == measure::TuneFormat::kJson       ? measure::tune_json(*outcome)
      : options.format == measure::TuneFormat::kMarkdown ? measure::tune_markdown(*outcome)
                                                         : measure::tune_text(*outcome);
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) return stdout_error();
  if (outcome->chosen) return {};
  return make_error(ErrorCode::kInvalidArgument, "nothing is recommended: {}", outcome->why_not);
}

void add_tune_command(Command& program) {
  auto o = std::make_shared<measure::TuneCommandOptions>();
  o->model.engine.load.load_mode = engine::LoadMode::kAuto;
  Command command = program.add_command(
      "tune",
      "Measure which cache size, CPU share, threads and load mode are best on this machine");
  add_model_options(
      command, o->model,
      {"moe-cache-mib", "moe-cache-cpu-share", "stats", "moe-cache-trace", "profile"});
  command.flag("model").required(false);
  command.flag("threads").help("CPU threads; 0: as many as turn out to be enough");
  command.flag("load-mode")
      .help(
          "Where the experts are, in the file (mmap) or copied into locked RAM (pinned); auto: "
          "both are compared");
  command.add(measure::tune_settings(), *o);
  command.add_choices<measure::TuneFormat>(
      o->format, {{"markdown", measure::TuneFormat::kMarkdown, "Print Markdown"},
                  {"json", measure::TuneFormat::kJson, "Print JSON"}});
  command.add_argument("SERVER",
                       "Behind --: a server to tune instead, and its arguments (docs/tuning.md)",
                       o->server);
  command.require([o] {
    return std::string(o->server.empty() && o->model.model.empty()
                           ? "one of --model FILE and -- SERVER ARGS..."
                           : "");
  });
  command.on_run([o] {
    const Status status = tune_command(*o);
    const int exit_status = report(status);
    const bool was_interrupted = !status && status.error().code == ErrorCode::kCancelled;
    return was_interrupted ? kInterruptedExitStatus : exit_status;
  });
}

}  // namespace hotset::cli
