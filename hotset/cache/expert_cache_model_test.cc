// ExpertCache against a naive cache, over random operations of all kinds.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "hotset/cache/expert_cache.h"
#include "hotset/policy/policy_testing.h"

namespace hotset::cache {
namespace {

// A group by maps and scans, on a naive policy.
class NaiveCache {
 public:
  NaiveCache(std::string_view policy, const policy::PolicyConfig& config)
      : shape_(config.shape),
        policy_(policy::test::make_naive(policy, config)),
        stamps_(config.shape.n_slots),
        carry_(config.shape.n_layers) {}

  struct Served {
    std::vector<std::pair<int32_t, int32_t>> uploads;  // expert, slot
    std::vector<int32_t> cpu_experts;
    std::vector<std::pair<policy::ExpertIndex, int32_t>> evictions;
    std::vector<std::pair<policy::ExpertIndex, int32_t>> fills;
    bool operator==(const Served&) const = default;
  };

  // Misses for the CPU by a fixed share, as design.md says it: none until all slots are taken.
  std::vector<int32_t> cpu_by_share(int32_t layer, const std::vector<int32_t>& ids, double share) {
    std::vector<std::pair<double, int32_t>> scored;
    for (const policy::ExpertIndex expert : misses(layer, ids)) {
      scored.push_back({policy_->score_after_use(expert), expert % shape_.n_expert});
    }
    std::ranges::sort(scored);
    if (!empty_slots().empty()) return {};
    int64_t& carry = carry_[layer];
    const int64_t parts =
        std::ssize(scored) * static_cast<int64_t>(std::round(65536 * share)) + carry;
    carry = parts % 65536;
    std::vector<int32_t> cpu;
    for (int64_t i = 0; i < parts / 65536; i++) cpu.push_back(scored[i].second);
    return cpu;
  }

  Served commit(int32_t layer, const std::vector<int32_t>& ids, int32_t n_tokens,
                const std::vector<int32_t>& cpu, int32_t max_fills) {
    Served served;
    std::vector<std::pair<double, policy::ExpertIndex>> best_first = scored_misses(layer, ids);
    std::vector<policy::Victim> places = places_for(layer, ids, best_first.size());
    std::vector<policy::ExpertIndex> placed;
    std::vector<std::pair<double, policy::ExpertIndex>> left;
    for (const auto& [score, expert] : best_first) {
      const bool to_cpu = std::ranges::contains(cpu, expert % shape_.n_expert);
      if (!to_cpu && placed.size() < places.size() && admits(expert, places[placed.size()])) {
        placed.push_back(expert);
      } else {
        left.push_back({score, expert});
      }
    }
    use(layer, ids);
    const size_t n_placed = placed.size();
    place(placed, places, served);
    size_t next = n_placed;
    for (const auto& [score, expert] : left) {
      if (std::ssize(served.fills) == max_fills || next == places.size()) break;
      const policy::Victim& victim = places[next];
      const bool on_its_way =
          std::ranges::contains(reserved_, expert, &Reserved::value_type::second);
      if (on_its_way) continue;
      if (victim.expert >= 0 && score <= victim.score) break;
      if (!admits(expert, victim)) continue;
      if (victim.expert >= 0) evict(victim.slot, served);
      reserved_[victim.slot] = expert;
      served.fills.push_back({expert, victim.slot});
      next++;
    }
    for (const auto& [score, expert] : left) served.cpu_experts.push_back(expert % shape_.n_expert);
    std::ranges::sort(served.cpu_experts);
    policy_->on_advance(layer, n_tokens);
    return served;
  }

