#include "hotset/lanes/upload_value.h"

#include <cmath>
#include <initializer_list>
namespace hotset::lanes {

DecayedMean::DecayedMean(double half_life, double prior, double prior_weight)
    : keep_(std::exp2(-1 / half_life)), mean_(prior), weight_(prior_weight) {
  HOTSET_CHECK(half_life > 0 && std::isfinite(prior) && prior_weight >= 0 &&
               std::isfinite(prior_weight));
}

void DecayedMean::observe(double value) {
  weight_ = weight_ * keep_ + 1;
  mean_ += (value - mean_) / weight_;
}

double uses_per_token(double decayed_crf, double half_life_tokens) {
  HOTSET_CHECK(half_life_tokens > 0);
  // 1 - 2^(-1/h) without the cancellation that long half-lives would suffer.
  return decayed_crf * -std::expm1(-std::log(2.0) / half_life_tokens);
}

UploadValue::UploadValue(const UploadValueOptions& options)
    : saving_(options.half_life_savings, options.saving_us, options.prior_weight),
      residency_(options.half_life_residencies, options.residency_tokens, options.prior_weight) {}

Result<UploadValue> UploadValue::create(const UploadValueOptions& options) {
  struct Field {
    const char* name;
    double value;
  };
  for (const auto& [name, value] :
       {Field{"saving_us", options.saving_us}, Field{"residency_tokens", options.residency_tokens},
        Field{"prior_weight", options.prior_weight}}) {
    if (!is_cost(value)) {
      return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected 0 to {:g}", name,
                        value, kMaxCost);
    }
  }
  for (const auto& [name, value] :
       {Field{"half_life_savings", options.half_life_savings},
        Field{"half_life_residencies", options.half_life_residencies}}) {
    if (!(value > 0 && value <= kMaxCost)) {
      return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected above 0", name, value);
    }
  }
  return UploadValue(options);
}

Status UploadValue::observe_saving(double saving_us) {
  if (!is_cost(std::abs(saving_us))) {
    return make_error(ErrorCode::kInvalidArgument, "saving_us: found {}, expected within {:g}",
                      saving_us, kMaxCost);
  }
  saving_.observe(saving_us);
  return {};
}

Status UploadValue::observe_residency(double n_tokens) {
  if (!is_cost(n_tokens)) {
    return make_error(ErrorCode::kInvalidArgument, "residency: found {} tokens, expected 0 to {:g}",
                      n_tokens, kMaxCost);
  }
  residency_.observe(n_tokens);
  return {};
}

bool admits_fill(const FillState& state) {
  return state.link_is_idle && (state.slot_is_empty || state.p > state.p_victim) &&
         (state.outstanding_us <= 0 || state.outstanding_us + state.copy_us <= state.layer_us);
}

}  // namespace hotset::lanes
