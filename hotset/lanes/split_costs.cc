#include "hotset/lanes/split_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "hotset/lanes/cache_rules.h"

namespace hotset::lanes {
namespace {

// An expert that the CPU serves may enter by a fill a little later, so an upload is worth only what
// it saves until then, and not over its whole stay: with the whole stay the link of a large cache
// carries every miss, at up to 1.5 times the time. On the traces of docs/replay.md the modelled
// time is flat between 2 and 8 tokens.
constexpr double kFillHorizonTokens = 4;

// While there are empty slots, far more experts want in than fills can bring, and what enters
// stays. The modelled time of a run from a cold cache is flat between 80 and 100 tokens.
constexpr double kColdHorizonTokens = 96;

// A chunk large enough that starting its copies does not count, and small enough that the first
// one, which nothing overlaps with, does not either.
constexpr Bytes kMaxChunkBytes = mib(32);
constexpr int64_t kMinChunks = 8;

// Of an expert that enters an empty slot. A prompt does not wait for what only later tokens gain.
double cold_value_us(const UploadValue& value, const cache::Lookup& lookup, double score) {
  if (lookup.n_tokens > kDefaultCacheBatch) return 0;
  return std::min(kMaxCost, value.saving_us() * kColdHorizonTokens * score);
}

// What the cheapest split takes, whatever its uploads are worth later.
double cheapest_us(std::span<const SplitCost> splits) {
  return std::ranges::min(splits, {}, &SplitCost::done_us).done_us();
}

}  // namespace

int64_t stage_experts(const cache::GroupSpec& group) {
  const int64_t fit = kMaxChunkBytes.count / group.bytes_per_expert().count;
  return std::clamp<int64_t>(fit, 1, std::max<int64_t>(1, group.n_expert / kMinChunks));
}

Result<SplitCosts> SplitCosts::create(std::span<const LaneCosts> costs,
                                      const cache::ExpertCache& cache) {
  if (std::cmp_not_equal(costs.size(), cache.n_groups())) {
    return make_error(ErrorCode::kInvalidArgument, "costs of {} groups, expected {}", costs.size(),
                      cache.n_groups());
  }
  size_t max_misses = 0;
  for (int32_t g = 0; g < cache.n_groups(); ++g) {
    max_misses = std::max(max_misses, static_cast<size_t>(cache.spec(g).n_expert));
  }
  SplitCosts result(max_misses);
  for (int32_t g = 0; g < cache.n_groups(); ++g) {
    const LaneCosts& of_group = costs[g];
    HOTSET_RETURN_IF_ERROR(validate(of_group));
    const cache::GroupSpec& spec = cache.spec(g);
    const Bytes expert_bytes = spec.bytes_per_expert();
    // Before anything is seen, a miss is taken to cost what the cheaper lane takes for it alone.
    const double one_upload_us =
        of_group.upload_solo_us.at(static_cast<double>(expert_bytes.count)) +
        of_group.pairs.turn_us;
    const double one_cpu_us =
        of_group.cpu_solo.turn_us + of_group.cpu_solo.expert_us.at(1) + of_group.rows_us;
    HOTSET_TRY(UploadValue value,
               UploadValue::create({.saving_us = std::min(one_upload_us, one_cpu_us),
                                    .residency_tokens = kFillHorizonTokens}));
    result.groups_.push_back(
        {of_group, value, expert_bytes, lanes::stage_experts(spec), spec.n_expert});
  }
  return result;
}

double SplitCosts::hit_us(const Group& group, const cache::Lookup& lookup) const {
  if (lookup.hits.empty()) return 0;
  double us = group.costs.pairs.turn_us;
  for (const cache::Hit& hit : lookup.hits) us += group.costs.pairs.expert_us.at(hit.n_pairs);
  return us;
}

double SplitCosts::copy_us(int32_t group, size_t n) const {
  if (n == 0) return 0;
  return of(group).costs.upload_solo_us.at(static_cast<double>(n) *
                                           static_cast<double>(of(group).expert_bytes.count));
}

double SplitCosts::all_on_cpu_us(const Group& group, const cache::Lookup& lookup) const {
  double us = group.costs.cpu_solo.turn_us + group.costs.all_rows_us;
  for (const cache::Hit& hit : lookup.hits) us += group.costs.cpu_solo.expert_us.at(hit.n_pairs);
  for (const cache::Miss& miss : lookup.misses)
    us += group.costs.cpu_solo.expert_us.at(miss.n_pairs);
  return us;
}

void SplitCosts::list_misses(const Group& group, const cache::Lookup& lookup) {
  const size_t n = lookup.misses.size();
  misses_.clear();
  worthless_.clear();
  // Misses come with the lowest score first, places in the order of their use: the best miss would
  // get the first place.
  for (size_t i = 0; i < n; ++i) {
    const cache::Miss& miss = lookup.misses[i];
    const size_t place = n - 1 - i;
    double value_us = 0;
    if (place < lookup.places.size()) {
      value_us = lookup.group_full ? group.value.value_us(miss.score, lookup.places[place].score)
                                   : cold_value_us(group.value, lookup, miss.score);
    }
    misses_.push_back({.expert = miss.expert, .n_tokens = miss.n_pairs, .value_us = value_us});
    if (lookup.n_tokens > 1) {
      worthless_.push_back({.expert = miss.expert, .n_tokens = miss.n_pairs});
    }
  }
}

Result<CostedLookup> SplitCosts::cost(const cache::Lookup& lookup, const Moment& moment) {
  const Group& group = of(lookup.group);
  list_misses(group, lookup);
  CostedLookup costed{.hit_us = hit_us(group, lookup)};
  HOTSET_TRY(costed.cached, cached_.choose(group.costs,
                                           {.expert_bytes = group.expert_bytes,
                                            .hit_us = costed.hit_us,
                                            .max_uploads = lookup.places.size(),
                                            .fill_us = moment.fills ? copy_us(lookup.group, 1) : 0,
                                            .fill_backlog_us = moment.outstanding_us,
                                            .other_us = moment.other_us},
                                           misses_));
  costed.all_on_cpu_us = all_on_cpu_us(group, lookup);
  costed.cheapest_us = std::min(costed.all_on_cpu_us, cheapest_us(costed.cached.candidates));
  if (lookup.n_tokens == 1 || !lookup.cached) return costed;
  // Chunks are computed while others are copied, so what that takes is left out of the choice.
  LaneCosts costs = group.costs;
  costs.pairs = {};
  HOTSET_TRY(costed.streamed,
             streamed_.choose(costs, {.expert_bytes = group.expert_bytes, .hit_us = costed.hit_us},
                              worthless_));
  return costed;
}

double SplitCosts::prefetched_us(const Group& group, const cache::Lookup& lookup, size_t n_uploads,
                                 double other_us) const {
  const auto n_selected = static_cast<double>(lookup.hits.size() + lookup.misses.size());
  if (!lookup.group_full || n_selected < kNearlyAll * static_cast<double>(group.n_expert) ||
      static_cast<double>(n_uploads) < kNearlyAll * static_cast<double>(lookup.misses.size())) {
    return 0;
  }
  const size_t n_first = std::min(n_uploads, static_cast<size_t>(group.stage_experts));
  return std::min(other_us, copy_us(lookup.group, n_first));
}

double SplitCosts::streamed_us(const cache::Lookup& lookup, const CostedLookup& costed,
                               size_t n_uploads, const Moment& moment) const {
  const Group& group = of(lookup.group);
  const ExpertCost& pairs = group.costs.pairs;
  const SplitCost& split = costed.streamed->candidates[n_uploads];
  double pairs_us = 0;
  for (const uint32_t i : costed.streamed->order.first(n_uploads)) {
    pairs_us += pairs.expert_us.at(worthless_[i].n_tokens);
  }
  const double n_chunks =
      std::ceil(static_cast<double>(n_uploads) / static_cast<double>(group.stage_experts));
  const double last_chunk_us = n_chunks > 0 ? pairs.turn_us + pairs_us / n_chunks : 0;
  const double device_us =
      std::max(costed.hit_us + n_chunks * pairs.turn_us + pairs_us, split.link_us + last_chunk_us);
  // Lists that nothing overlaps with, of hits and for the rows of the CPU lane.
  constexpr double kSteps = 2;
  return std::max(device_us, split.cpu_us) + kSteps * pairs.turn_us -
         prefetched_us(group, lookup, n_uploads, moment.other_us);
}

double SplitCosts::admission_us(const Group& group, const cache::Lookup& lookup, size_t n_uploads,
                                bool evicts) const {
  const size_t n = lookup.misses.size();
  // A score counts this use, and what it is compared with waits for its next one: where a lookup
  // selects most experts, any exchange would seem to gain. The coldest miss has little more than
  // this use.
  const double just_used = lookup.misses.empty() ? 0 : lookup.misses.front().score;
  double us = 0;
  for (size_t place = 0; place < std::min(n_uploads, lookup.places.size()); ++place) {
    const double score = lookup.misses[n - 1 - place].score;
    if (lookup.places[place].evicts < 0) {
      us += cold_value_us(group.value, lookup, score);
    } else if (evicts) {
      us += group.value.value_us(score - just_used, lookup.places[place].score);
    }
  }
  return us;
}

double SplitCosts::cached_us(const Group& group, const cache::Lookup& lookup,
                             const CostedLookup& costed) const {
  const SplitCost& split = costed.cached.cost();
  if (lookup.n_tokens == 1) return split.done_us();
  // Rows of several tokens come back by a list and a graph. Into empty slots fills bring more.
  const double later_us =
      lookup.group_full ? admission_us(group, lookup, costed.cached.n_uploads, /*evicts=*/true)
                        : split.value_us;
  return split.done_us() + group.costs.pairs.turn_us - later_us;
}

bool SplitCosts::prefers_streaming(const cache::Lookup& lookup, const CostedLookup& costed,
                                   const Moment& moment) const {
  const Group& group = of(lookup.group);
  size_t n_uploads = costed.streamed->n_uploads;
  double streams_us = streamed_us(lookup, costed, n_uploads, moment);
  if (costed.all_on_cpu_us <= streams_us) {
    n_uploads = 0;
    streams_us = costed.all_on_cpu_us;
  }
  streams_us -= admission_us(group, lookup, n_uploads, /*evicts=*/false);
  // If the CPU takes everything either way, what is not streamed may come in by fills.
  return streams_us < std::min(cached_us(group, lookup, costed), costed.all_on_cpu_us);
}

bool SplitCosts::prefers_all_on_cpu(const cache::Lookup& lookup, const CostedLookup& costed) const {
  // Uploads of one token that are worth their time are made all the same.
  return (costed.cached.n_uploads == 0 || lookup.n_tokens > 1) &&
         costed.all_on_cpu_us < cached_us(of(lookup.group), lookup, costed);
}

Status SplitCosts::observe(const cache::Lookup& lookup, const CostedLookup& costed,
                           std::span<const cache::Eviction> evictions) {
  Group& group = of(lookup.group);
  if (!lookup.misses.empty()) {
    // What the misses cost by the cheapest split, not by the one that was taken: with that one, a
    // value that is too high would make uploads, and slow uploads make it higher.
    const double split_us = cheapest_us(costed.cached.candidates);
    double all_hits_us = lookup.hits.empty() ? group.costs.pairs.turn_us : costed.hit_us;
    for (const cache::Miss& miss : lookup.misses) {
      all_hits_us += group.costs.pairs.expert_us.at(miss.n_pairs);
    }
    HOTSET_RETURN_IF_ERROR(group.value.observe_saving((split_us - all_hits_us) /
                                                      static_cast<double>(lookup.misses.size())));
  }
  for (const cache::Eviction& eviction : evictions) {
    HOTSET_RETURN_IF_ERROR(group.value.observe_residency(
        std::min(kFillHorizonTokens, static_cast<double>(eviction.residency_tokens))));
  }
  return {};
}

}  // namespace hotset::lanes
