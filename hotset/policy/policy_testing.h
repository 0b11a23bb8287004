// For tests of policies: the smallest mechanism that drives one, random lookups, and naive policies
// that scan everything, written straight from the descriptions of the policies.
// Thread-compatible.
#ifndef HOTSET_POLICY_POLICY_TESTING_H_
#define HOTSET_POLICY_POLICY_TESTING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "hotset/base/error.h"
#include "hotset/base/random.h"
#include "hotset/policy/crf_auto.h"
#include "hotset/policy/registry.h"

namespace hotset::policy::test {

// The seed of a property test: HOTSET_TEST_SEED, or a fixed one. Printed, so that a failure can be
// repeated.
inline uint64_t test_seed() {
  const char* given = std::getenv("HOTSET_TEST_SEED");
  const uint64_t seed = given == nullptr ? 20240229 : std::strtoull(given, nullptr, 10);
  std::cout << "HOTSET_TEST_SEED=" << seed << "\n";
  return seed;
}

// A lookup: distinct experts (indices of the group) of one layer, in order of first appearance.
struct TestLookup {
  int32_t layer_index = 0;
  int32_t n_tokens = 1;
  std::vector<ExpertIndex> experts;
};

// Lookups of all layers in turn with locality: experts of low numbers are used more, and which ones
// those are drifts.
inline std::vector<TestLookup> random_lookups(Random& random, const PolicyShape& shape, int n,
                                              int32_t max_experts, int32_t max_tokens) {
  std::vector<TestLookup> lookups;
  for (int i = 0; i < n; i++) {
    TestLookup lookup;
    lookup.layer_index = i % shape.n_layers;
    lookup.n_tokens = 1 + static_cast<int32_t>(random.below(static_cast<uint64_t>(max_tokens)));
    const auto n_distinct = 1 + random.below(static_cast<uint64_t>(max_experts));
    std::set<ExpertIndex> seen;
    while (seen.size() < n_distinct) {
      const double skewed = std::pow(random.uniform(), 2.5) * shape.n_expert;
      const int32_t drift = i / 150;
      const int32_t expert = (static_cast<int32_t>(skewed) + drift) % shape.n_expert;
      const ExpertIndex index = lookup.layer_index * shape.n_expert + expert;
      if (seen.insert(index).second) lookup.experts.push_back(index);
    }
    lookups.push_back(std::move(lookup));
  }
  return lookups;
}

// The oracle of a sequence of lookups, at its first one.
inline RecordedFuture future_of(const PolicyShape& shape, const std::vector<TestLookup>& lookups) {
  RecordedFuture future(shape.n_experts());
  for (const TestLookup& lookup : lookups) HOTSET_CHECK(future.append(lookup.experts));
  future.rewind();
  return future;
}

// Uses of each expert in a sequence of lookups.
inline std::vector<uint64_t> profile_of(const PolicyShape& shape,
                                        const std::vector<TestLookup>& lookups) {
  std::vector<uint64_t> profile(static_cast<size_t>(shape.n_experts()));
  for (const TestLookup& lookup : lookups) {
    for (const ExpertIndex expert : lookup.experts) profile[expert]++;
  }
  return profile;
}

// A slot table and a policy, that serve lookups as the cache does. Checks the policy's answers.
class TestCache {
 public:
  struct Outcome {
    std::vector<ExpertIndex> hits;
    std::vector<ExpertIndex> inserted;                     // ascending
    std::vector<ExpertIndex> declined;                     // misses without a slot
    std::vector<std::pair<int32_t, ExpertIndex>> evicted;  // slot, expert; in order
    bool operator==(const Outcome&) const = default;
  };

  TestCache(const PolicyShape& shape, Policy& policy)
      : shape_(shape),
        policy_(policy),
        expert_in_(static_cast<size_t>(shape.n_slots), -1),
        slot_of_(static_cast<size_t>(shape.n_experts()), kNoSlot),
        stamps_(shape.n_slots) {}

  struct Options {
    size_t max_inserts = SIZE_MAX;  // how many misses may get a slot
    bool may_evict = true;          // or only empty slots are given
    bool best_scored_first = true;  // which misses get the slots there are, or the lowest experts
  };

