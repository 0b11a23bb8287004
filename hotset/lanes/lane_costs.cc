#include "hotset/lanes/lane_costs.h"

#include <algorithm>
#include <initializer_list>

namespace hotset::lanes {
namespace {

constexpr double kBytesPerUsOfGbPerS = 1000;

struct NamedNumber {
  const char* name;
  double value;
};

Status check_costs(std::initializer_list<NamedNumber> numbers) {
  for (const auto& [name, value] : numbers) {
    if (!is_cost(value)) {
      return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected 0 to {:g}", name,
                        value, kMaxCost);
    }
  }
  return {};
}

}  // namespace

bool is_valid(const LaneCosts& costs) {
  const auto line = [](const LinearCost& cost) {
    return is_cost(cost.fixed) && is_cost(cost.per_unit);
  };
  const auto experts = [&](const ExpertCost& cost) {
    return is_cost(cost.turn_us) && line(cost.expert_us);
  };
  return line(costs.upload_solo_us) && line(costs.upload_concurrent_us) &&
         experts(costs.cpu_solo) && experts(costs.cpu_concurrent) && is_cost(costs.rows_us) &&
         is_cost(costs.all_rows_us) && experts(costs.pairs);
}

Status validate(const LaneCosts& costs) {
  return check_costs({
      {"upload_solo_us.fixed", costs.upload_solo_us.fixed},
      {"upload_solo_us.per_unit", costs.upload_solo_us.per_unit},
      {"upload_concurrent_us.fixed", costs.upload_concurrent_us.fixed},
      {"upload_concurrent_us.per_unit", costs.upload_concurrent_us.per_unit},
      {"cpu_solo.turn_us", costs.cpu_solo.turn_us},
      {"cpu_solo.expert_us.fixed", costs.cpu_solo.expert_us.fixed},
      {"cpu_solo.expert_us.per_unit", costs.cpu_solo.expert_us.per_unit},
      {"cpu_concurrent.turn_us", costs.cpu_concurrent.turn_us},
      {"cpu_concurrent.expert_us.fixed", costs.cpu_concurrent.expert_us.fixed},
      {"cpu_concurrent.expert_us.per_unit", costs.cpu_concurrent.expert_us.per_unit},
      {"rows_us", costs.rows_us},
      {"all_rows_us", costs.all_rows_us},
      {"pairs.turn_us", costs.pairs.turn_us},
      {"pairs.expert_us.fixed", costs.pairs.expert_us.fixed},
      {"pairs.expert_us.per_unit", costs.pairs.expert_us.per_unit},
  });
}

ConcurrentRates concurrent_rates(double link_gb_per_s, double cpu_gb_per_s,
                                 double memory_gb_per_s) {
  HOTSET_CHECK(link_gb_per_s > 0 && cpu_gb_per_s > 0 && memory_gb_per_s >= 0);
  const double sum = link_gb_per_s + cpu_gb_per_s;
  double together = kConcurrentShare * sum;
  if (memory_gb_per_s > 0) together = std::min(together, memory_gb_per_s);
  const double kept = together / sum;
  return {.link_gb_per_s = kept * link_gb_per_s, .cpu_gb_per_s = kept * cpu_gb_per_s};
}

ExpertCost expert_cost(const LinearCost& line, double further_token) {
  return {.turn_us = line.fixed,
          .expert_us = {.fixed = line.per_unit * (1 - further_token),
                        .per_unit = line.per_unit * further_token}};
}

Result<LaneCosts> costs_from_rates(const LaneRates& rates, Bytes expert_bytes) {
  // Slower than a byte a second is a mistake, and faster than 10^9 GB/s is one too.
  constexpr double kMinRate = 1e-9;
  constexpr double kMaxRate = 1e9;
  for (const auto& [name, rate] : {NamedNumber{"link_gb_per_s", rates.link_gb_per_s},
                                   NamedNumber{"cpu_gb_per_s", rates.cpu_gb_per_s},
                                   NamedNumber{"device_gb_per_s", rates.device_gb_per_s}}) {
    if (!(rate >= kMinRate && rate <= kMaxRate)) {
      return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected {:g} to {:g}", name,
                        rate, kMinRate, kMaxRate);
    }
  }
  if (const double memory = rates.memory_gb_per_s;
      !(memory == 0 || (memory >= kMinRate && memory <= kMaxRate))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "memory_gb_per_s: found {}, expected 0 (not known) or {:g} to {:g}", memory,
                      kMinRate, kMaxRate);
  }
  HOTSET_RETURN_IF_ERROR(check_costs({{"launch_us", rates.launch_us},
                                      {"turn_us", rates.turn_us},
                                      {"rows_us", rates.rows_us},
                                      {"device_launch_us", rates.device_launch_us}}));
  if (!(rates.further_token >= 0 && rates.further_token <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "further_token: found {}, expected 0 to 1",
                      rates.further_token);
  }
  if (expert_bytes.count < 1) {
    return make_error(ErrorCode::kInvalidArgument, "expert_bytes: found {}, expected 1 or more",
                      expert_bytes.count);
  }

  const auto bytes = static_cast<double>(expert_bytes.count);
  const auto us_of = [&](double n_bytes, double gb_per_s) {
    return n_bytes / (gb_per_s * kBytesPerUsOfGbPerS);
  };
  const ConcurrentRates both =
      concurrent_rates(rates.link_gb_per_s, rates.cpu_gb_per_s, rates.memory_gb_per_s);
  const auto experts = [&](double turn_us, double gb_per_s) {
    return expert_cost({.fixed = turn_us, .per_unit = us_of(bytes, gb_per_s)}, rates.further_token);
  };
  const LaneCosts costs = {
      .upload_solo_us = {.fixed = rates.launch_us, .per_unit = us_of(1, rates.link_gb_per_s)},
      .upload_concurrent_us = {.fixed = rates.launch_us, .per_unit = us_of(1, both.link_gb_per_s)},
      .cpu_solo = experts(rates.turn_us, rates.cpu_gb_per_s),
      .cpu_concurrent = experts(rates.turn_us, both.cpu_gb_per_s),
      .rows_us = rates.rows_us,
      .all_rows_us = rates.rows_us,
      .pairs = experts(rates.device_launch_us, rates.device_gb_per_s)};
  HOTSET_RETURN_IF_ERROR(validate(costs));
  return costs;
}

}  // namespace hotset::lanes
