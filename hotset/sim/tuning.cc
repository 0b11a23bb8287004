#include "hotset/sim/tuning.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

#include "hotset/sim/reference_rules.h"
#include "hotset/sim/trace_cache.h"

namespace hotset::sim {
namespace {

Status check(const TuneOptions& o) {
  if (o.table_sizes.empty() || o.table_shares.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tune: found {} cache sizes and {} shares, expected at least one of each",
                      o.table_sizes.size(), o.table_shares.size());
  }
  for (size_t i = 0; i < o.runs.size(); ++i) {
    const TuneRun& run = o.runs[i];
    for (const auto& [name, value, most] :
         {std::tuple{"ms_per_token", run.ms_per_token, 1e12}, std::tuple{"up_gib", run.up_gib, 1e9},
          std::tuple{"cpu_gib", run.cpu_gib, 1e9}, std::tuple{"hit_rate", run.hit_rate, 1.0},
          std::tuple{"cpu share", run.share.value_or(0), 1.0}}) {
      if (value >= 0 && value <= most) continue;
      return make_error(ErrorCode::kInvalidArgument, "run {}: {}: found {}, expected 0 to {:g}", i,
                        name, value, most);
    }
  }
  return {};
}

// The line through the runs with share auto, each weighted like the others by its relative error.
// With one size, or runs that would make a token faster the more it misses, the slope is that of
// the time model with every miss on its cheaper lane.
std::optional<AutoLine> fit_auto(const std::vector<TuneRun>& runs, const sim::TimeModel& model) {
  double n = 0, x1 = 0, x2 = 0, y = 0, xy = 0;
  std::vector<std::pair<double, double>> points;  // GiB of misses, ms
  for (const TuneRun& run : runs) {
    if (run.share || !(run.ms_per_token > 0)) continue;
    const double x = run.up_gib + run.cpu_gib;
    const double w = 1 / (run.ms_per_token * run.ms_per_token);
    n += w;
    x1 += w * x;
    x2 += w * x * x;
    y += w * run.ms_per_token;
    xy += w * x * run.ms_per_token;
    points.emplace_back(x, run.ms_per_token);
  }
  if (points.empty()) return std::nullopt;
  AutoLine line;
  const double determinant = n * x2 - x1 * x1;
  const bool has_slope = determinant > 1e-6 * n * x2;
  if (has_slope) line.ms_per_gib = (n * xy - x1 * y) / determinant;
  if (!has_slope || line.ms_per_gib < 0) {
    line.ms_per_gib = std::max(0.0, std::min(model.up_ms, model.cpu_ms));
  }
  line.base_ms = (y - line.ms_per_gib * x1) / n;
  for (const auto& [x, ms] : points) {
    line.worst_error =
        std::max(line.worst_error, std::abs(line.base_ms + line.ms_per_gib * x - ms) / ms);
  }
  return line;
}

class Tuner {
 public:
  Tuner(const TuneOptions& options, trace::TraceHeader header)
      : o_(options), header_(std::move(header)) {}

  Result<TuneResult> run();

 private:
  Status fit();
  Result<TunePrediction> predict(Bytes cache, lanes::CpuShare share);
  Status fill_table();
  void fill_layers();
  void recommend();
  bool predicts(lanes::CpuShare share) const { return share || result_.auto_line; }
  void step() {
    if (o_.progress) o_.progress(++n_done_ / n_steps_);
  }

