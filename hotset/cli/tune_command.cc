#include "hotset/cli/tune_command.h"

#include <CLI/CLI.hpp>
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

void add_tune_command(CLI::App& app, int& exit_status) {
  auto o = std::make_shared<measure::TuneCommandOptions>();
  o->model.load_mode = "auto";
  CLI::App* command = app.add_subcommand(
      "tune",
      "Measure which cache size, CPU share, threads and load mode are best on this machine");
  add_model_options(*command, o->model);
  for (const char* name :
       {"--moe-cache-mib", "--moe-cache-cpu-share", "--stats", "--moe-cache-trace", "--profile"}) {
    command->remove_option(command->get_option(name));
  }
  command->get_option("--model")->required(false);
  command->get_option("--threads")->description("CPU threads; 0: as many as turn out to be enough");
  command->get_option("--load-mode")
      ->description(
          "Where the experts are, in the file (mmap) or copied into locked RAM (pinned); auto: "
          "both are compared");
  command
      ->add_option("--prompts", o->prompts_file,
                   "Your prompts, one a line or a JSON array of strings; absent: a text")
      ->type_name("FILE");
  command->add_option("-n,--n-gen", o->n_tokens, "Tokens of each run that count")
      ->check(CLI::Range(16, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--warm-up", o->n_warm_up,
                   "Tokens of each run before them, which fill the cache")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--max-mib", o->max_mib,
                   "Most device memory for experts, MiB; absent: what is left")
      ->check(CLI::Range(1, 1 << 26));
  command->add_flag("--fresh", o->fresh,
                    "Measure again, although there are runs of the same command");
  command
      ->add_option("--records", o->record_folder,
                   "Folder of earlier runs; absent: hotset/tune in XDG_CACHE_HOME or ~/.cache")
      ->type_name("FOLDER");
  command
      ->add_option("--apply", o->apply_path, "Write the recommendation, for `hotset run --config`")
      ->type_name("FILE");
  command->add_option("--html", o->html_path, "Write a report with curves")->type_name("FILE");
  command
      ->add_option("--server-timeout", o->server_timeout_s,
                   "Seconds that a server may take to be ready, and to answer")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  const auto format = [&](const char* name, measure::TuneFormat value, const char* help) {
    return command->add_flag_callback(name, [o, value] { o->format = value; }, help);
  };
  CLI::Option* markdown = format("--markdown", measure::TuneFormat::kMarkdown, "Print Markdown");
  format("--json", measure::TuneFormat::kJson, "Print JSON")->excludes(markdown);
  command->add_option("SERVER", o->server,
                      "Behind --: a server to tune instead, and its arguments (docs/tuning.md)");
  command->callback([o, &exit_status] {
    if (o->server.empty() && o->model.model.empty()) {
      throw CLI::RequiredError("one of --model FILE and -- SERVER ARGS...");
    }
    const Status status = tune_command(*o);
    exit_status = report(status);
    if (!status && status.error().code == ErrorCode::kCancelled)
      exit_status = kInterruptedExitStatus;
  });
}

}  // namespace hotset::cli
