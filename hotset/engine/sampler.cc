#include "hotset/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace hotset::engine {
namespace {

constexpr float kMaxTemperature = 100.0F;

Status check_range(const char* name, float value, float max) {
  if (value >= 0 && value <= max) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: found {}, expected 0 to {}", name, value,
                    max);
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
  HOTSET_RETURN_IF_ERROR(check_range("temperature", options.temperature, kMaxTemperature));
  HOTSET_RETURN_IF_ERROR(check_range("top-p", options.top_p, 1.0F));
  HOTSET_RETURN_IF_ERROR(check_range("min-p", options.min_p, 1.0F));
  if (options.top_k < 0) {
    return make_error(ErrorCode::kInvalidArgument, "top-k: found {}, expected at least 0",
                      options.top_k);
  }
  return Sampler(options);
}

void Sampler::collect(std::span<const float> logits) {
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    candidates_.push_back({.logit = usable(logits[i]), .id = static_cast<int32_t>(i), .weight = 0});
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto k = static_cast<size_t>(options_.top_k);
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

int32_t Sampler::sample(std::span<const float> logits) {
  const int32_t best_id = argmax(logits);
  // No temperature, or nothing finite to weigh against.
  if (options_.temperature == 0 || !std::isfinite(logits[static_cast<size_t>(best_id)])) {
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