  Served prefill(int32_t layer, const std::vector<int32_t>& ids, int32_t n_tokens,
                 size_t max_inserts) {
    Served served;
    std::vector<std::pair<int64_t, policy::ExpertIndex>> most_routed;  // negative pairs, expert
    for (const policy::ExpertIndex expert : misses(layer, ids)) {
      most_routed.push_back({-std::ranges::count(ids, expert % shape_.n_expert), expert});
    }
    std::ranges::sort(most_routed);
    std::vector<policy::Victim> places;
    for (const int32_t slot : empty_slots()) places.push_back({.slot = slot});
    std::vector<policy::ExpertIndex> placed;
    for (const auto& [pairs, expert] : most_routed) {
      if (placed.size() < std::min(max_inserts, places.size()) &&
          policy_->admits(expert, nullptr)) {
        placed.push_back(expert);
      } else {
        served.cpu_experts.push_back(expert % shape_.n_expert);
      }
    }
    std::ranges::sort(served.cpu_experts);
    use(layer, ids);
    place(placed, places, served);
    policy_->on_advance(layer, n_tokens);
    return served;
  }

  // Completes or cancels the fill of a slot; returns whether its expert entered.
  bool end_fill(int32_t slot, bool completed) {
    const policy::ExpertIndex expert = reserved_.at(slot);
    reserved_.erase(slot);
    if (!completed || slot_of(expert) != policy::kNoSlot) return false;
    resident_[slot] = expert;
    policy_->on_insert(expert, slot);
    return true;
  }

  void drop(int32_t slot) {
    Served ignored;
    evict(slot, ignored);
  }

  int32_t slot_of(policy::ExpertIndex expert) const {
    for (const auto& [slot, held] : resident_) {
      if (held == expert) return slot;
    }
    return policy::kNoSlot;
  }
  const std::map<int32_t, policy::ExpertIndex>& resident() const { return resident_; }
  const std::map<int32_t, policy::ExpertIndex>& reserved() const { return reserved_; }

 private:
  using Reserved = std::map<int32_t, policy::ExpertIndex>;

  std::vector<policy::ExpertIndex> distinct(int32_t layer, const std::vector<int32_t>& ids) const {
    std::vector<policy::ExpertIndex> experts;
    for (const int32_t id : ids) {
      const policy::ExpertIndex expert = layer * shape_.n_expert + id;
      if (!std::ranges::contains(experts, expert)) experts.push_back(expert);
    }
    return experts;
  }

  std::vector<policy::ExpertIndex> misses(int32_t layer, const std::vector<int32_t>& ids) const {
    std::vector<policy::ExpertIndex> experts = distinct(layer, ids);
    std::erase_if(experts,
                  [&](policy::ExpertIndex expert) { return slot_of(expert) != policy::kNoSlot; });
    return experts;
  }

  // Best first; of equal scores the higher expert.
  std::vector<std::pair<double, policy::ExpertIndex>> scored_misses(
      int32_t layer, const std::vector<int32_t>& ids) const {
    std::vector<std::pair<double, policy::ExpertIndex>> scored;
    for (const policy::ExpertIndex expert : misses(layer, ids)) {
      scored.push_back({policy_->score_after_use(expert), expert});
    }
    std::ranges::sort(scored, std::greater());
    return scored;
  }

  std::vector<int32_t> empty_slots() const {
    std::vector<int32_t> slots;
    for (int32_t slot = 0; slot < shape_.n_slots; slot++) {
      if (!resident_.contains(slot) && !reserved_.contains(slot)) slots.push_back(slot);
    }
    return slots;
  }

  std::vector<policy::Victim> places_for(int32_t layer, const std::vector<int32_t>& ids, size_t n) {
    stamp_++;
    for (const policy::ExpertIndex expert : distinct(layer, ids)) {
      const int32_t slot = slot_of(expert);
      if (slot != policy::kNoSlot) stamps_[slot] = stamp_;
    }
    std::vector<policy::Victim> places;
    for (const int32_t slot : empty_slots()) {
      if (places.size() < n) places.push_back({.slot = slot});
    }
    std::vector<policy::Victim> victims(n - places.size());
    const int32_t found = policy_->choose_victims({stamps_, stamp_, layer}, victims);
    places.insert(places.end(), victims.begin(), victims.begin() + found);
    return places;
  }

  bool admits(policy::ExpertIndex expert, const policy::Victim& place) const {
    return policy_->admits(expert, place.expert < 0 ? nullptr : &place);
  }