  Outcome lookup(const TestLookup& lookup, const Options& options) {
    Outcome outcome;
    stamp_++;
    std::vector<Use> uses;
    std::vector<std::pair<double, ExpertIndex>> misses;
    for (const ExpertIndex expert : lookup.experts) {
      const int32_t slot = slot_of(expert);
      uses.push_back({expert, slot});
      if (slot == kNoSlot) {
        // Best first; of equal scores the higher expert.
        misses.push_back(options.best_scored_first
                             ? std::pair(-policy_.score_after_use(expert), -expert)
                             : std::pair(static_cast<double>(expert), -expert));
      } else {
        stamps_[slot] = stamp_;
        outcome.hits.push_back(expert);
      }
    }
    std::ranges::sort(misses);
    std::vector<Victim> places = empty_places(misses.size());
    if (options.may_evict) {
      for (const Victim& victim : victims(lookup.layer_index, misses.size() - places.size())) {
        places.push_back(victim);
      }
    }
    size_t n_placed = 0;
    for (const auto& [score, negated] : misses) {
      const ExpertIndex expert = -negated;
      const bool placed =
          n_placed < std::min(options.max_inserts, places.size()) &&
          policy_.admits(expert, places[n_placed].expert < 0 ? nullptr : &places[n_placed]);
      (placed ? outcome.inserted : outcome.declined).push_back(expert);
      if (placed) n_placed++;
    }
    std::ranges::sort(outcome.inserted);
    policy_.on_lookup(lookup.layer_index, uses);
    for (size_t i = 0; i < n_placed; i++) {
      if (places[i].expert < 0) continue;
      outcome.evicted.push_back({places[i].slot, places[i].expert});
      evict(places[i].slot);
    }
    for (size_t i = 0; i < n_placed; i++) insert(outcome.inserted[i], places[i].slot);
    policy_.on_advance(lookup.layer_index, lookup.n_tokens);
    return outcome;
  }
  Outcome lookup(const TestLookup& one) { return lookup(one, Options()); }

  void insert(ExpertIndex expert, int32_t slot) {
    HOTSET_CHECK(expert_in(slot) < 0 && slot_of(expert) == kNoSlot);
    expert_in_[slot] = expert;
    slot_of_[expert] = slot;
    policy_.on_insert(expert, slot);
  }

  void evict(int32_t slot) {
    const ExpertIndex expert = expert_in(slot);
    HOTSET_CHECK(expert >= 0);
    expert_in_[slot] = -1;
    slot_of_[expert] = kNoSlot;
    policy_.on_evict(expert, slot);
  }

  // Asks for up to n victims, with no side effects; aborts if the answer breaks the contract.
  std::vector<Victim> victims(int32_t layer_index, size_t n) const {
    std::vector<Victim> found(n);
    const int32_t n_found = policy_.choose_victims({stamps_, stamp_, layer_index}, found);
    HOTSET_CHECK(n_found >= 0 && static_cast<size_t>(n_found) <= n);
    found.resize(n_found);
    std::set<int32_t> slots;
    for (const Victim& victim : found) {
      HOTSET_CHECK(victim.slot >= 0 && victim.slot < shape_.n_slots);
      HOTSET_CHECK(stamps_[victim.slot] != stamp_);
      HOTSET_CHECK(victim.expert >= 0 && expert_in(victim.slot) == victim.expert);
      HOTSET_CHECK(slots.insert(victim.slot).second);
    }
    return found;
  }

  int32_t slot_of(ExpertIndex expert) const { return slot_of_[expert]; }
  ExpertIndex expert_in(int32_t slot) const { return expert_in_[slot]; }
  int32_t n_resident() const {
    return static_cast<int32_t>(
        std::ranges::count_if(expert_in_, [](ExpertIndex expert) { return expert >= 0; }));
  }
  // The empty slots, lowest first, at most n.
  std::vector<Victim> empty_places(size_t n) const {
    std::vector<Victim> places;
    for (int32_t slot = 0; slot < shape_.n_slots && places.size() < n; slot++) {
      if (expert_in(slot) < 0) places.push_back({.slot = slot});
    }
    return places;
  }

 private:
  PolicyShape shape_;
  Policy& policy_;
  std::vector<ExpertIndex> expert_in_;
  std::vector<int32_t> slot_of_;
  std::vector<uint64_t> stamps_;
  uint64_t stamp_ = 1;
};

// Any policy by scanning all residents; all CRFs in a map.
class NaivePolicy : public Policy {
 public:
  NaivePolicy(std::string_view name, const PolicyConfig& config)
      : name_(name.substr(0, name.find(':'))),
        shape_(config.shape),
        future_(config.future),
        clocks_(shape_.n_layers),
        experts_(shape_.n_experts()) {
    if (name_ == "crf") {
      half_life_ = name.find(':') == name.npos ? kDefaultCrfHalfLifeTokens
                                               : std::stoi(std::string(name.substr(4)));
    }
    half_lives_ = {half_life_, 16, 128};
    if (name_ == "static") {
      std::vector<ExpertIndex> order;
      for (ExpertIndex expert = 0; expert < shape_.n_experts(); expert++) order.push_back(expert);
      std::ranges::sort(order, [&](ExpertIndex a, ExpertIndex b) {
        const uint64_t uses_a = config.profile[a];
        const uint64_t uses_b = config.profile[b];
        return uses_a != uses_b ? uses_a > uses_b : a < b;
      });
      hot_.insert(order.begin(), order.begin() + shape_.n_slots);
    }
  }

