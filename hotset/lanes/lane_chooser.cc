#include "hotset/lanes/lane_chooser.h"

#include <algorithm>
#include <iterator>

namespace hotset::lanes {

std::string_view binding_lane_name(BindingLane lane) {
  switch (lane) {
    case BindingLane::kHits:
      return "hits";
    case BindingLane::kLink:
      return "link";
    case BindingLane::kCpu:
      return "cpu";
  }
  return "unknown";
}

std::string describe(const LaneChoice& choice) {
  if (choice.candidates.empty()) return "no choice was made";
  const SplitCost& best = choice.cost();
  std::string text = fmt::format(
      "{} of {} misses uploaded: J {:.1f} us, done at {:.1f} us, bound by {}", choice.n_uploads,
      choice.order.size(), best.cost_us, best.done_us(), binding_lane_name(best.binding));
  for (size_t u = 0; u < choice.candidates.size(); ++u) {
    const SplitCost& split = choice.candidates[u];
    fmt::format_to(std::back_inserter(text),
                   "\n{} u={}: J {:.1f} us = max(device {:.1f}, cpu {:.1f}) - value {:.1f}, {}",
                   u == choice.n_uploads ? '*' : ' ', u, split.cost_us, split.device_us,
                   split.cpu_us, split.value_us, binding_lane_name(split.binding));
  }
  return text;
}

LaneChooser::LaneChooser(size_t max_misses)
    : order_(max_misses), rank_(max_misses), candidates_(max_misses + 1) {}

namespace {

Status check_lookup(const LookupWork& work, std::span<const UploadCandidate> misses,
                    size_t max_misses) {
  if (misses.size() > max_misses) {
    return make_error(ErrorCode::kInvalidArgument, "misses: found {}, expected at most {}",
                      misses.size(), max_misses);
  }
  if (work.expert_bytes.count < 1) {
    return make_error(ErrorCode::kInvalidArgument, "expert_bytes: found {}, expected 1 or more",
                      work.expert_bytes.count);
  }
  if (!is_cost(work.shared_us) || !is_cost(work.hit_us)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "shared_us, hit_us: found {} and {}, expected 0 to {:g}", work.shared_us,
                      work.hit_us, kMaxCost);
  }
  for (size_t i = 0; i < misses.size(); ++i) {
    const UploadCandidate& miss = misses[i];
    if (miss.expert < 0 || miss.n_tokens < 1 || !is_cost(miss.value_us)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "miss {}: found expert {}, n_tokens {}, value_us {}; expected expert 0 or "
                        "more, n_tokens 1 or more, value_us 0 to {:g}",
                        i, miss.expert, miss.n_tokens, miss.value_us, kMaxCost);
    }
  }
  return {};
}

// Sets device_us, value_us and what the device waits for, from no upload on.
void fill_device_side(const LaneCosts& costs, const LookupWork& work,
                      std::span<const UploadCandidate> misses, std::span<const uint32_t> order,
                      std::span<SplitCost> candidates) {
  const auto expert_bytes = static_cast<double>(work.expert_bytes.count);
  const double resident_us = work.shared_us + work.hit_us;
  candidates[0] = {.device_us = resident_us};
  double pairs_us = costs.pairs.turn_us;
  double value_us = 0;
  for (size_t u = 1; u < candidates.size(); ++u) {
    const UploadCandidate& miss = misses[order[u - 1]];
    pairs_us += costs.pairs.expert_us.at(miss.n_tokens);
    value_us += miss.value_us;
    const LinearCost& upload =
        u == misses.size() ? costs.upload_solo_us : costs.upload_concurrent_us;
    const double link_us = upload.at(static_cast<double>(u) * expert_bytes);
    candidates[u] = {
        .device_us = std::max(resident_us, link_us) + pairs_us,
        .value_us = value_us,
        .link_us = link_us,
        .binding = link_us > resident_us ? BindingLane::kLink : BindingLane::kHits,
    };
  }
}

// Sets cpu_us, from no expert on the CPU on.
void fill_cpu_side(const LaneCosts& costs, std::span<const UploadCandidate> misses,
                   std::span<const uint32_t> order, std::span<SplitCost> candidates) {
  const size_t n = misses.size();
  if (n == 0) return;
  double experts_us = 0;
  for (size_t u = n - 1; u > 0; --u) {
    experts_us += costs.cpu_concurrent.expert_us.at(misses[order[u]].n_tokens);
    if (u < candidates.size()) {
      candidates[u].cpu_us = costs.cpu_concurrent.turn_us + experts_us + costs.rows_us;
    }
  }
  double all_us = 0;
  for (const UploadCandidate& miss : misses) all_us += costs.cpu_solo.expert_us.at(miss.n_tokens);
  candidates[0].cpu_us = costs.cpu_solo.turn_us + all_us + costs.rows_us;
}

// F of a split: the experts behind its uploads that the idle link has time for.
double fill_value_us(const LookupWork& work, std::span<const UploadCandidate> misses,
                     std::span<const uint32_t> behind, const SplitCost& split) {
  if (!(work.fill_us > 0)) return 0;
  double n_fills =
      (split.done_us() + work.other_us - split.link_us - work.fill_backlog_us) / work.fill_us;
  double value_us = 0;
  for (size_t i = 0; i < behind.size() && n_fills > 0; ++i, --n_fills) {
    value_us += std::min(1.0, n_fills) * misses[behind[i]].value_us;
  }
  return value_us;
}

}  // namespace

void LaneChooser::order_misses(const LinearCost& cpu_expert_us,
                               std::span<const UploadCandidate> misses) {
  for (size_t i = 0; i < misses.size(); ++i) {
    order_[i] = static_cast<uint32_t>(i);
    rank_[i] = cpu_expert_us.at(misses[i].n_tokens) + misses[i].value_us;
  }
  std::ranges::sort(std::span(order_).first(misses.size()), [&](uint32_t a, uint32_t b) {
    if (rank_[a] != rank_[b]) return rank_[a] > rank_[b];
    if (misses[a].expert != misses[b].expert) return misses[a].expert < misses[b].expert;
    return a < b;
  });
}

Result<LaneChoice> LaneChooser::choose(const LaneCosts& costs, const LookupWork& work,
                                       std::span<const UploadCandidate> misses) {
  HOTSET_RETURN_IF_ERROR(check_lookup(work, misses, order_.size()));
  if (!is_valid(costs)) return std::unexpected(validate(costs).error());

  order_misses(costs.cpu_concurrent.expert_us, misses);
  const std::span order = std::span(order_).first(misses.size());
  const std::span candidates =
      std::span(candidates_).first(std::min(misses.size(), work.max_uploads) + 1);
  fill_device_side(costs, work, misses, order, candidates);
  fill_cpu_side(costs, misses, order, candidates);

  size_t best = 0;
  for (size_t u = 0; u < candidates.size(); ++u) {
    SplitCost& split = candidates[u];
    if (split.cpu_us > split.device_us) split.binding = BindingLane::kCpu;
    split.value_us += fill_value_us(work, misses, order.subspan(u), split);
    split.cost_us = split.done_us() - split.value_us;
    if (split.cost_us < candidates[best].cost_us) best = u;
  }
  return LaneChoice{.n_uploads = best, .order = order, .candidates = candidates};
}

}  // namespace hotset::lanes
