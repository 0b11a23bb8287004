#include "hotset/policy/crf_auto.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "hotset/base/random.h"
#include "hotset/policy/class_lru.h"

namespace hotset::policy {
namespace {

// Any fixed number: the same sample in every run.
constexpr uint64_t kSampleSeed = 0x686f74736574;

int32_t sampled_per_layer(const PolicyShape& shape) {
  const int32_t wanted = (CrfAuto::kSampledExperts + shape.n_layers - 1) / shape.n_layers;
  return std::min(shape.n_expert, wanted);
}

// Slots in proportion to the sample, at least one.
PolicyShape ghost_shape(const PolicyShape& shape) {
  const int32_t n_sampled = sampled_per_layer(shape);
  const int64_t slots = (int64_t{shape.n_slots} * n_sampled + shape.n_expert / 2) / shape.n_expert;
  return {.n_layers = shape.n_layers,
          .n_expert = n_sampled,
          .n_slots = static_cast<int32_t>(std::max<int64_t>(slots, 1))};
}

}  // namespace

CrfAuto::CrfAuto(const PolicyShape& shape)
    : shape_(shape),
      bank_(shape.n_layers, shape.n_expert),
      lists_(shape.n_slots),
      heaps_(shape.n_layers, shape.n_expert, shape.n_slots),
      slot_of_(static_cast<size_t>(shape.n_experts()), kNoSlot),
      ghost_expert_of_(static_cast<size_t>(shape.n_experts()), -1) {
  const PolicyShape ghost = ghost_shape(shape);
  const auto n_sampled = static_cast<size_t>(ghost.n_expert);
  Random random(kSampleSeed);
  std::vector<int32_t> experts(static_cast<size_t>(shape.n_expert));
  for (int32_t layer = 0; layer < shape.n_layers; layer++) {
    std::iota(experts.begin(), experts.end(), layer * shape.n_expert);
    for (size_t i = 0; i < n_sampled; i++) {
      std::swap(experts[i], experts[i + random.below(experts.size() - i)]);
    }
    // Ascending, so that ties among ghosts go as they go among experts.
    std::sort(experts.begin(), experts.begin() + ghost.n_expert);
    for (size_t i = 0; i < n_sampled; i++) {
      ghost_expert_of_[experts[i]] = static_cast<int32_t>(sampled_experts_.size());
      sampled_experts_.push_back(experts[i]);
    }
  }
  sampled_uses_.reserve(n_sampled);
  ghosts_.reserve(kCandidates);
  for (size_t i = 0; i < kCandidates; i++) {
    ghosts_.emplace_back(static_cast<Candidate>(i), ghost, bank_, sampled_experts_);
  }
}

// class_lru's own half-life is the bank's longest.
CrfEstimate CrfAuto::score_estimate() const {
  return followed_ == Candidate::kClassLru ? CrfEstimate::kHalfLife128 : estimate_of(followed_);
}

BankOrder CrfAuto::order(int32_t planned_layer_index) const {
  return {bank_,
          score_estimate(),
          {.layer_index = planned_layer_index, .n_layers = shape_.n_layers, .n_tokens = n_tokens_}};
}

double CrfAuto::score(ExpertIndex expert) const {
  return bank_.uses_per_token(score_estimate(), expert);
}

double CrfAuto::score_after_use(ExpertIndex expert) const {
  return bank_.uses_per_token_after_use(score_estimate(), expert);
}

int32_t CrfAuto::choose_victims(const NeededSlots& needed, std::span<Victim> victims) const {
  const auto age_of = [&](ExpertIndex expert) { return bank_.age(expert); };
  const int32_t n = followed_ == Candidate::kClassLru
                        ? lists_.choose(needed, age_of, victims)
                        : heaps_.choose(needed, order(needed.layer_index), victims);
  for (Victim& victim : victims.first(n)) {
    victim.score = score(victim.expert);
  }
  return n;
}

std::string CrfAuto::explain(const Victim& victim) const {
  if (followed_ == Candidate::kClassLru) {
    return fmt::format("following class_lru: {}", explain_class_lru(victim));
  }
  return fmt::format(
      "following {}: least worth of all slots not needed, {:.3g} uses per token, {} tokens after "
      "its last use",
      candidate_name(followed_), victim.score, bank_.age(victim.expert));
}

std::string CrfAuto::explain() const {
  std::string rates;
  for (size_t i = 0; i < kCandidates; i++) {
    const auto candidate = static_cast<Candidate>(i);
    rates += fmt::format("{}{} {:.1f}%", i == 0 ? "" : ", ", candidate_name(candidate),
                         100 * ghost_hit_rate(candidate));
  }
  return fmt::format(
      "crf-auto: following {} after {} switches; hit rates of the ghosts on {} of {} experts: {}",
      candidate_name(followed_), n_switches_, sampled_experts_.size(), shape_.n_experts(), rates);
}

Candidate CrfAuto::Judged::best() const {
  return static_cast<Candidate>(std::ranges::max_element(hits) - hits.begin());
}

double CrfAuto::Judged::rate(Candidate candidate) const {
  return selected > 0 ? hits[std::to_underlying(candidate)] / selected : 0;
}

void CrfAuto::Judged::decay(double factor) {
  for (double& n : hits) n *= factor;
  selected *= factor;
}

double CrfAuto::ghost_hit_rate(Candidate candidate) const { return judged_.rate(candidate); }

void CrfAuto::on_lookup(int32_t layer_index, std::span<const Use> uses) {
  sampled_uses_.clear();
  for (const Use& use : uses) {
    bank_.use(layer_index, use.expert);
    const int32_t ghost_expert = ghost_expert_of_[use.expert];
    if (ghost_expert >= 0) sampled_uses_.push_back(ghost_expert);
    if (use.slot != kNoSlot) {
      lists_.remove(use.slot);
      lists_.append(use.expert, use.slot, ClassLists::class_of(bank_.class_crf(use.expert)));
    }
  }
}

void CrfAuto::on_insert(ExpertIndex expert, int32_t slot) {
  slot_of_[expert] = slot;
  lists_.append(expert, slot, ClassLists::class_of(bank_.class_crf(expert)));
  if (followed_ != Candidate::kClassLru) heaps_.insert(expert, slot, order(0).key(expert));
}

void CrfAuto::on_evict(ExpertIndex expert, int32_t slot) {
  slot_of_[expert] = kNoSlot;
  lists_.remove(slot);
  if (followed_ != Candidate::kClassLru) heaps_.erase(expert);
}

void CrfAuto::on_advance(int32_t layer_index, int32_t n_tokens) {
  const bool judged = n_tokens <= kJudgedTokens;
  std::ranges::sort(sampled_uses_);
  const RankedLookup planned = {
      .layer_index = layer_index, .n_layers = shape_.n_layers, .n_tokens = n_tokens_};
  for (size_t i = 0; i < kCandidates; i++) {
    if (judged) {
      const double n_hits = ghosts_[i].lookup(planned, sampled_uses_);
      judged_.hits[i] += n_hits;
      recent_.hits[i] += n_hits;
    } else {
      ghosts_[i].promote(sampled_uses_);
    }
  }
  if (judged) {
    judged_.selected += static_cast<double>(sampled_uses_.size());
    recent_.selected += static_cast<double>(sampled_uses_.size());
  }
  sampled_uses_.clear();
  bank_.advance(layer_index, n_tokens);
  heaps_.touch(layer_index);
  for (GhostCache& ghost : ghosts_) ghost.on_advance(layer_index);
  n_tokens_ = n_tokens;
  if (judged && layer_index == shape_.n_layers - 1) review(n_tokens);
}

// Once per round of the layers.
void CrfAuto::review(int32_t n_tokens) {
  const Candidate now = recent_.best();
  const Candidate best = judged_.best();
  if (recent_.rate(now) - recent_.rate(followed_) > kRecentMargin) {
    follow(now);
  } else if (judged_.rate(best) - judged_.rate(followed_) > kMargin &&
             recent_.rate(followed_) - recent_.rate(best) < kRecentMargin / 2) {
    follow(best);
  }
  judged_.decay(std::exp2(-n_tokens / kRateHalfLifeTokens));
  recent_.decay(std::exp2(-n_tokens / kRecentHalfLifeTokens));
}

void CrfAuto::follow(Candidate candidate) {
  followed_ = candidate;
  n_switches_++;
  heaps_.clear();
  if (candidate == Candidate::kClassLru) return;
  for (ExpertIndex expert = 0; expert < shape_.n_experts(); expert++) {
    const int32_t slot = slot_of_[expert];
    if (slot != kNoSlot) heaps_.insert(expert, slot, order(0).key(expert));
  }
}

}  // namespace hotset::policy
