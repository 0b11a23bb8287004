#include "hotset/lanes/estimator.h"

#include <algorithm>
#include <cmath>

namespace hotset::lanes {
namespace {

// Squares of samples, summed, must stay finite.
constexpr double kMaxSample = 1e100;

// The samples determine a slope if their spread is above this share of the mean x (standard
// deviation over mean): a thousandth. Below it a timing error of 0.1% would decide the slope.
constexpr double kMinSpread = 1e-3;

bool is_sample(double v) { return v >= 0 && v <= kMaxSample; }

}  // namespace

LineEstimator::LineEstimator(const LineEstimatorOptions& options)
    : keep_(std::exp2(-1 / options.half_life)), shape_(options.prior), fit_(options.prior) {}

Result<LineEstimator> LineEstimator::create(const LineEstimatorOptions& options) {
  if (!(options.half_life > 0 && options.half_life <= kMaxCost)) {
    return make_error(ErrorCode::kInvalidArgument, "half_life: found {}, expected above 0",
                      options.half_life);
  }
  if (!is_cost(options.prior.fixed) || !is_cost(options.prior.per_unit)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "prior: found {} + {} x, expected both numbers 0 to {:g}",
                      options.prior.fixed, options.prior.per_unit, kMaxCost);
  }
  return LineEstimator(options);
}

Status LineEstimator::seed(std::span<const LineSample> samples) {
  for (const LineSample& sample : samples) {
    if (!is_sample(sample.x) || !is_sample(sample.y)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "sample: found x {} and y {}, expected 0 to {:g}", sample.x, sample.y,
                        kMaxSample);
    }
  }
  for (const LineSample& sample : samples) add(sample.x, sample.y);
  solve();
  return {};
}

Status LineEstimator::observe(double x, double y) {
  if (!is_sample(x) || !is_sample(y)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "sample: found x {} and y {}, expected 0 to {:g}", x, y, kMaxSample);
  }
  weight_ *= keep_;
  sum_xx_ *= keep_;
  sum_xy_ *= keep_;
  add(x, y);
  solve();
  return {};
}

void LineEstimator::add(double x, double y) {
  weight_ += 1;
  const double dx = x - mean_x_;
  const double dy = y - mean_y_;
  mean_x_ += dx / weight_;
  mean_y_ += dy / weight_;
  sum_xx_ += dx * (x - mean_x_);
  sum_xy_ += dx * (y - mean_y_);
}

void LineEstimator::solve() {
  if (weight_ <= 0) return;
  const double min_sum_xx = kMinSpread * kMinSpread * weight_ * mean_x_ * mean_x_;
  if (sum_xx_ > min_sum_xx) {
    const double slope = sum_xy_ / sum_xx_;
    const double intercept = mean_y_ - slope * mean_x_;
    if (slope >= 0 && intercept >= 0) {
      fit_ = shape_ = {.fixed = intercept, .per_unit = slope};
    } else {
      fit_ = edge_line(slope);
    }
    return;
  }
  // Only the mean is known. What was so far below the spread that counts is dropped, so that the
  // sums do not decay into denormal numbers.
  if (sum_xx_ < 1e-6 * min_sum_xx) sum_xx_ = sum_xy_ = 0;
  const double predicted = shape_.at(mean_x_);
  if (predicted > 0) {
    const double scale = mean_y_ / predicted;
    fit_ = {.fixed = scale * shape_.fixed, .per_unit = scale * shape_.per_unit};
  } else if (mean_x_ > 0) {
    fit_ = {.fixed = 0, .per_unit = mean_y_ / mean_x_};
  } else {
    fit_ = {.fixed = mean_y_, .per_unit = shape_.per_unit};
  }
}

LinearCost LineEstimator::edge_line(double slope) const {
  // A horizontal line, or one through the origin. What each costs above the unconstrained line,
  // about the means so that nothing cancels: the squared error of a line (a, b) grows by
  // W (a + b mean_x - mean_y)^2 + S_xx (b - slope)^2.
  const LinearCost flat = {.fixed = mean_y_, .per_unit = 0};
  const double square_x = sum_xx_ + weight_ * mean_x_ * mean_x_;
  const LinearCost origin = {
      .fixed = 0, .per_unit = std::max(0.0, (sum_xy_ + weight_ * mean_x_ * mean_y_) / square_x)};
  const auto excess = [&](const LinearCost& line) {
    const double at_mean = line.at(mean_x_) - mean_y_;
    const double turn = line.per_unit - slope;
    return weight_ * at_mean * at_mean + sum_xx_ * turn * turn;
  };
  return excess(flat) <= excess(origin) ? flat : origin;
}

}  // namespace hotset::lanes
