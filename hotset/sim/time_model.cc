#include "hotset/sim/time_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>

namespace hotset::sim {
namespace {

// Terms of the model, in this order: base, up, cpu, split, overlap.
constexpr size_t kMaxTerms = 5;
constexpr size_t kTermsWithoutOverlap = 4;
constexpr std::array<const char*, kMaxTerms> kTermNames = {"base", "up_ms", "cpu_ms", "split_ms",
                                                           "overlap"};

// The runs determine a term if at least this part of its column is independent of the others: below
// it a timing error of 0.1% would move the term by all of its size.
constexpr double kMinIndependent = 1e-3;

// A column of the system, one number per run.
using Column = std::vector<double>;

double dot(const Column& a, const Column& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Takes from `column` what lies along the orthonormal `basis`; twice, because once leaves rounding
// errors of the size of what was taken (Giraud, Langou, Rozloznik, "The loss of orthogonality in
// the Gram-Schmidt orthogonalization process", 2005).
void remove_projection(Column& column, std::span<const Column> basis) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const Column& q : basis) {
      const double along = dot(q, column);
      for (size_t i = 0; i < column.size(); ++i) column[i] -= along * q[i];
    }
  }
}

void normalise(Column& column) {
  const double norm = std::sqrt(dot(column, column));
  if (norm <= 0) return;
  for (double& value : column) value /= norm;
}

// Part of columns[j], 0 to 1, that is independent of the other columns.
double independent_part(std::span<const Column> columns, size_t j) {
  std::vector<Column> basis;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (i == j) continue;
    Column q = columns[i];
    normalise(q);
    remove_projection(q, basis);
    // What is left of a dependent column is rounding error, and no direction.
    if (std::sqrt(dot(q, q)) < 1e-12) continue;
    normalise(q);
    basis.push_back(std::move(q));
  }
  Column rest = columns[j];
  normalise(rest);
  remove_projection(rest, basis);
  return std::sqrt(dot(rest, rest));
}

// Minimises |columns * x - target|. Requires: independent columns.
std::vector<double> least_squares(std::span<const Column> columns, Column target) {
  const size_t n = columns.size();
  std::vector<Column> basis;
  std::vector<std::vector<double>> r(n, std::vector<double>(n));
  for (size_t j = 0; j < n; ++j) {
    Column q = columns[j];
    remove_projection(q, basis);
    normalise(q);
    basis.push_back(std::move(q));
    for (size_t i = 0; i <= j; ++i) r[i][j] = dot(basis[i], columns[j]);
  }
  std::vector<double> x(n);
  for (size_t j = n; j-- > 0;) {
    double rest = dot(basis[j], target);
    for (size_t i = j + 1; i < n; ++i) rest -= r[j][i] * x[i];
    x[j] = rest / r[j][j];
  }
  return x;
}

// The system of relative errors: each run's row divided by its measured time, so that the target is
// all ones.
std::vector<Column> relative_columns(std::span<const TimedRun> runs) {
  std::vector<Column> columns(kMaxTerms);
  for (const TimedRun& run : runs) {
    const std::array<double, kMaxTerms> terms = {
        1, run.up_gib, run.cpu_gib, run.share > 0 ? 1.0 : 0.0, std::min(run.up_gib, run.cpu_gib)};
    for (size_t j = 0; j < kMaxTerms; ++j) columns[j].push_back(terms[j] / run.ms_per_token);
  }
  return columns;
}

TimeModel solve(std::span<const Column> columns, size_t n_runs) {
  const std::vector<double> x = least_squares(columns, Column(n_runs, 1.0));
  return {.base_ms = x[0],
          .up_ms = x[1],
          .cpu_ms = x[2],
          .split_ms = x[3],
          .overlap_ms = x.size() > kTermsWithoutOverlap ? x[4] : 0};
}

// Lanes that overlap completely have an overlap of exactly minus the cheaper path's rate, and
// timing errors put the fit to either side of this bound. Up to here it is taken for the bound.
constexpr double kOverlapSlack = 1.15;

