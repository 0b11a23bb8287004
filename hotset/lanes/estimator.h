// A straight line fitted to a stream of measurements: design.md section 5, "each lane's time is
// fitted as a + b * x by decayed least squares (half-life 64 lookups)".
//
// The sums are kept about the weighted means (West, "Updating mean and variance estimates", 1979),
// so they stay exact over any number of updates.
#ifndef HOTSET_LANES_ESTIMATOR_H_
#define HOTSET_LANES_ESTIMATOR_H_

#include <span>

#include "hotset/base/error.h"
#include "hotset/lanes/lane_costs.h"

namespace hotset::lanes {

struct LineSample {
  double x = 0;  // 0 or more
  double y = 0;  // 0 or more
};

struct LineEstimatorOptions {
  double half_life = 64;  // observations after which one counts half; above 0
  LinearCost prior = {};  // the line before anything was seen; both numbers 0 or more
};

// Thread-compatible.
class LineEstimator {
 public:
  // Errors: kInvalidArgument, naming the field.
  static Result<LineEstimator> create(const LineEstimatorOptions& options);

  // Takes the samples of a calibration in, all with the same weight, 1 each.
  // Errors: as `observe`; nothing changes.
  Status seed(std::span<const LineSample> samples);

  // Everything seen before loses a factor 2^(-1 / half_life) of weight; this counts 1.
  // Errors: kInvalidArgument if x or y is negative or not finite, or so large that squares
  // overflow (1e100); nothing changes.
  Status observe(double x, double y);

  // The line that minimises the weighted squares under a >= 0 and b >= 0. Where the samples lie at
  // (nearly) one x only their mean is known: the latest line that was determined, or else the
  // prior, is scaled to pass through it; without either, the line goes through the origin.
  LinearCost fit() const { return fit_; }

  // Sum of the weights: at most 1 / (1 - 2^(-1 / half_life)) in the long run; 0 before any sample.
  double weight() const { return weight_; }

 private:
  explicit LineEstimator(const LineEstimatorOptions& options);
  void add(double x, double y);
  void solve();
  // The best line with a = 0 or b = 0, where the unconstrained one, of this slope, is not allowed.
  LinearCost edge_line(double slope) const;

  double keep_;  // 2^(-1 / half_life)
  double weight_ = 0;
  double mean_x_ = 0;
  double mean_y_ = 0;
  double sum_xx_ = 0;  // of (x - mean_x)^2, weighted
  double sum_xy_ = 0;  // of (x - mean_x) (y - mean_y), weighted
  LinearCost shape_;   // the latest line determined by its samples, off the bounds; else the prior
  LinearCost fit_;
};

}  // namespace hotset::lanes

#endif  // HOTSET_LANES_ESTIMATOR_H_