  double score(ExpertIndex expert) const override {
    if (name_ == "unbounded") return 0;
    if (name_.starts_with("belady")) return 1 / lookups_to(of(expert).next_use);
    if (name_ == "crf-blend")
      return blend_at_use(expert) * std::exp2(-static_cast<double>(age(expert)) / 16);
    return static_cast<double>(crf_now(expert, half_life_)) * (1 - std::exp2(-1.0 / half_life_));
  }

  double score_after_use(ExpertIndex expert) const override {
    if (name_ == "unbounded") return 0;
    if (name_.starts_with("belady")) return 1 / lookups_to(future_->next_use(expert));
    if (name_ == "crf-blend") {
      return blend(crf_now(expert, 16) + 1.0F, crf_now(expert, 128) + 1.0F);
    }
    return static_cast<double>(crf_now(expert, half_life_) + 1.0F) *
           (1 - std::exp2(-1.0 / half_life_));
  }

  int32_t choose_victims(const NeededSlots& needed, std::span<Victim> victims) const override {
    if (name_ == "static" || name_ == "unbounded") return 0;
    std::vector<ExpertIndex> left;
    for (ExpertIndex expert = 0; expert < shape_.n_experts(); expert++) {
      const int32_t slot = of(expert).slot;
      if (slot != kNoSlot && !needed.contains(slot)) left.push_back(expert);
    }
    size_t n = 0;
    for (; n < victims.size() && !left.empty(); n++) {
      const ExpertIndex expert =
          name_ == "class_lru" ? class_lru_victim(left) : least(left, needed.layer_index);
      victims[n] = {.slot = of(expert).slot, .expert = expert, .score = score(expert)};
      std::erase(left, expert);
    }
    return static_cast<int32_t>(n);
  }

  bool admits(ExpertIndex expert, const Victim* victim) const override {
    if (name_ == "static") return hot_.contains(expert);
    if (name_ != "belady") return true;
    const NextUse next_use = future_->next_use(expert);
    if (victim == nullptr) return next_use.lookup != kNeverUsed;
    return next_use < of(victim->expert).next_use;
  }

  std::string explain(const Victim&) const override { return "naive"; }
  std::string explain() const override { return "naive"; }

  void on_lookup(int32_t layer_index, std::span<const Use> uses) override {
    lookup_++;
    for (const Use& use : uses) {
      Expert& expert = of(use.expert);
      for (const int32_t half_life : half_lives_) {
        expert.crf[half_life] = crf_now(use.expert, half_life) + 1.0F;
      }
      expert.last_use = clocks_[layer_index];
      expert.last_lookup = lookup_;
      if (future_ != nullptr) expert.next_use = future_->next_use(use.expert);
      if (use.slot != kNoSlot) expert.promoted = ++promotions_;
    }
  }
  void on_insert(ExpertIndex expert, int32_t slot) override {
    of(expert).slot = slot;
    of(expert).promoted = ++promotions_;
  }
  void on_evict(ExpertIndex expert, int32_t) override { of(expert).slot = kNoSlot; }
  void on_advance(int32_t layer_index, int32_t n_tokens) override {
    clocks_[layer_index] += n_tokens;
    n_tokens_ = n_tokens;
  }

 private:
  struct Expert {
    std::map<int32_t, float> crf;  // by half-life, as of the last use
    int64_t last_use = 0;
    int64_t last_lookup = 0;
    NextUse next_use = {};
    int32_t slot = kNoSlot;
    int64_t promoted = 0;
  };
  Expert& of(ExpertIndex expert) { return experts_[expert]; }
  const Expert& of(ExpertIndex expert) const { return experts_[expert]; }

