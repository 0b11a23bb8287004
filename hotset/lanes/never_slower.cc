#include "hotset/lanes/never_slower.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "hotset/lanes/lane_costs.h"

namespace hotset::lanes {
namespace {

bool is_token_time(double us) { return us > 0 && us <= kMaxCost; }

Status check_time(const char* name, double us) {
  if (is_token_time(us)) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected above 0 and at most {:g}",
                    name, us, kMaxCost);
}

// Counts and ratios: large enough for any use, and twice it is still an int.
constexpr double kMaxOption = 1e9;

Status check_at_least(const char* name, double value, double least) {
  if (value >= least && value <= kMaxOption) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected {} to {:g}", name, value,
                    least, kMaxOption);
}

double ms(double us) { return us / 1000; }

}  // namespace

Result<BaselineChoice> choose_baseline(const BaselineTimes& times) {
  HOTSET_RETURN_IF_ERROR(check_time("plain_us", times.plain_us));
  HOTSET_RETURN_IF_ERROR(check_time("cache_us", times.cache_us));
  BaselineChoice choice = {
      .baseline = Baseline::kPlain, .baseline_us = times.plain_us, .cache_us = times.cache_us};
  if (times.repacked_us) {
    HOTSET_RETURN_IF_ERROR(check_time("repacked_us", *times.repacked_us));
    if (*times.repacked_us < times.plain_us) {
      choice.baseline = Baseline::kRepacked;
      choice.baseline_us = *times.repacked_us;
    }
  }
  choice.use_cache = choice.cache_us < choice.baseline_us;
  return choice;
}

std::string describe(const BaselineChoice& choice) {
  const char* name = choice.baseline == Baseline::kRepacked ? "repacked" : "plain";
  if (choice.use_cache) {
    return fmt::format("cache: {:.3f} ms a token predicted, {:.3f} ms with {} experts on the CPU",
                       ms(choice.cache_us), ms(choice.baseline_us), name);
  }
  return fmt::format(
      "no cache: {:.3f} ms a token with {} experts on the CPU, {:.3f} ms predicted with the cache",
      ms(choice.baseline_us), name, ms(choice.cache_us));
}

std::string describe(const CacheUseChange& change) {
  const bool is_more = change.to < change.from;
  const bool is_by_probes = change.from == CacheUse::kNone;
  const char* what = change.from == CacheUse::kFull ? "uploads and fills stopped"
                     : change.to == CacheUse::kFull ? "uploads and fills resumed"
                     : is_more                      ? "resident experts are used again"
                                                    : "resident experts are left unused";
  const char* how = change.to == CacheUse::kFull ? "predicted with them"
                    : is_by_probes               ? "with them"
                                                 : "measured with them";
  const char* by = is_by_probes ? "probe" : "window";
  return fmt::format(
      "{} after {} tokens: {:.3f} ms a token {}, {:.3f} ms without a cache ({} {}{})", what,
      change.token, ms(change.cache_us), how, ms(change.no_cache_us), change.n_asking, by,
      change.n_asking == 1 ? "" : "s in a row");
}

NeverSlower::NeverSlower(const NeverSlowerOptions& options)
    : options_(options),
      correction_(options.probe_half_life, 1, 1),
      probe_spacing_(options.max_probe_share > 0
                         ? static_cast<int64_t>(std::ceil(1 / options.max_probe_share - 1e-9))
                         : std::numeric_limits<int64_t>::max()),
      resume_{.least = options.windows_to_resume, .most = options.max_windows_to_resume},
      return_{.least = options.probes_to_return, .most = options.max_probes_to_return} {}

Result<NeverSlower> NeverSlower::create(const NeverSlowerOptions& options) {
  HOTSET_RETURN_IF_ERROR(check_at_least("window_tokens", options.window_tokens, 1));
  HOTSET_RETURN_IF_ERROR(check_at_least("windows_to_stop", options.windows_to_stop, 1));
  HOTSET_RETURN_IF_ERROR(check_at_least("windows_to_resume", options.windows_to_resume, 1));
  HOTSET_RETURN_IF_ERROR(check_at_least("max_windows_to_resume", options.max_windows_to_resume,
                                        options.windows_to_resume));
  HOTSET_RETURN_IF_ERROR(check_at_least("probes_to_return", options.probes_to_return, 1));
  HOTSET_RETURN_IF_ERROR(check_at_least("max_probes_to_return", options.max_probes_to_return,
                                        options.probes_to_return));
  HOTSET_RETURN_IF_ERROR(check_at_least("stop_ratio", options.stop_ratio, 1));
  if (!(options.resume_ratio > 0 && options.resume_ratio <= 1)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "resume_ratio: found {}, expected above 0 and at most 1",
                      options.resume_ratio);
  }
  // A share below one probe in 10^12 tokens is none, and must be asked for as 0.
  if (!(options.max_probe_share == 0 ||
        (options.max_probe_share >= 1e-12 && options.max_probe_share <= 1))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "max_probe_share: found {}, expected 0 or 1e-12 to 1",
                      options.max_probe_share);
  }
  if (!(options.probe_half_life > 0 && options.probe_half_life <= kMaxCost)) {
    return make_error(ErrorCode::kInvalidArgument, "probe_half_life: found {}, expected above 0",
                      options.probe_half_life);
  }
  return NeverSlower(options);
}

