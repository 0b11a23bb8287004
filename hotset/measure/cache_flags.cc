#include "hotset/measure/cache_flags.h"

#include <charconv>
#include <string_view>

#include "hotset/policy/registry.h"

namespace hotset::measure {
namespace {

// Whether a cache can be run by this policy, which sees only what has happened.
bool is_online(const policy::PolicyTraits& traits) {
  return !traits.needs_future && !traits.needs_profile && !traits.needs_all_slots;
}

// A number from 0 to `max`; `or_word` is what else `flag` takes, for the message.
Result<double> parse_number(std::string_view flag, std::string_view text, double max,
                            std::string_view or_word) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= max) {
    return value;
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: found '{}', expected {}0 to {}", flag, text,
                    or_word, max);
}

Result<Bytes> parse_mib(std::string_view flag, std::string_view text, std::string_view or_word) {
  HOTSET_TRY(const double mib, parse_number(flag, text, lanes::kMaxCacheMib, or_word));
  return Bytes{static_cast<int64_t>(mib * (1 << 20))};
}

}  // namespace

std::string CacheFlags::default_cpu_share() { return "auto"; }

std::string online_policies() {
  std::string names;
  for (const std::string_view name : policy::policy_names()) {
    const auto traits = policy::policy_traits(name);
    if (traits && is_online(*traits)) names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  return names;
}

Result<std::optional<int32_t>> parse_batch(const std::string& text) {
  if (text == "auto") return std::nullopt;
  int32_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error == std::errc() && end == text.data() + text.size() && n >= 1 &&
      n <= lanes::kMaxCacheBatch) {
    return n;
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "--moe-cache-batch: found '{}', expected auto or 1 to {}", text,
                    lanes::kMaxCacheBatch);
}

Status check_policy(const std::string& name) {
  const auto traits = policy::policy_traits(name);
  if (traits && is_online(*traits)) return {};
  if (!traits && traits.error().code != ErrorCode::kNotFound)
    return std::unexpected(traits.error());
  return make_error(ErrorCode::kInvalidArgument, "found '{}', expected one of: {}", name,
                    online_policies());
}

Status apply(const CacheFlags& flags, engine::EngineOptions& options) {
  options.cache_bytes.reset();
  if (flags.mib != "auto") {
    HOTSET_TRY(options.cache_bytes, parse_mib("--moe-cache-mib", flags.mib, "auto or "));
  }
  if (!flags.headroom_mib.empty()) {
    HOTSET_TRY(options.headroom, parse_mib("--memory-headroom-mib", flags.headroom_mib, ""));
  }
  lanes::CacheRules& cache = options.cache.rules;
  cache.cpu_share.reset();
  if (flags.cpu_share != "auto") {
    HOTSET_TRY(cache.cpu_share,
               parse_number("--moe-cache-cpu-share", flags.cpu_share, 1, "auto or "));
  }
  HOTSET_TRY(cache.cache_batch, parse_batch(flags.batch));
  if (const Status status = check_policy(flags.policy); !status) {
    return add_context(status.error(), "--moe-cache-policy");
  }
  cache.policy = flags.policy;
  if (flags.fills != "on" && flags.fills != "off") {
    return make_error(ErrorCode::kInvalidArgument,
                      "--moe-cache-fills: found '{}', expected one of: on, off", flags.fills);
  }
  cache.fills = flags.fills == "on";
  if (flags.rates != "measured" && flags.rates != "typical") {
    return make_error(ErrorCode::kInvalidArgument,
                      "--moe-cache-rates: found '{}', expected one of: measured, typical",
                      flags.rates);
  }
  cache.rates.reset();
  if (flags.rates == "typical") cache.rates = lanes::kTypicalRates;
  return {};
}

}  // namespace hotset::measure
