#include "hotset/sim/replay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "hotset/cache/expert_cache.h"
#include "hotset/lanes/lookup_planner.h"
#include "hotset/policy/future.h"
#include "hotset/policy/registry.h"
#include "hotset/sim/reference_rules.h"
#include "hotset/sim/trace_cache.h"

namespace hotset::sim {
namespace {

// Lookups between two looks at the cancel flag and two reports of progress.
constexpr int64_t kLookupsPerReport = 1024;

double per_token(double amount, int64_t n_tokens) {
  return n_tokens > 0 ? amount / static_cast<double>(n_tokens) : 0;
}

// One pass over a trace through one cache.
class Replayer {
 public:
  static Result<Replayer> create(const TraceOpener& open, const ReplayOptions& options);

  Result<ReplayResult> run();

 private:
  Replayer(trace::TraceReader reader, const ReplayOptions& options)
      : reader_(std::move(reader)), options_(&options) {}

  Status record_future(const TraceOpener& open);
  Result<cache::ExpertCache> create_cache();
  Status create_planner();

  Status step(const trace::TraceLookup& traced);
  bool is_bypassed(const trace::TraceLookup& lookup) const;
  size_t group_of(const trace::TraceLookup& lookup) const {
    return static_cast<size_t>(reader_.group_by_layer()[lookup.layer]);
  }
  Status report(trace::TraceReader& reader, uint64_t& reported_bytes) const;