// The best model whose overlap hides the cheaper of the two paths completely, where `free`, the fit
// of all terms, says a little more than that; else nothing.
std::optional<TimeModel> solve_at_bound(std::span<const Column> columns, const TimeModel& free,
                                        size_t n_runs) {
  const double cheaper = std::min(free.up_ms, free.cpu_ms);
  if (!(cheaper > 0) || free.overlap_ms > -cheaper || free.overlap_ms < -kOverlapSlack * cheaper) {
    return std::nullopt;
  }
  // cheaper * x - cheaper * min(up, cpu): a term of its own in place of the path's and the
  // overlap's.
  const size_t path = free.up_ms < free.cpu_ms ? 1 : 2;
  std::vector<Column> bound(columns.begin(), columns.begin() + kTermsWithoutOverlap);
  for (size_t i = 0; i < n_runs; ++i) bound[path][i] -= columns[kTermsWithoutOverlap][i];
  for (size_t j = 0; j < bound.size(); ++j) {
    if (independent_part(bound, j) < kMinIndependent) return std::nullopt;
  }
  TimeModel model = solve(bound, n_runs);
  model.overlap_ms = -(path == 1 ? model.up_ms : model.cpu_ms);
  return model;
}

Status check_runs(std::span<const TimedRun> runs) {
  // Bounds that no token comes near, small enough for squares and quotients to stay finite.
  constexpr double kMaxGib = 1e9;
  constexpr double kMinMs = 1e-9;
  constexpr double kMaxMs = 1e12;
  for (size_t i = 0; i < runs.size(); ++i) {
    const TimedRun& run = runs[i];
    for (const auto& [name, value, least, most] :
         {std::tuple{"up_gib", run.up_gib, 0.0, kMaxGib},
          std::tuple{"cpu_gib", run.cpu_gib, 0.0, kMaxGib},
          std::tuple{"share", run.share, 0.0, 1.0},
          std::tuple{"ms_per_token", run.ms_per_token, kMinMs, kMaxMs}}) {
      if (!(value >= least && value <= most)) {
        return make_error(ErrorCode::kInvalidArgument,
                          "run {}: {}: found {}, expected {:g} to {:g}", i, name, value, least,
                          most);
      }
    }
  }
  if (runs.size() < kTermsWithoutOverlap) {
    return make_error(ErrorCode::kInvalidArgument,
                      "runs: found {}, expected at least {}: the time model has that many terms",
                      runs.size(), kTermsWithoutOverlap);
  }
  return {};
}

Status check_independent(std::span<const Column> columns) {
  std::string dependent;
  for (size_t j = 0; j < columns.size(); ++j) {
    if (independent_part(columns, j) >= kMinIndependent) continue;
    if (!dependent.empty()) dependent += ", ";
    dependent += kTermNames[j];
  }
  if (dependent.empty()) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "runs are collinear: they cannot tell {} from the other terms; expected at "
                    "least two cache sizes, each with share 0 and with shares above 0",
                    dependent);
}

void fill_errors(std::span<const TimedRun> runs, TimeModelFit& fit) {
  fit.relative_error.clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    const TimedRun& run = runs[i];
    const double predicted = fit.model.ms_per_token(run.up_gib, run.cpu_gib, run.share);
    fit.relative_error.push_back((predicted - run.ms_per_token) / run.ms_per_token);
    if (std::abs(fit.relative_error[i]) > fit.worst_error) {
      fit.worst_error = std::abs(fit.relative_error[i]);
      fit.worst_run = i;
    }
  }
}

}  // namespace

double TimeModel::ms_per_token(double up_gib, double cpu_gib, double share) const {
  return base_ms + up_ms * up_gib + cpu_ms * cpu_gib + (share > 0 ? split_ms : 0) +
         overlap_ms * std::min(up_gib, cpu_gib);
}

