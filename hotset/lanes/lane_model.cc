#include "hotset/lanes/lane_model.h"

#include <algorithm>

namespace hotset::lanes {
namespace {

// Longer than any lane of a lookup takes (eleven days), and short enough that every fitted cost
// stays below kMaxCost.
constexpr double kMaxObservedUs = 1e12;

Status check_observation(const char* lane, double amount, double us) {
  if (!(amount > 0 && amount <= kMaxCost) || !(us >= 0 && us <= kMaxObservedUs)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: found {} us for an amount of {}, expected 0 to {:g} us for an amount "
                      "above 0",
                      lane, us, amount, kMaxObservedUs);
  }
  return {};
}

// The line of a lane over work, from its cost per expert: an expert's first token is one unit.
LinearCost work_line(const ExpertCost& cost) {
  return {.fixed = cost.turn_us, .per_unit = cost.expert_us.at(1)};
}

// GB/s of a line whose unit is this many bytes; 0 if it takes no time, or none worth a name.
double gb_per_s(const LinearCost& line, double unit_bytes) {
  const double rate = line.per_unit > 0 ? unit_bytes / line.per_unit / 1000 : 0;
  return rate <= kMaxCost ? rate : 0;
}

}  // namespace

LaneModel::LaneModel(const LaneModelOptions& options, SharedLane upload, SharedLane cpu,
                     LineEstimator hits, LineEstimator pairs)
    : options_(options),
      upload_(upload),
      cpu_(cpu),
      hits_(hits),
      pairs_(pairs),
      shared_(options.half_life, 0, 0),
      rows_(options.half_life, options.prior.rows_us, 0),
      all_rows_(options.half_life, options.prior.all_rows_us, 0) {
  update_costs();
}

Result<LaneModel> LaneModel::create(const LaneModelOptions& options) {
  if (options.expert_bytes.count < 1) {
    return make_error(ErrorCode::kInvalidArgument, "expert_bytes: found {}, expected 1 or more",
                      options.expert_bytes.count);
  }
  if (const double rate = options.memory_gb_per_s; rate != 0 && !(rate >= 1e-9 && is_cost(rate))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "memory_gb_per_s: found {}, expected 0 (not known) or 1e-9 and more", rate);
  }
  if (!is_cost(options.min_concurrent_weight)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "min_concurrent_weight: found {}, expected 0 or more",
                      options.min_concurrent_weight);
  }
  for (const double further : {options.cpu_further_token, options.device_further_token}) {
    if (!(further >= 0 && further <= 1)) {
      return make_error(ErrorCode::kInvalidArgument, "further_token: found {}, expected 0 to 1",
                        further);
    }
  }
  HOTSET_RETURN_IF_ERROR(validate(options.prior));
  const auto estimator = [&](const LinearCost& prior) {
    return LineEstimator::create({.half_life = options.half_life, .prior = prior});
  };
  const LaneCosts& prior = options.prior;
  HOTSET_TRY(LineEstimator upload_solo, estimator(prior.upload_solo_us));
  HOTSET_TRY(LineEstimator upload_concurrent, estimator(prior.upload_concurrent_us));
  HOTSET_TRY(LineEstimator cpu_solo, estimator(work_line(prior.cpu_solo)));
  HOTSET_TRY(LineEstimator cpu_concurrent, estimator(work_line(prior.cpu_concurrent)));
  HOTSET_TRY(LineEstimator hits, estimator(work_line(prior.pairs)));
  HOTSET_TRY(LineEstimator pairs, estimator(work_line(prior.pairs)));
  return LaneModel(options, {.solo = upload_solo, .concurrent = upload_concurrent},
                   {.solo = cpu_solo, .concurrent = cpu_concurrent}, hits, pairs);
}

Status LaneModel::SharedLane::observe(LaneUse use, double x, double us) {
  const bool is_solo = use == LaneUse::kSolo;
  HOTSET_RETURN_IF_ERROR((is_solo ? solo : concurrent).observe(x, us));
  n_since_solo = is_solo ? 0 : n_since_solo + 1;
  n_since_concurrent = is_solo ? n_since_concurrent + 1 : 0;
  return {};
}

Status LaneModel::observe_upload(LaneUse use, Bytes bytes, double us) {
  const auto amount = static_cast<double>(bytes.count);
  HOTSET_RETURN_IF_ERROR(check_observation("upload (bytes)", amount, us));
  HOTSET_RETURN_IF_ERROR(upload_.observe(use, amount, us));
  update_costs();
  return {};
}

Status LaneModel::observe_cpu(LaneUse use, double work, double us) {
  HOTSET_RETURN_IF_ERROR(check_observation("cpu (work)", work, us));
  HOTSET_RETURN_IF_ERROR(cpu_.observe(use, work, us));
  update_costs();
  return {};
}