  trace::TraceReader reader_;
  const ReplayOptions* options_;
  policy::PolicyTraits traits_;
  std::vector<std::unique_ptr<policy::RecordedFuture>>
      futures_;                                // [n_groups], if the policy needs them
  std::unique_ptr<ZeroSlotLimit> zero_slots_;  // with compat_zero_slots
  std::optional<lanes::LookupPlanner> planner_;
  std::vector<int64_t> clock_;      // [n_layer] tokens seen
  std::vector<int64_t> n_counted_;  // [n_layer] tokens counted
  ReplayResult result_;
};

Status validate_options(const trace::TraceHeader& header, const ReplayOptions& options) {
  if (options.slots.size() != header.groups.size()) {
    return make_error(ErrorCode::kInvalidArgument, "slots are given for {} groups, expected {}",
                      options.slots.size(), header.groups.size());
  }
  if (!options.profile.empty() && options.profile.size() != header.groups.size()) {
    return make_error(ErrorCode::kInvalidArgument, "the profile has {} groups, expected {}",
                      options.profile.size(), header.groups.size());
  }
  if (options.counted.n_skipped() < 0) {
    return make_error(ErrorCode::kInvalidArgument, "tokens to skip is {}, expected 0 or more",
                      options.counted.n_skipped());
  }
  if (!options.rules.cpu_share && options.counted.compat_zero_slots) {
    return make_error(ErrorCode::kInvalidArgument,
                      "share auto has no reference counts, expected a number with "
                      "compat-zero-slots");
  }
  return {};
}

Result<Replayer> Replayer::create(const TraceOpener& open, const ReplayOptions& options) {
  HOTSET_TRY(trace::TraceReader reader, open());
  HOTSET_RETURN_IF_ERROR(validate_options(reader.header(), options));
  Replayer replayer(std::move(reader), options);
  HOTSET_TRY(replayer.traits_, policy::policy_traits(options.rules.policy));
  replayer.clock_.resize(replayer.reader_.header().n_layer);
  replayer.n_counted_.resize(replayer.reader_.header().n_layer);
  if (replayer.traits_.needs_future) HOTSET_RETURN_IF_ERROR(replayer.record_future(open));
  HOTSET_RETURN_IF_ERROR(replayer.create_planner());
  return replayer;
}

Status Replayer::record_future(const TraceOpener& open) {
  const trace::TraceHeader& header = reader_.header();
  for (const trace::TraceGroup& group : header.groups) {
    futures_.push_back(
        std::make_unique<policy::RecordedFuture>(static_cast<int32_t>(group.total_experts())));
  }
  const std::vector<policy::ExpertIndex> first_expert = first_expert_by_layer(header);
  HOTSET_TRY(trace::TraceReader pass, open());
  std::vector<policy::ExpertIndex> experts;
  uint64_t reported_bytes = 0;
  for (int64_t n = 1;; ++n) {
    HOTSET_TRY(const trace::TraceLookup* lookup, pass.next());
    if (lookup == nullptr) break;
    if (n % kLookupsPerReport == 0) HOTSET_RETURN_IF_ERROR(report(pass, reported_bytes));
    if (is_bypassed(*lookup)) continue;
    const policy::ExpertIndex first = first_expert[lookup->layer];
    experts.assign(lookup->ids.begin(), lookup->ids.end());
    for (policy::ExpertIndex& expert : experts) expert += first;
    HOTSET_RETURN_IF_ERROR(futures_[group_of(*lookup)]->append(experts));
  }
  for (const auto& future : futures_) future->rewind();
  return report(pass, reported_bytes);
}

Result<cache::ExpertCache> Replayer::create_cache() {
  std::vector<cache::CacheGroup> groups;
  for (size_t g = 0; g < reader_.header().groups.size(); ++g) {
    cache::CacheGroup& group = groups.emplace_back();
    group.spec = group_spec(reader_.header().groups[g]);
    group.n_slots = options_->slots[g];
    if (!options_->profile.empty()) group.profile = options_->profile[g];
    if (traits_.needs_future) group.future = futures_[g].get();
  }
  return cache::ExpertCache::create(std::move(groups), options_->rules.policy);
}

Status Replayer::create_planner() {
  HOTSET_TRY(cache::ExpertCache cache, create_cache());
  for (int32_t g = 0; g < cache.n_groups(); ++g) {
    result_.slots.push_back(cache.slots(g).n_slots());
  }
  lanes::LookupRules rules{.cache = options_->rules, .interceptor = options_->interceptor};
  // An offline bound declines what is not worth a slot; a fill would bring it back.
  if (traits_.needs_future) rules.cache.fills = false;
  if (options_->counted.compat_zero_slots) {
    const auto k = static_cast<int32_t>(reader_.header().experts_per_token);
    zero_slots_ =
        std::make_unique<ZeroSlotLimit>(reference_zero_slots(*options_->rules.cpu_share, k));
    rules.cache.fills = rules.streams = false;
    rules.cpu_limit = zero_slots_.get();
  }
  HOTSET_TRY(planner_, lanes::LookupPlanner::create(std::move(cache), rules));
  return {};
}

bool Replayer::is_bypassed(const trace::TraceLookup& lookup) const {
  const size_t g = group_of(lookup);
  const int64_t n_slots = options_->slots[g];
  return options_->counted.compat_zero_slots
             ? reference_bypasses(lookup, reader_.header().groups[g].n_expert, n_slots)
             : n_slots == 0 && !traits_.needs_all_slots;
}

Status Replayer::step(const trace::TraceLookup& traced) {
  HOTSET_RETURN_IF_ERROR(planner_->complete_fills());

  const auto layer = static_cast<size_t>(traced.layer);
  const bool counts = clock_[layer] >= options_->counted.n_skipped() &&
                      traced.n_tokens() <= options_->counted.max_counted_tokens;
  const bool bypassed = is_bypassed(traced);
  clock_[layer] += traced.n_tokens();
  if (counts) {
    n_counted_[layer] += traced.n_tokens();
    if (bypassed) ++result_.bypassed_lookups;
  }
  if (bypassed && options_->counted.compat_zero_slots) {
    if (counts) ++result_.counts.lookups;
    return {};
  }

  HOTSET_TRY(const lanes::PlannedLookup plan,
             planner_->plan(traced.layer, traced.ids, traced.n_tokens(), traced.experts_per_token));
  if (counts) {
    result_.counts +=
        lanes::planned_counts(plan, planner_->cache().spec(plan.group).bytes_per_expert());
    result_.modelled_us += plan.predicted_us;
  }
  if (!futures_.empty() && !bypassed) futures_[group_of(traced)]->advance();
  return {};
}

Status Replayer::report(trace::TraceReader& reader, uint64_t& reported_bytes) const {
  if (options_->cancelled != nullptr && options_->cancelled->load(std::memory_order_relaxed)) {
    return make_error(ErrorCode::kCancelled, "interrupted");
  }
  if (options_->progress) {
    options_->progress(reader.offset_bytes() - reported_bytes);
    reported_bytes = reader.offset_bytes();
  }
  return {};
}

Result<ReplayResult> Replayer::run() {
  uint64_t reported_bytes = 0;
  for (int64_t n = 1;; ++n) {
    HOTSET_TRY(const trace::TraceLookup* lookup, reader_.next());
    if (lookup == nullptr) break;
    if (n % kLookupsPerReport == 0) HOTSET_RETURN_IF_ERROR(report(reader_, reported_bytes));
    HOTSET_RETURN_IF_ERROR(step(*lookup));
  }
  HOTSET_RETURN_IF_ERROR(report(reader_, reported_bytes));
  result_.tokens = *std::ranges::max_element(n_counted_);
  if (result_.counts.lookups == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: has {} tokens, of which the first {} are skipped: nothing is left to "
                      "count",
                      reader_.name(), *std::ranges::max_element(clock_),
                      options_->counted.n_skipped());
  }
  return std::move(result_);
}

}  // namespace

double ReplayResult::upload_gib_per_token() const {
  return per_token(upload_bytes().gib(), tokens);
}
double ReplayResult::fill_gib_per_token() const {
  return per_token(counts.filled_bytes.gib(), tokens);
}
double ReplayResult::cpu_gib_per_token() const { return per_token(counts.cpu_bytes.gib(), tokens); }
double ReplayResult::modelled_ms_per_token() const { return per_token(modelled_us / 1000, tokens); }

Result<ReplayResult> replay(const TraceOpener& open, const ReplayOptions& options) {
  HOTSET_TRY(Replayer replayer, Replayer::create(open, options));
  return replayer.run();
}

}  // namespace hotset::sim