std::string why_unphysical(const TimeModel& model, double fastest_ms_per_token) {
  std::string reasons;
  const auto add = [&](std::string reason) {
    if (!reasons.empty()) reasons += "; ";
    reasons += reason;
  };
  if (!(model.up_ms > 0)) add(fmt::format("up_ms is {:.4g}, expected above 0", model.up_ms));
  if (!(model.cpu_ms > 0)) add(fmt::format("cpu_ms is {:.4g}, expected above 0", model.cpu_ms));
  if (!(model.base_ms >= fastest_ms_per_token / 5)) {
    add(fmt::format("base is {:.4g} ms, expected at least {:.4g}, a fifth of the fastest run",
                    model.base_ms, fastest_ms_per_token / 5));
  }
  const double cheaper = std::min(model.up_ms, model.cpu_ms);
  if (!(std::abs(model.overlap_ms) <= std::max(0.0, cheaper))) {
    add(fmt::format("overlap is {:.4g}, expected at most that of the cheaper path, {:.4g}",
                    model.overlap_ms, cheaper));
  }
  return reasons;
}

Result<TimeModelFit> fit_time_model(std::span<const TimedRun> runs) {
  HOTSET_RETURN_IF_ERROR(check_runs(runs));
  const std::vector<Column> all_terms = relative_columns(runs);
  const std::span without_overlap = std::span(all_terms).first(kTermsWithoutOverlap);
  HOTSET_RETURN_IF_ERROR(check_independent(without_overlap));
  const double fastest = std::ranges::min_element(runs, {}, &TimedRun::ms_per_token)->ms_per_token;

  TimeModelFit fit;
  if (runs.size() < kMaxTerms) {
    fit.why_no_overlap = fmt::format("{} runs are too few for {} terms", runs.size(), kMaxTerms);
  } else if (independent_part(all_terms, kTermsWithoutOverlap) < kMinIndependent) {
    fit.why_no_overlap = "the runs cannot tell it from the other terms";
  } else {
    fit.model = solve(all_terms, runs.size());
    fit.why_no_overlap = why_unphysical(fit.model, fastest);
    if (!fit.why_no_overlap.empty()) {
      const auto bound = solve_at_bound(all_terms, fit.model, runs.size());
      if (bound && why_unphysical(*bound, fastest).empty()) {
        fit.model = *bound;
        fit.why_no_overlap.clear();
      }
    }
    fit.has_overlap = fit.why_no_overlap.empty();
  }
  if (!fit.has_overlap) fit.model = solve(without_overlap, runs.size());
  fit.why_unphysical = why_unphysical(fit.model, fastest);
  fit.is_physical = fit.why_unphysical.empty();
  fill_errors(runs, fit);
  return fit;
}

std::vector<std::string> TimeModelFit::report(std::span<const TimedRun> runs) const {
  std::vector<std::string> lines;
  std::string formula =
      fmt::format("ms/token = {:.3f} + {:.3f} * up_gib + {:.3f} * cpu_gib + {:.3f} * (share > 0)",
                  model.base_ms, model.up_ms, model.cpu_ms, model.split_ms);
  if (has_overlap) formula += fmt::format(" + {:.3f} * min(up_gib, cpu_gib)", model.overlap_ms);
  lines.push_back(std::move(formula));
  if (!has_overlap) lines.push_back("without the overlap term: " + why_no_overlap);
  if (!is_physical) lines.push_back("not physical: " + why_unphysical);
  for (size_t i = 0; i < std::min(runs.size(), relative_error.size()); ++i) {
    const TimedRun& run = runs[i];
    lines.push_back(fmt::format(
        "run {}: {:.4f} GiB up, {:.4f} GiB CPU, share {:.2f}: {:.3f} ms measured, {:.3f} fitted, "
        "{:+.2f}%{}",
        i, run.up_gib, run.cpu_gib, run.share, run.ms_per_token,
        run.ms_per_token * (1 + relative_error[i]), 100 * relative_error[i],
        i == worst_run ? " (worst)" : ""));
  }
  const size_t n_terms = has_overlap ? kMaxTerms : kTermsWithoutOverlap;
  if (relative_error.size() <= n_terms) {
    lines.push_back(fmt::format("as many runs as terms ({}): the errors say nothing", n_terms));
  }
  return lines;
}

}  // namespace hotset::sim