  const TuneOptions& o_;
  trace::TraceHeader header_;
  TuneResult result_;
  std::vector<Bytes> sizes_;  // of the table
  bool any_left_out_ = false;
  double n_done_ = 0;
  double n_steps_ = 1;
};

Status Tuner::fit() {
  for (const TuneRun& run : o_.runs) {
    if (!run.share) continue;
    result_.timed.push_back({.up_gib = run.up_gib,
                             .cpu_gib = run.cpu_gib,
                             .share = *run.share,
                             .ms_per_token = run.ms_per_token});
  }
  auto fitted = sim::fit_time_model(result_.timed);
  if (!fitted) {
    if (fitted.error().code != ErrorCode::kInvalidArgument) {
      return std::unexpected(std::move(fitted).error());
    }
    result_.why_not = "the runs do not tell the time model: " + fitted.error().message;
    return {};
  }
  result_.fit = *std::move(fitted);
  result_.auto_line = fit_auto(o_.runs, result_.fit->model);
  const sim::TimeModelFit& fit = *result_.fit;
  if (!fit.is_physical) {
    result_.why_not = "the fit is not physical: " + fit.why_unphysical;
  } else if (fit.worst_error > o_.max_error) {
    const sim::TimedRun& worst = result_.timed[fit.worst_run];
    result_.why_not = fmt::format(
        "the runs do not fit one time model: run {} (share {:g}) took {:.3f} ms per token, the fit "
        "says {:.3f}, {:.1f}% off; expected at most {:.0f}%. Something else was using the machine, "
        "or its speed changed: measure again when it is quiet",
        fit.worst_run, worst.share, worst.ms_per_token,
        worst.ms_per_token * (1 + fit.relative_error[fit.worst_run]), 100 * fit.worst_error,
        100 * o_.max_error);
  }
  return {};
}

Result<TunePrediction> Tuner::predict(Bytes cache, lanes::CpuShare share) {
  TunePrediction prediction{.cache = cache, .share = share};
  HOTSET_TRY(const ReplayResult replayed,
             replay_setting(o_, header_, cache, share, &prediction.slots));
  // The reference's cache has no part in some lookups, whose bytes nobody counts.
  any_left_out_ |= o_.counted.compat_zero_slots && replayed.bypassed_lookups > 0;
  prediction.hit_rate = replayed.hit_rate();
  prediction.up_gib = replayed.upload_gib_per_token() - replayed.fill_gib_per_token();
  prediction.cpu_gib = replayed.cpu_gib_per_token();
  prediction.ms_per_token =
      share ? result_.fit->model.ms_per_token(prediction.up_gib, prediction.cpu_gib, *share)
            : result_.auto_line->base_ms +
                  result_.auto_line->ms_per_gib * (prediction.up_gib + prediction.cpu_gib);
  step();
  return prediction;
}

Status Tuner::fill_table() {
  for (const TuneRun& run : o_.runs) {
    ReplayCheck check;
    if (predicts(run.share)) {
      HOTSET_TRY(const TunePrediction prediction, predict(run.cache, run.share));
      check = {.replayed_hit_rate = prediction.hit_rate,
               .predicted_ms_per_token = prediction.ms_per_token};
    }
    result_.checks.push_back(check);
  }
  for (const Bytes size : o_.table_sizes) {
    std::vector<TunePrediction> row;
    any_left_out_ = false;
    for (const lanes::CpuShare share : o_.table_shares) {
      if (!predicts(share)) continue;
      HOTSET_TRY(TunePrediction prediction, predict(size, share));
      row.push_back(std::move(prediction));
    }
    if (any_left_out_) continue;
    sizes_.push_back(size);
    std::ranges::move(row, std::back_inserter(result_.table));
  }
  return {};
}

void Tuner::fill_layers() {
  // Layers by what they take, the smallest first, which is most layers for the memory.
  struct Layer {
    Bytes whole;
    double read_gib = 0;  // per token
  };
  std::vector<Layer> layers;
  double all_gib = 0;
  for (const trace::TraceGroup& group : header_.groups) {
    const double read_gib = (group.expert_bytes() * header_.experts_per_token).gib();
    for (size_t i = 0; i < group.layers.size(); ++i) {
      layers.push_back({group.expert_bytes() * group.n_expert, read_gib});
      all_gib += read_gib;
    }
  }
  std::ranges::sort(layers, {}, &Layer::whole);
  for (const Bytes size : sizes_) {
    WholeLayers whole{.cache = size};
    Bytes left = size;
    double resident_gib = 0;
    for (const Layer& layer : layers) {
      if (layer.whole > left) break;
      left -= layer.whole;
      resident_gib += layer.read_gib;
      ++whole.n_layers;
    }
    whole.hit_rate = all_gib > 0 ? resident_gib / all_gib : 0;
    whole.ms_per_token = result_.fit->model.ms_per_token(0, all_gib - resident_gib, 1);
    result_.layers.push_back(whole);
  }
}

void Tuner::recommend() {
  const auto& table = result_.table;
  const auto fastest = std::ranges::min_element(table, {}, &TunePrediction::ms_per_token);
  if (fastest == table.end()) return;
  if (o_.no_cache_ms_per_token > 0 && o_.no_cache_ms_per_token < fastest->ms_per_token) {
    result_.no_cache_is_faster = true;
    result_.why_not = fmt::format(
        "without a cache a token takes {:.3f} ms, with the best one {:.3f}: leave it off "
        "(--moe-cache-mib 0)",
        o_.no_cache_ms_per_token, fastest->ms_per_token);
    return;
  }
  // The CPU is left to others where that costs little: the lowest share of those nearly as fast,
  // with as much cache as the fastest has. Auto has no share; it is taken where it is the fastest.
  size_t best = static_cast<size_t>(fastest - table.begin());
  for (size_t i = 0; i < table.size() && table[best].share; ++i) {
    const bool is_near = table[i].ms_per_token <= fastest->ms_per_token * (1 + o_.share_tolerance);
    if (table[i].cache == fastest->cache && table[i].share && is_near &&
        *table[i].share < *table[best].share) {
      best = i;
    }
  }
  result_.recommended = best;
}

Result<TuneResult> Tuner::run() {
  n_steps_ = static_cast<double>(o_.table_sizes.size() * o_.table_shares.size() + o_.runs.size());
  HOTSET_RETURN_IF_ERROR(fit());
  if (!result_.fit) return std::move(result_);
  HOTSET_RETURN_IF_ERROR(fill_table());
  fill_layers();
  if (result_.why_not.empty()) recommend();
  return std::move(result_);
}

}  // namespace