  void use(int32_t layer, const std::vector<int32_t>& ids) {
    std::vector<policy::Use> uses;
    for (const policy::ExpertIndex expert : distinct(layer, ids))
      uses.push_back({expert, slot_of(expert)});
    policy_->on_lookup(layer, uses);
  }

  void evict(int32_t slot, Served& served) {
    const policy::ExpertIndex expert = resident_.at(slot);
    served.evictions.push_back({expert, slot});
    resident_.erase(slot);
    policy_->on_evict(expert, slot);
  }

  void place(std::vector<policy::ExpertIndex> experts, const std::vector<policy::Victim>& places,
             Served& served) {
    std::vector<int32_t> slots;
    for (size_t i = 0; i < experts.size(); i++) {
      if (places[i].expert >= 0) evict(places[i].slot, served);
      slots.push_back(places[i].slot);
    }
    std::ranges::sort(experts);
    std::ranges::sort(slots);
    for (size_t i = 0; i < experts.size(); i++) {
      resident_[slots[i]] = experts[i];
      policy_->on_insert(experts[i], slots[i]);
      served.uploads.push_back({experts[i] % shape_.n_expert, slots[i]});
    }
  }

  policy::PolicyShape shape_;
  std::unique_ptr<policy::Policy> policy_;
  std::map<int32_t, policy::ExpertIndex> resident_;  // by slot
  Reserved reserved_;                                // by slot
  std::vector<uint64_t> stamps_;
  uint64_t stamp_ = 1;
  std::vector<int64_t> carry_;
};

NaiveCache::Served served_by(const LookupPlan& plan, const policy::PolicyShape& shape) {
  NaiveCache::Served served;
  for (const Upload& upload : plan.uploads) served.uploads.push_back({upload.expert, upload.slot});
  served.cpu_experts.assign(plan.cpu_experts.begin(), plan.cpu_experts.end());
  for (const Eviction& eviction : plan.evictions) {
    served.evictions.push_back(
        {eviction.key.layer * shape.n_expert + eviction.key.expert, eviction.slot});
  }
  for (const Fill& fill : plan.fills) {
    served.fills.push_back({fill.key.layer * shape.n_expert + fill.key.expert, fill.slot});
  }
  return served;
}

// Random ids [n_tokens, k], the experts of a token distinct.
std::vector<int32_t> random_ids(Random& random, const policy::PolicyShape& shape, int32_t n_tokens,
                                int32_t k, int step) {
  std::vector<int32_t> ids;
  for (int32_t token = 0; token < n_tokens; token++) {
    std::set<int32_t> of_token;
    while (std::ssize(of_token) < k) {
      const double skewed = std::pow(random.uniform(), 2.5) * shape.n_expert;
      const int32_t id = (static_cast<int32_t>(skewed) + step / 200) % shape.n_expert;
      if (of_token.insert(id).second) ids.push_back(id);
    }
  }
  return ids;
}

class ExpertCacheModel : public ::testing::TestWithParam<std::string> {};

TEST_P(ExpertCacheModel, DecidesAsANaiveCacheDoes) {
  Random random(policy::test::test_seed());
  for (int round = 0; round < 8; round++) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    policy::PolicyShape shape{.n_layers = 1 + static_cast<int32_t>(random.below(4)),
                              .n_expert = 6 + static_cast<int32_t>(random.below(30))};
    shape.n_slots =
        2 + static_cast<int32_t>(random.below(static_cast<uint64_t>(shape.n_experts() / 2)));
    const auto k = 1 + static_cast<int32_t>(random.below(4));
    const float share = round % 3 == 0 ? 0.0F : static_cast<float>(random.uniform());
    std::vector<uint64_t> profile(static_cast<size_t>(shape.n_experts()));
    for (uint64_t& uses : profile) uses = random.below(9);
    CacheGroup group{.spec = {.n_expert = shape.n_expert,
                              .layers = {},
                              .group_host_bytes = mib(1),
                              .device_host_bytes = mib(1),
                              .expert_bytes = {{1024}}},
                     .n_slots = shape.n_slots,
                     .profile = profile};
    for (int32_t layer = 0; layer < shape.n_layers; layer++) group.spec.layers.push_back(layer);
    ExpertCache cache = ExpertCache::create({group}, GetParam()).value();
    FixedShare fixed_share = FixedShare::create(share, shape.n_layers).value();
    NaiveCache naive(GetParam(), {.shape = shape, .profile = profile});

    CacheCounts counted;
    for (int step = 0; step < 1500; step++) {
      const int32_t layer = step % shape.n_layers;
      const uint64_t kind = random.below(20);
      if (kind == 0 && !naive.reserved().empty()) {
        const int32_t slot = naive.reserved().begin()->first;
        const bool completed = random.below(4) != 0;
        const bool entered = naive.end_fill(slot, completed);
        if (completed) {
          ASSERT_EQ(cache.complete_fill(0, slot).value(), entered);
        } else {
          ASSERT_TRUE(cache.cancel_fill(0, slot));
        }
      } else if (kind == 1 && !naive.resident().empty()) {
        const int32_t slot = naive.resident().rbegin()->first;
        naive.drop(slot);
        ASSERT_TRUE(cache.drop(0, slot));
      }
      const int32_t n_tokens =
          kind < 14 ? 1 : 1 + static_cast<int32_t>(random.below(kind < 18 ? 8 : 60));
      const std::vector<int32_t> ids = random_ids(random, shape, n_tokens, k, step);
      if (random.below(8) == 0) {  // a lookup that is given up
        ASSERT_TRUE(cache.classify(layer, ids, n_tokens, k));
      }
      const Lookup lookup = cache.classify(layer, ids, n_tokens, k).value();
      counted.hits += lookup.hits.size();
      counted.selected += lookup.hits.size() + lookup.misses.size();
      if (n_tokens > 32) {
        const size_t max_inserts = random.below(4);
        const auto plan = cache.commit_prefill(lookup, static_cast<int32_t>(max_inserts));
        ASSERT_TRUE(plan) << plan.error().message;
        ASSERT_EQ(served_by(*plan, shape), naive.prefill(layer, ids, n_tokens, max_inserts));
      } else {
        std::vector<int32_t> cpu;
        for (const Miss& miss : lookup.misses.first(fixed_share.take(lookup))) {
          cpu.push_back(miss.expert);
        }
        ASSERT_EQ(cpu, naive.cpu_by_share(layer, ids, share));
        std::ranges::reverse(cpu);  // the order does not matter
        const auto max_fills = static_cast<int32_t>(random.below(3));
        const auto plan = cache.commit(lookup, {.cpu_experts = cpu, .max_fills = max_fills});
        ASSERT_TRUE(plan) << plan.error().message;
        const NaiveCache::Served served = served_by(*plan, shape);
        const NaiveCache::Served expected = naive.commit(layer, ids, n_tokens, cpu, max_fills);
        ASSERT_EQ(served.uploads, expected.uploads);
        ASSERT_EQ(served.cpu_experts, expected.cpu_experts);
        ASSERT_EQ(served.evictions, expected.evictions);
        ASSERT_EQ(served.fills, expected.fills);
      }
      for (policy::ExpertIndex expert = 0; expert < shape.n_experts(); expert++) {
        ASSERT_EQ(cache.slots(0).slot_of(expert), naive.slot_of(expert));
      }
    }
    const CacheCounts counts = cache.total_counts();
    EXPECT_EQ(counts.hits, counted.hits);
    EXPECT_EQ(counts.selected, counted.selected);
    EXPECT_EQ(counts.hits + counts.uploads + counts.cpu + counts.streamed, counts.selected);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, ExpertCacheModel,
                         ::testing::Values("class_lru", "crf", "crf:2", "crf-blend", "crf-auto",
                                           "lru", "static"),
                         [](const auto& name) {
                           std::string text = name.param;
                           std::ranges::replace_if(
                               text, [](char c) { return c == '-' || c == ':'; }, '_');
                           return text;
                         });

}  // namespace
}  // namespace hotset::cache
