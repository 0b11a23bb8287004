#include "hotset/engine/run/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "hotset/engine/run/sampler_settings.h"

namespace hotset::engine {
namespace {

Status check_bias(const LogitBias& bias) {
  if (bias.id < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "logit-bias: found token id {}, expected at least 0", bias.id);
  }
  // Of its own: never.
  if (bias.bias == -std::numeric_limits<float>::infinity()) return {};
  const auto checked = check_setting_value(logit_bias_setting(), bias.bias);
  if (checked) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "logit-bias: found {} for token {}, expected {} or -inf", bias.bias, bias.id,
                    checked.error().expected);
}

float usable(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

}  // namespace

int32_t argmax(std::span<const float> logits) {
  HOTSET_CHECK(!logits.empty());
  size_t best = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (usable(logits[i]) > usable(logits[best])) best = i;
  }
  return static_cast<int32_t>(best);
}

Result<Sampler> Sampler::create(const SamplerOptions& options) {
  HOTSET_RETURN_IF_ERROR(check_settings(sampler_settings(), options, ""));
  for (const LogitBias& bias : options.logit_bias) HOTSET_RETURN_IF_ERROR(check_bias(bias));
  return Sampler(options);
}

Sampler::Sampler(const SamplerOptions& options)
    : options_(options),
      has_penalties_(options.repeat_last_n != 0 &&
                     (options.repeat_penalty != 1 || options.presence_penalty != 0 ||
                      options.frequency_penalty != 0)),
      random_(options.seed) {}

void Sampler::accept(int32_t id) {
  HOTSET_CHECK(id >= 0);
  if (!has_penalties_) return;
  const auto index = static_cast<size_t>(id);
  if (index >= counts_.size()) counts_.resize(index + 1);
  ++counts_[index];
  if (options_.repeat_last_n < 0) return;
  if (std::cmp_less(window_.size(), options_.repeat_last_n)) {
    window_.push_back(id);
    return;
  }
  --counts_[std::exchange(window_[window_next_], id)];
  window_next_ = (window_next_ + 1) % window_.size();
}

void Sampler::accept(std::span<const int32_t> ids) {
  for (const int32_t id : ids) accept(id);
}

void Sampler::forget_accepted() {
  std::ranges::fill(counts_, 0);
  window_.clear();
  window_next_ = 0;
}

std::span<const float> Sampler::adjusted(std::span<const float> logits) {
  if (!has_penalties_ && options_.logit_bias.empty()) return logits;
  adjusted_.assign(logits.begin(), logits.end());
  for (const LogitBias& bias : options_.logit_bias) {
    if (std::cmp_less(bias.id, adjusted_.size())) {
      adjusted_[bias.id] += bias.bias;
    }
  }
  if (!has_penalties_) return adjusted_;
  for (size_t id = 0; id < std::min(counts_.size(), adjusted_.size()); ++id) {
    if (counts_[id] == 0) continue;
    float& logit = adjusted_[id];
    logit = logit > 0 ? logit / options_.repeat_penalty : logit * options_.repeat_penalty;
    logit -= static_cast<float>(counts_[id]) * options_.frequency_penalty;
    logit -= options_.presence_penalty;
  }
  return adjusted_;
}

void Sampler::collect(std::span<const float> logits) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({.logit = usable(logits[i]), .id = static_cast<int32_t>(i), .weight = 0});
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto k = static_cast<size_t>(std::max(options_.top_k, 0));
  if (k > 0 && k < candidates_.size()) {
    std::ranges::partial_sort(candidates_, candidates_.begin() + options_.top_k, better);
    candidates_.resize(k);
  } else {
    std::ranges::sort(candidates_, better);
  }
}

void Sampler::keep_probable() {
  // In double: sums over large vocabularies.
  const double best = candidates_.front().logit;
  double total = 0;
  for (Candidate& c : candidates_) {
    c.weight = std::exp(c.logit - best);
    total += c.weight;
  }
  double sum = 0;
  size_t n = 0;
  while (n < candidates_.size()) {
    // The best one always stays.
    if (n > 0 && (sum >= options_.top_p * total || candidates_[n].weight < options_.min_p)) break;
    sum += candidates_[n++].weight;
  }
  candidates_.resize(n);
}

int32_t Sampler::sample(std::span<const float> raw_logits) {
  const std::span<const float> logits = adjusted(raw_logits);
  const int32_t best_id = argmax(logits);
  // No temperature, or nothing finite to weigh against.
  if (options_.temperature == 0 || !std::isfinite(logits[best_id])) {
    return best_id;
  }
  collect(logits);
  keep_probable();
  const double best = candidates_.front().logit;
  double total = 0;
  for (Candidate& c : candidates_) {
    c.weight = std::exp((c.logit - best) / options_.temperature);
    total += c.weight;
  }
  double left = random_.uniform() * total;
  int32_t chosen = candidates_.front().id;
  for (const Candidate& c : candidates_) {
    if (c.weight == 0) continue;
    chosen = c.id;
    left -= c.weight;
    if (left < 0) break;
  }
  return chosen;  // the last one of them if rounding has left a rest
}

}  // namespace hotset::engine