Result<ReplayResult> replay_setting(const TuneOptions& o, const trace::TraceHeader& header,
                                    Bytes cache, lanes::CpuShare share,
                                    std::vector<int64_t>* slots) {
  const auto k = static_cast<int32_t>(header.experts_per_token);
  const int32_t n_zero = o.counted.compat_zero_slots && share ? reference_zero_slots(*share, k) : 0;
  HOTSET_TRY(std::vector<int64_t> found, slots_for_trace(header, cache, n_zero));
  if (slots != nullptr) *slots = found;
  ReplayOptions options{
      .rules = o.rules, .slots = std::move(found), .counted = o.counted, .cancelled = o.cancelled};
  options.rules.cpu_share = share;
  return replay(o.trace, options);
}

Result<TuneResult> tune(const TuneOptions& options) {
  HOTSET_RETURN_IF_ERROR(check(options));
  HOTSET_TRY(const trace::TraceReader reader, options.trace());
  return Tuner(options, reader.header()).run();
}

Bytes round_cache_size(Bytes size) {
  const int64_t unit = size >= mib(16) ? mib(1).count : mib(1).count / 64;
  return {size.count / unit * unit};
}

std::vector<Bytes> tune_sizes(Bytes least, Bytes most, size_t n, const std::vector<Bytes>& also) {
  std::vector<Bytes> sizes = also;
  const double ratio = static_cast<double>(most.count) / static_cast<double>(least.count);
  for (size_t i = 0; i < n; ++i) {
    const double part = n > 1 ? static_cast<double>(i) / static_cast<double>(n - 1) : 1;
    const Bytes size{
        static_cast<int64_t>(static_cast<double>(least.count) * std::pow(ratio, part) + 0.5)};
    sizes.push_back(i + 1 == n ? most : i == 0 ? least : round_cache_size(size));
  }
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  std::erase_if(sizes, [&](Bytes size) { return size > most || size < Bytes{1}; });
  return sizes;
}

}  // namespace hotset::sim
