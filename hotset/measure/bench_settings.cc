#include "hotset/measure/bench_settings.h"

#include <string>
#include <string_view>
#include <utility>

#include "hotset/engine/run/engine_settings.h"

namespace hotset::measure {
namespace {

using Options = BenchOptions;

SettingInfo as_list(SettingInfo info) {
  info.value_name = "LIST";
  info.unit.clear();
  return info;
}

// What one value of the list is to the engine.
SettingInfo of_engine(std::string_view name, std::string help) {
  return as_list(find_setting(engine::engine_settings(), name).info.with_help(std::move(help)));
}

SettingInfo tokens(const char* name, const char* letter, const char* help) {
  return as_list(
      {.name = name, .letters = letter, .help = help, .range = SettingRange{0, 1 << 24}});
}

Settings<Options> make_settings() {
  return {
      setting<Options>(
          as_list({.name = "device", .help = "Devices, as `hotset run` takes them; none: the CPU"}),
          [](auto& o) -> auto& { return o.devices; }),
      setting<Options>(of_engine("threads", "CPU threads; 0: one per core that may be used"),
                       [](auto& o) -> auto& { return o.threads; }),
      setting<Options>(of_engine("ubatch-size", "-ub: tokens of a prompt computed together"),
                       [](auto& o) -> auto& { return o.ubatches; }),
      setting<Options>(of_engine("moe-cache-mib", "Device memory for experts, MiB, auto, or 0"),
                       [](auto& o) -> auto& { return o.cache_mib; }),
      setting<Options>(
          of_engine("moe-cache-cpu-share",
                    "Part of the missing experts that the CPU computes, 0 to 1, or auto"),
          [](auto& o) -> auto& { return o.cpu_shares; }),
      setting<Options>(tokens("n-prompt", "p", "Lengths of prompts to time; 0: none"),
                       [](auto& o) -> auto& { return o.n_prompts; }),
      setting<Options>(tokens("n-gen", "n", "Numbers of generated tokens to time; 0: none"),
                       [](auto& o) -> auto& { return o.n_gens; }),
      setting<Options>(tokens("depth", "d", "Tokens in the context before those timed"),
                       [](auto& o) -> auto& { return o.depths; }),
      setting<Options>(as_list({.name = "parallel",
                                .help = "Sequences computed together",
                                .range = SettingRange{1, engine::kMaxSequences}}),
                       [](auto& o) -> auto& { return o.n_parallels; }),
      setting<Options>({.name = "repetitions",
                        .letters = "r",
                        .help = "Measurements of each test",
                        .range = SettingRange{1, 1000}},
                       [](auto& o) -> auto& { return o.n_repetitions; }),
      setting<Options>({.name = "text",
                        .help = "Text to compute instead of the built-in one",
                        .value_name = "FILE"},
                       [](auto& o) -> auto& { return o.tokens.text_path; }),
      setting<Options>({.name = "random-tokens",
                        .help = "Compute uniformly random tokens: they route unlike text"},
                       [](auto& o) -> auto& { return o.tokens.random; }),
      setting<Options>({.name = "seed", .letters = "s", .help = "Seed of the random tokens"},
                       [](auto& o) -> auto& { return o.tokens.random_seed; }),
  };
}

}  // namespace

const Settings<BenchOptions>& bench_settings() {
  static const Settings<Options> table = make_settings();
  return table;
}

}  // namespace hotset::measure
