#include "hotset/engine/experts/cache_settings.h"

#include <fmt/core.h>

#include <string>

namespace hotset::engine {
namespace {

using Options = CacheOptions;

// Whether a cache can be run by this policy, which sees only what has happened.
bool is_online(const policy::PolicyTraits& traits) {
  return !traits.needs_future && !traits.needs_profile && !traits.needs_all_slots;
}

// With commas between them.
std::string online_policies() {
  std::string names;
  for (const std::string_view name : policy::policy_names()) {
    const auto traits = policy::policy_traits(name);
    if (traits && is_online(*traits)) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return names;
}

SettingResult<void> check_policy(std::string_view name) {
  const auto traits = policy::policy_traits(name);
  if (traits && is_online(*traits)) return {};
  SettingError error{.expected = "one of: " + online_policies()};
  // A half-life that is none.
  if (!traits && traits.error().code != ErrorCode::kNotFound) error.detail = traits.error().message;
  return std::unexpected(std::move(error));
}

Settings<Options> make_settings() {
  return {
      setting<Options>(
          {.name = "moe-cache-cpu-share",
           .help = "Part of the missing experts that the CPU computes instead of their being "
                   "uploaded, 0 to 1; auto: decided for each lookup by what the lanes take",
           .range = SettingRange{0, 1},
           .auto_words = {"auto"}},
          [](auto& o) -> auto& { return o.rules.cpu_share; }),
      setting<Options>(
          {.name = "moe-cache-batch",
           .help = "Tokens computed together above which missing experts are streamed, so that "
                   "the cache is used but not changed, except that its empty slots are filled; "
                   "auto: decided for each lookup by what the lanes take, or 32 where the share "
                   "is fixed",
           .range = SettingRange{1, lanes::kMaxCacheBatch},
           .auto_words = {"auto"}},
          [](auto& o) -> auto& { return o.rules.cache_batch; }),
      setting<Options>(
          {.name = "moe-cache-policy",
           .help = fmt::format("Which experts stay: {}; crf takes a half-life in tokens: crf:8",
                               online_policies()),
           .check = check_policy},
          [](auto& o) -> auto& { return o.rules.policy; }),
      setting<Options>(
          {.name = "moe-cache-fills",
           .help = "Copy experts that the CPU computed in the background where they are worth "
                   "more than others in the cache: on or off",
           .words = {"on", "off"}},
          [](auto& o) -> auto& { return o.rules.fills; }),
      word_setting<Options, std::optional<lanes::LaneRates>>(
          {.name = "moe-cache-rates",
           .help = "What share auto and the fills go by: measured: this machine's rates; "
                   "typical: those that `hotset replay` assumes, so that a replay repeats every "
                   "decision"},
          {{"measured", std::nullopt}, {"typical", lanes::kTypicalRates}},
          [](auto& o) -> auto& { return o.rules.rates; }),
  };
}

}  // namespace

const Settings<CacheOptions>& cache_settings() {
  static const Settings<Options> table = make_settings();
  return table;
}

}  // namespace hotset::engine
