#include "hotset/measure/tune_settings.h"

namespace hotset::measure {
namespace {

using Options = TuneCommandOptions;

Settings<Options> make_settings() {
  return {
      setting<Options>(
          {.name = "prompts",
           .help = "Your prompts, one a line or a JSON array of strings; absent: a text",
           .value_name = "FILE"},
          [](auto& o) -> auto& { return o.prompts_file; }),
      setting<Options>({.name = "n-gen",
                        .letters = "n",
                        .help = "Tokens of each run that count",
                        .range = SettingRange{16, 1 << 20}},
                       [](auto& o) -> auto& { return o.n_tokens; }),
      setting<Options>({.name = "warm-up",
                        .help = "Tokens of each run before them, which fill the cache",
                        .range = SettingRange{0, 1 << 20}},
                       [](auto& o) -> auto& { return o.n_warm_up; }),
      setting<Options>({.name = "max-mib",
                        .help = "Most device memory for experts, MiB; auto: what is left",
                        .unit = "MiB",
                        .range = SettingRange{1, kMostMib},
                        .auto_words = {"auto"}},
                       [](auto& o) -> auto& { return o.max_mib; }),
      setting<Options>(
          {.name = "fresh", .help = "Measure again, although there are runs of the same command"},
          [](auto& o) -> auto& { return o.fresh; }),
      setting<Options>(
          {.name = "records",
           .help = "Folder of earlier runs; absent: hotset/tune in XDG_CACHE_HOME or ~/.cache",
           .value_name = "FOLDER"},
          [](auto& o) -> auto& { return o.record_folder; }),
      setting<Options>({.name = "apply",
                        .help = "Write the recommendation, for `hotset run --config`",
                        .value_name = "FILE"},
                       [](auto& o) -> auto& { return o.apply_path; }),
      setting<Options>({.name = "html", .help = "Write a report with curves", .value_name = "FILE"},
                       [](auto& o) -> auto& { return o.html_path; }),
      setting<Options>({.name = "server-timeout",
                        .help = "Seconds that a server may take to be ready, and to answer",
                        .unit = "SECONDS",
                        .range = SettingRange{1, 86400}},
                       [](auto& o) -> auto& { return o.server_timeout_s; }),
  };
}

}  // namespace

const Settings<TuneCommandOptions>& tune_settings() {
  static const Settings<Options> table = make_settings();
  return table;
}

}  // namespace hotset::measure