Status LaneModel::observe_hits(double work, double us) {
  HOTSET_RETURN_IF_ERROR(check_observation("hits (work)", work, us));
  return hits_.observe(work, us);
}

Status LaneModel::observe_pairs(double work, double us) {
  HOTSET_RETURN_IF_ERROR(check_observation("pairs (work)", work, us));
  HOTSET_RETURN_IF_ERROR(pairs_.observe(work, us));
  update_costs();
  return {};
}

Status LaneModel::observe_shared(double us) {
  HOTSET_RETURN_IF_ERROR(check_observation("shared", 1, us));
  shared_.observe(us);
  return {};
}

Status LaneModel::observe_rows(double us) {
  HOTSET_RETURN_IF_ERROR(check_observation("rows", 1, us));
  rows_.observe(us);
  update_costs();
  return {};
}

Status LaneModel::observe_all_rows(double us) {
  HOTSET_RETURN_IF_ERROR(check_observation("all rows", 1, us));
  all_rows_.observe(us);
  update_costs();
  return {};
}

double LaneModel::kept_share() const {
  const auto expert_bytes = static_cast<double>(options_.expert_bytes.count);
  const double link = gb_per_s(upload_.solo.fit(), 1);
  const double cpu = gb_per_s(cpu_.solo.fit(), expert_bytes);
  // A lane that takes no time has no rate to compare with memory's.
  if (link <= 0 || cpu <= 0) return kConcurrentShare;
  return concurrent_rates(link, cpu, options_.memory_gb_per_s).link_gb_per_s / link;
}

LaneModel::BothLines LaneModel::lines(const SharedLane& lane, double kept, double typical_x) const {
  const bool concurrent_is_measured =
      lane.concurrent.weight() > 0 && lane.concurrent.weight() >= options_.min_concurrent_weight;
  // A lane beside one of absurd speed, as a broken clock reports it, must still have a cost.
  const auto scaled = [](const LinearCost& line, double factor) {
    return LinearCost{.fixed = line.fixed, .per_unit = std::min(kMaxCost, line.per_unit * factor)};
  };
  BothLines both = {.solo = lane.solo.fit(), .concurrent = lane.concurrent.fit()};
  if (!concurrent_is_measured || lane.n_since_concurrent >= options_.half_life) {
    both.concurrent = scaled(both.solo, 1 / kept);
  } else if (lane.n_since_solo >= options_.half_life) {
    both.solo = scaled(both.concurrent, kept);
  } else if (both.concurrent.at(typical_x) < both.solo.at(typical_x)) {
    (lane.n_since_solo == 0 ? both.concurrent : both.solo) =
        lane.n_since_solo == 0 ? both.solo : both.concurrent;
  }
  return both;
}

void LaneModel::update_costs() {
  const double kept = kept_share();
  const BothLines upload = lines(upload_, kept, static_cast<double>(options_.expert_bytes.count));
  const BothLines cpu = lines(cpu_, kept, 1);
  costs_ = {.upload_solo_us = upload.solo,
            .upload_concurrent_us = upload.concurrent,
            .cpu_solo = expert_cost(cpu.solo, options_.cpu_further_token),
            .cpu_concurrent = expert_cost(cpu.concurrent, options_.cpu_further_token),
            .rows_us = rows_.mean(),
            .all_rows_us = all_rows_.mean(),
            .pairs = expert_cost(pairs_.fit(), options_.device_further_token)};
}

double LaneModel::no_cache_us(double work) const {
  if (!(work > 0)) return 0;
  return costs_.cpu_solo.turn_us + costs_.cpu_solo.expert_us.at(1) * work + costs_.all_rows_us;
}

std::string LaneModel::describe() const {
  const auto expert_bytes = static_cast<double>(options_.expert_bytes.count);
  const auto rate = [](double gb) { return gb > 0 ? fmt::format("{:.1f} GB/s", gb) : "no time"; };
  const auto cpu_rate = [&](const ExpertCost& cost) {
    return rate(gb_per_s(work_line(cost), expert_bytes));
  };
  return fmt::format("link {} + {:.1f} us ({} with the CPU), CPU {} + {:.1f} us ({} with the link)",
                     rate(gb_per_s(costs_.upload_solo_us, 1)), costs_.upload_solo_us.fixed,
                     rate(gb_per_s(costs_.upload_concurrent_us, 1)), cpu_rate(costs_.cpu_solo),
                     costs_.cpu_solo.turn_us, cpu_rate(costs_.cpu_concurrent));
}

}  // namespace hotset::lanes