  int64_t age(ExpertIndex expert) const {
    return clocks_[expert / shape_.n_expert] - of(expert).last_use;
  }
  float crf_at_use(ExpertIndex expert, int32_t half_life) const {
    const auto found = of(expert).crf.find(half_life);
    return found == of(expert).crf.end() ? 0.0F : found->second;
  }
  float crf_now(ExpertIndex expert, int32_t half_life) const {
    const int64_t tokens = age(expert);
    const auto fraction =
        static_cast<float>(std::exp2(-static_cast<double>(tokens % half_life) / half_life));
    return crf_at_use(expert, half_life) *
           std::ldexp(fraction, -static_cast<int>(std::min<int64_t>(tokens / half_life, 200)));
  }
  static double blend(float crf16, float crf128) {
    return 0.5 * (static_cast<double>(crf16) * (1 - std::exp2(-1.0 / 16)) +
                  static_cast<double>(crf128) * (1 - std::exp2(-1.0 / 128)));
  }
  double blend_at_use(ExpertIndex expert) const {
    return blend(crf_at_use(expert, 16), crf_at_use(expert, 128));
  }
  double lookups_to(const NextUse& next_use) const {
    if (next_use.lookup == kNeverUsed) return HUGE_VAL;
    const double lookups =
        static_cast<double>(next_use.lookup) - static_cast<double>(future_->now());
    return std::max(1.0, lookups) + next_use.rank / 1048576.0;
  }

  ExpertIndex class_lru_victim(const std::vector<ExpertIndex>& left) const {
    std::map<int, ExpertIndex> oldest;  // by class
    for (const ExpertIndex expert : left) {
      const double crf = std::max(1.0F, crf_at_use(expert, 128));
      const int list = std::min(7, static_cast<int>(std::floor(std::log2(crf))));
      const auto [at, is_new] = oldest.try_emplace(list, expert);
      if (!is_new && of(expert).promoted < of(at->second).promoted) at->second = expert;
    }
    ExpertIndex victim = -1;
    double largest = -1;
    for (const auto& [list, expert] : oldest) {
      const double rank = static_cast<double>(age(expert)) / (1 << list);
      if (rank > largest) {
        largest = rank;
        victim = expert;
      }
    }
    return victim;
  }

  // The expert of the smallest rank, ties to the lower one.
  ExpertIndex least(const std::vector<ExpertIndex>& left, int32_t planned_layer) const {
    return *std::ranges::min_element(left, {}, [&](ExpertIndex expert) {
      return std::pair(rank(expert, planned_layer), expert);
    });
  }

  double rank(ExpertIndex expert, int32_t planned_layer) const {
    if (name_ == "lru") return static_cast<double>(of(expert).last_lookup);
    if (name_.starts_with("belady")) {
      const NextUse& next_use = of(expert).next_use;
      if (next_use.lookup == kNeverUsed) return -HUGE_VAL;
      return -(static_cast<double>(next_use.lookup) + next_use.rank / 1048576.0);
    }
    constexpr double kUnitsPerToken = 1 << 20;
    if (name_ == "crf") {
      const double crf = std::max(1.0F, crf_at_use(expert, half_life_));
      const double log2_crf = std::log2(crf);
      return std::floor(log2_crf * half_life_ * kUnitsPerToken + 0.5) -
             static_cast<double>(age(expert)) * kUnitsPerToken;
    }
    const int32_t layer_index = expert / shape_.n_expert;
    const int32_t ahead = layer_index > planned_layer
                              ? layer_index - planned_layer
                              : layer_index - planned_layer + shape_.n_layers;
    const double uses =
        blend(std::max(1.0F, crf_at_use(expert, 16)), std::max(1.0F, crf_at_use(expert, 128)));
    const double log2_uses =
        std::trunc(std::log2(uses) * 16 * kUnitsPerToken) / (16 * kUnitsPerToken) -
        static_cast<double>(age(expert)) / 16;
    return -(static_cast<double>(n_tokens_) / shape_.n_layers * ahead + std::exp2(-log2_uses));
  }

  std::string name_;
  PolicyShape shape_;
  const NextUseOracle* future_;
  int32_t half_life_ = 128;
  std::set<int32_t> half_lives_;
  std::set<ExpertIndex> hot_;
  std::vector<int64_t> clocks_;
  std::vector<Expert> experts_;
  int64_t lookup_ = 0;
  int64_t promotions_ = 0;
  int32_t n_tokens_ = 1;
};

// crf-auto for groups that it samples whole: a naive cache for each candidate, and the naive policy
// of the followed one for the real slots.
class NaiveCrfAuto : public Policy {
 public:
  explicit NaiveCrfAuto(const PolicyConfig& config) : shape_(config.shape) {
    HOTSET_CHECK(shape_.n_experts() <= CrfAuto::kSampledExperts);
    for (size_t i = 0; i < kCandidates; i++) {
      const std::string_view name = candidate_name(static_cast<Candidate>(i));
      real_.push_back(std::make_unique<NaivePolicy>(name, config));
      ghosts_.push_back(std::make_unique<NaivePolicy>(name, config));
      caches_.emplace_back(shape_, *ghosts_.back());
    }
  }