bool NeverSlower::wants_probe(double no_cache_us) const {
  if (!is_token_time(no_cache_us) || n_since_probe_ + 1 < probe_spacing_) return false;
  const double probe_us =
      no_cache_us * correction_.mean() * (use_ == CacheUse::kNone ? hits_ratio_ : 1);
  const double share = options_.max_probe_share;
  // Of the time since the last probe, so that a budget saved up over a long run is not spent in a
  // burst; and of all the time, so that probes slower than predicted are paid back.
  return probe_us <= share * (us_since_probe_ + probe_us) &&
         probe_us_ + probe_us <= share * (total_us_ + probe_us);
}

Result<std::optional<CacheUseChange>> NeverSlower::observe(const TokenTimes& token) {
  HOTSET_RETURN_IF_ERROR(check_time("token_us", token.token_us));
  HOTSET_RETURN_IF_ERROR(check_time("no_cache_us", token.no_cache_us));
  HOTSET_RETURN_IF_ERROR(check_time("cache_us", token.cache_us));

  ++n_tokens_;
  total_us_ += token.token_us;
  ++window_.n;
  if (token.is_probe) {
    ++n_probes_;
    probe_us_ += token.token_us;
    n_since_probe_ = 0;
    us_since_probe_ = 0;
    if (auto change = take_probe(token)) return change;
  } else {
    ++n_since_probe_;
    us_since_probe_ += token.token_us;
    ++window_.n_normal;
    window_.token_us += token.token_us;
    window_.no_cache_us += token.no_cache_us;
    window_.cache_us += token.cache_us;
  }
  if (window_.n < options_.window_tokens) return std::nullopt;
  return close_window();
}

void NeverSlower::correct(double measured_us, double predicted_us) {
  // A prediction that is off by more than this is no prediction; the mean must survive it.
  constexpr double kMaxCorrection = 100;
  correction_.observe(std::clamp(measured_us / predicted_us, 1 / kMaxCorrection, kMaxCorrection));
}

std::optional<CacheUseChange> NeverSlower::take_probe(const TokenTimes& token) {
  if (use_ != CacheUse::kNone) {
    correct(token.token_us, token.no_cache_us);
    return std::nullopt;
  }
  const double cache_us = std::min(token.token_us, token.cache_us);
  const double no_cache_us = token.no_cache_us * correction_.mean();
  hits_ratio_ = token.token_us / no_cache_us;
  n_asking_more_ = cache_us < options_.resume_ratio * no_cache_us ? n_asking_more_ + 1 : 0;
  if (n_asking_more_ < return_.needed) return std::nullopt;
  return_.windows_since_try = 0;
  return change_to(CacheUse::kHits, cache_us, no_cache_us, n_asking_more_);
}

CacheUseChange NeverSlower::change_to(CacheUse use, double cache_us, double no_cache_us,
                                      int n_asking) {
  const CacheUseChange change = {.from = use_,
                                 .to = use,
                                 .token = n_tokens_,
                                 .cache_us = cache_us,
                                 .no_cache_us = no_cache_us,
                                 .n_asking = n_asking};
  use_ = use;
  n_asking_less_ = n_asking_more_ = 0;
  // What was used before says nothing about now.
  window_ = {};
  return change;
}

std::optional<CacheUseChange> NeverSlower::close_window() {
  const Window window = std::exchange(window_, {});
  if (window.n_normal == 0) return std::nullopt;  // probes only: says nothing
  if (use_ == CacheUse::kNone) {
    correct(window.token_us, window.no_cache_us);
    return std::nullopt;
  }
  const double measured_us = window.token_us / window.n_normal;
  const double cache_us = window.cache_us / window.n_normal;
  const double no_cache_us = window.no_cache_us * correction_.mean() / window.n_normal;
  for (Patience* patience : {&resume_, &return_}) {
    if (patience->windows_since_try) ++*patience->windows_since_try;
  }

  n_asking_less_ = measured_us > options_.stop_ratio * no_cache_us ? n_asking_less_ + 1 : 0;
  const bool stops = n_asking_less_ >= options_.windows_to_stop;
  if (use_ == CacheUse::kFull) {
    if (!stops) return std::nullopt;
    resume_.undone(int64_t{2} * options_.windows_to_stop);
    return change_to(CacheUse::kHits, measured_us, no_cache_us, n_asking_less_);
  }

  n_asking_more_ = cache_us < options_.resume_ratio * no_cache_us ? n_asking_more_ + 1 : 0;
  if (n_asking_more_ >= resume_.needed) {
    resume_.windows_since_try = 0;
    return change_to(CacheUse::kFull, cache_us, no_cache_us, n_asking_more_);
  }
  if (!stops) return std::nullopt;
  return_.undone(int64_t{4} * options_.windows_to_stop);
  hits_ratio_ = measured_us / no_cache_us;
  return change_to(CacheUse::kNone, measured_us, no_cache_us, n_asking_less_);
}

}  // namespace hotset::lanes