  double score(ExpertIndex expert) const override { return followed().score(expert); }
  double score_after_use(ExpertIndex expert) const override {
    return followed().score_after_use(expert);
  }
  int32_t choose_victims(const NeededSlots& needed, std::span<Victim> victims) const override {
    return followed().choose_victims(needed, victims);
  }
  bool admits(ExpertIndex, const Victim*) const override { return true; }
  std::string explain(const Victim&) const override { return "naive"; }
  std::string explain() const override { return "naive"; }

  void on_lookup(int32_t layer_index, std::span<const Use> uses) override {
    for (const auto& policy : real_) policy->on_lookup(layer_index, uses);
    lookup_.layer_index = layer_index;
    lookup_.experts.clear();
    for (const Use& use : uses) lookup_.experts.push_back(use.expert);
    // What a ghost misses it takes in ascending order, and promotes in that order, too.
    std::ranges::sort(lookup_.experts);
  }
  void on_insert(ExpertIndex expert, int32_t slot) override {
    for (const auto& policy : real_) policy->on_insert(expert, slot);
  }
  void on_evict(ExpertIndex expert, int32_t slot) override {
    for (const auto& policy : real_) policy->on_evict(expert, slot);
  }
  void on_advance(int32_t layer_index, int32_t n_tokens) override {
    for (const auto& policy : real_) policy->on_advance(layer_index, n_tokens);
    lookup_.n_tokens = n_tokens;
    const bool judged = n_tokens <= CrfAuto::kJudgedTokens;
    for (size_t i = 0; i < kCandidates; i++) {
      const TestCache::Options options = {.max_inserts = judged ? SIZE_MAX : 0,
                                          .best_scored_first = false};
      const auto outcome = caches_[i].lookup(lookup_, options);
      if (!judged) continue;
      hits_[i] += static_cast<double>(outcome.hits.size());
      recent_hits_[i] += static_cast<double>(outcome.hits.size());
    }
    if (!judged) return;
    selected_ += static_cast<double>(lookup_.experts.size());
    recent_selected_ += static_cast<double>(lookup_.experts.size());
    if (layer_index != shape_.n_layers - 1) return;
    const auto best = static_cast<size_t>(std::ranges::max_element(hits_) - hits_.begin());
    const auto now =
        static_cast<size_t>(std::ranges::max_element(recent_hits_) - recent_hits_.begin());
    const auto recent = [&](size_t i) { return recent_hits_[i] / recent_selected_; };
    if (recent(now) - recent(followed_) > CrfAuto::kRecentMargin) {
      followed_ = now;
    } else if (hits_[best] / selected_ - hits_[followed_] / selected_ > CrfAuto::kMargin &&
               recent(followed_) - recent(best) < CrfAuto::kRecentMargin / 2) {
      followed_ = best;
    }
    const double decay = std::exp2(-n_tokens / CrfAuto::kRateHalfLifeTokens);
    for (double& hits : hits_) hits *= decay;
    selected_ *= decay;
    const double recent_decay = std::exp2(-n_tokens / CrfAuto::kRecentHalfLifeTokens);
    for (double& hits : recent_hits_) hits *= recent_decay;
    recent_selected_ *= recent_decay;
  }

  Candidate followed_candidate() const { return static_cast<Candidate>(followed_); }

 private:
  const NaivePolicy& followed() const { return *real_[followed_]; }

  PolicyShape shape_;
  std::vector<std::unique_ptr<NaivePolicy>> real_;
  std::vector<std::unique_ptr<NaivePolicy>> ghosts_;
  std::vector<TestCache> caches_;
  TestLookup lookup_;
  std::array<double, kCandidates> hits_ = {};
  double selected_ = 0;
  std::array<double, kCandidates> recent_hits_ = {};
  double recent_selected_ = 0;
  size_t followed_ = static_cast<size_t>(Candidate::kBlend);
};

inline std::unique_ptr<Policy> make_naive(std::string_view name, const PolicyConfig& config) {
  if (name == "crf-auto") return std::make_unique<NaiveCrfAuto>(config);
  return std::make_unique<NaivePolicy>(name, config);
}

}  // namespace hotset::policy::test

#endif  // HOTSET_POLICY_POLICY_TESTING_H_
