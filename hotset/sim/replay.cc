#include "hotset/sim/replay.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "hotset/cache/expert_cache.h"
#include "hotset/lanes/lane_planner.h"
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
  Replayer(TraceReader reader, const ReplayOptions& options)
      : reader_(std::move(reader)), options_(&options), zero_slots_(0) {}

  Status record_future(const TraceOpener& open);
  Status create_cache();
  Status create_lanes();

  Status step(const TraceLookup& traced);
  Result<LookupPlan> serve(const TraceLookup& traced, const Lookup& lookup);
  Result<Decision> decide(const TraceLookup& traced, const Lookup& lookup);
  void count(const Lookup& lookup, const LookupPlan& plan, int64_t n_cpu);
  bool is_bypassed(const TraceLookup& lookup) const;
  size_t group_of(const TraceLookup& lookup) const {
    return static_cast<size_t>(reader_.group_by_layer()[static_cast<size_t>(lookup.layer)]);
  }
  Result<bool> is_streamed(const Lookup& lookup);
  Status report(TraceReader& reader, uint64_t& reported_bytes) const;

  TraceReader reader_;
  const ReplayOptions* options_;
  PolicyTraits traits_;
  std::vector<std::unique_ptr<RecordedFuture>> futures_;  // [n_groups], if the policy needs them
  std::optional<ExpertCache> cache_;
  std::optional<FixedShare> fixed_share_;
  std::optional<lanes::LanePlanner> lanes_;
  ZeroSlotLimit zero_slots_;
  std::vector<int32_t> cpu_experts_;
  std::vector<int64_t> clock_;      // [n_layer] tokens seen
  std::vector<int64_t> n_counted_;  // [n_layer] tokens counted
  ReplayResult result_;
  bool is_streamed_ = false;  // the lookup
  size_t n_crossing_ = 0;     // misses of the lookup that then cross the link
};

Status validate_options(const TraceHeader& header, const ReplayOptions& options) {
  if (options.slots.size() != header.groups.size()) {
    return make_error(ErrorCode::kInvalidArgument, "slots are given for {} groups, expected {}",
                      options.slots.size(), header.groups.size());
  }
  if (!options.profile.empty() && options.profile.size() != header.groups.size()) {
    return make_error(ErrorCode::kInvalidArgument, "the profile has {} groups, expected {}",
                      options.profile.size(), header.groups.size());
  }
  if (options.skip_tokens < 0) {
    return make_error(ErrorCode::kInvalidArgument, "tokens to skip is {}, expected 0 or more",
                      options.skip_tokens);
  }
  if (options.max_decode_tokens && *options.max_decode_tokens < 1) {
    return make_error(ErrorCode::kInvalidArgument, "tokens of a decode is {}, expected 1 or more",
                      *options.max_decode_tokens);
  }
  if (options.share.is_auto && options.compat_zero_slots) {
    return make_error(ErrorCode::kInvalidArgument,
                      "share auto has no reference counts, expected a number with "
                      "compat-zero-slots");
  }
  return {};
}

Result<Replayer> Replayer::create(const TraceOpener& open, const ReplayOptions& options) {
  HOTSET_TRY(TraceReader reader, open());
  HOTSET_RETURN_IF_ERROR(validate_options(reader.header(), options));
  Replayer replayer(std::move(reader), options);
  HOTSET_TRY(replayer.traits_, policy_traits(options.policy));
  replayer.clock_.resize(replayer.reader_.header().n_layer);
  replayer.n_counted_.resize(replayer.reader_.header().n_layer);
  if (replayer.traits_.needs_future) HOTSET_RETURN_IF_ERROR(replayer.record_future(open));
  HOTSET_RETURN_IF_ERROR(replayer.create_cache());
  HOTSET_RETURN_IF_ERROR(replayer.create_lanes());
  return replayer;
}

Status Replayer::record_future(const TraceOpener& open) {
  const TraceHeader& header = reader_.header();
  for (const TraceGroup& group : header.groups) {
    futures_.push_back(
        std::make_unique<RecordedFuture>(static_cast<int32_t>(group.total_experts())));
  }
  const std::vector<ExpertIndex> first_expert = first_expert_by_layer(header);
  HOTSET_TRY(TraceReader pass, open());
  std::vector<ExpertIndex> experts;
  uint64_t reported_bytes = 0;
  for (int64_t n = 1;; ++n) {
    HOTSET_TRY(const TraceLookup* lookup, pass.next());
    if (lookup == nullptr) break;
    if (n % kLookupsPerReport == 0) HOTSET_RETURN_IF_ERROR(report(pass, reported_bytes));
    if (is_bypassed(*lookup)) continue;
    const ExpertIndex first = first_expert[static_cast<size_t>(lookup->layer)];
    experts.assign(lookup->ids.begin(), lookup->ids.end());
    for (ExpertIndex& expert : experts) expert += first;
    HOTSET_RETURN_IF_ERROR(futures_[group_of(*lookup)]->append(experts));
  }
  for (const auto& future : futures_) future->rewind();
  return report(pass, reported_bytes);
}

Status Replayer::create_cache() {
  std::vector<CacheGroup> groups;
  for (size_t g = 0; g < reader_.header().groups.size(); ++g) {
    CacheGroup& group = groups.emplace_back();
    group.spec = group_spec(reader_.header().groups[g]);
    group.n_slots = options_->slots[g];
    if (!options_->profile.empty()) group.profile = options_->profile[g];
    if (traits_.needs_future) group.future = futures_[g].get();
  }
  HOTSET_TRY(cache_, ExpertCache::create(std::move(groups), options_->policy));
  for (int32_t g = 0; g < cache_->n_groups(); ++g) {
    result_.slots.push_back(cache_->slots(g).n_slots());
  }
  return {};
}

Status Replayer::create_lanes() {
  const TraceHeader& header = reader_.header();
  if (!options_->share.is_auto) {
    HOTSET_TRY(fixed_share_, FixedShare::create(static_cast<float>(options_->share.fixed),
                                                static_cast<int32_t>(header.n_layer)));
  }
  if (options_->compat_zero_slots) {
    zero_slots_ = ZeroSlotLimit(reference_zero_slots(
        options_->share.fixed, static_cast<int32_t>(header.experts_per_token)));
  }
  HOTSET_TRY(lanes_, lanes::LanePlanner::create(options_->rates, *cache_));
  lanes_->set_fills(options_->fills);
  const int32_t fixed = options_->max_decode_tokens.value_or(lanes::kMaxDecodeTokens);
  lanes_->set_max_decode_tokens(options_->share.is_auto ? options_->max_decode_tokens : fixed);
  return {};
}

bool Replayer::is_bypassed(const TraceLookup& lookup) const {
  const size_t g = group_of(lookup);
  const int64_t n_slots = options_->slots[g];
  return options_->compat_zero_slots
             ? reference_bypasses(lookup, reader_.header().groups[g].n_expert, n_slots)
             : n_slots == 0 && !traits_.needs_all_slots;
}

Result<Decision> Replayer::decide(const TraceLookup& traced, const Lookup& lookup) {
  cpu_experts_.clear();
  if (!lookup.cached) {
    for (const Miss& miss : lookup.misses) cpu_experts_.push_back(miss.expert);
    return Decision{.cpu_experts = cpu_experts_};
  }
  if (options_->share.is_auto) {
    HOTSET_TRY(const auto chosen, lanes_->choose_cpu_experts(lookup));
    cpu_experts_.assign(chosen.begin(), chosen.end());
  } else {
    const auto n_share = static_cast<size_t>(fixed_share_->take(lookup));
    for (const Miss& miss : lookup.misses.first(n_share)) cpu_experts_.push_back(miss.expert);
  }
  if (options_->compat_zero_slots) {
    cpu_experts_.resize(zero_slots_.apply(traced, cpu_experts_));
    return Decision{.cpu_experts = cpu_experts_};
  }
  // An offline bound declines what is not worth a slot; a fill would bring it back.
  if (cpu_experts_.empty() || traits_.needs_future || !options_->fills) {
    return Decision{.cpu_experts = cpu_experts_};
  }
  HOTSET_TRY(const int32_t max_fills,
             lanes_->max_fills(lookup, lookup.misses.size() - cpu_experts_.size()));
  return Decision{.cpu_experts = cpu_experts_, .max_fills = max_fills};
}

Result<bool> Replayer::is_streamed(const Lookup& lookup) {
  if (options_->compat_zero_slots) return false;
  if (lookup.cached) return lanes_->streams(lookup);
  return lookup.n_tokens > options_->max_decode_tokens.value_or(lanes::kMaxDecodeTokens);
}

Result<LookupPlan> Replayer::serve(const TraceLookup& traced, const Lookup& lookup) {
  n_crossing_ = lookup.misses.size();
  HOTSET_TRY(is_streamed_, is_streamed(lookup));
  if (is_streamed_) {
    if (options_->share.is_auto && lookup.cached) {
      HOTSET_TRY(const lanes::LanePlanner::Prefill prefill, lanes_->plan_prefill(lookup));
      n_crossing_ = prefill.all_on_cpu ? 0 : prefill.n_uploads;
    }
    return cache_->commit_prefill(lookup, static_cast<int32_t>(n_crossing_));
  }
  HOTSET_TRY(const Decision decision, decide(traced, lookup));
  return cache_->commit(lookup, decision);
}

Status Replayer::step(const TraceLookup& traced) {
  HOTSET_RETURN_IF_ERROR(lanes_->complete_fills(*cache_));

  const auto layer = static_cast<size_t>(traced.layer);
  const bool counts =
      clock_[layer] >= options_->skip_tokens && traced.n_tokens() <= options_->max_counted_tokens;
  const bool bypassed = is_bypassed(traced);
  clock_[layer] += traced.n_tokens();
  if (counts) {
    ++result_.lookups;
    n_counted_[layer] += traced.n_tokens();
    if (bypassed) ++result_.bypassed_lookups;
  }
  if (bypassed && options_->compat_zero_slots) return {};

  HOTSET_TRY(const Lookup lookup, cache_->classify(traced.layer, traced.ids, traced.n_tokens(),
                                                   traced.experts_per_token));
  HOTSET_TRY(const LookupPlan plan, serve(traced, lookup));
  // A prefill streams what the plan leaves out, if the group has a cache at all.
  const int64_t n_cpu = is_streamed_ && lookup.cached ? 0 : std::ssize(plan.cpu_experts);
  if (counts) count(lookup, plan, n_cpu);
  HOTSET_TRY(const double lookup_us,
             lanes_->commit(lookup, plan, n_crossing_ - static_cast<size_t>(n_cpu)));
  if (counts) result_.modelled_us += lookup_us;
  if (!futures_.empty() && !bypassed) futures_[group_of(traced)]->advance();
  return {};
}

void Replayer::count(const Lookup& lookup, const LookupPlan& plan, int64_t n_cpu) {
  const Bytes expert_bytes = cache_->spec(lookup.group).bytes_per_expert();
  const int64_t n_uploads = std::ssize(lookup.misses) - n_cpu;
  result_.hits += std::ssize(lookup.hits);
  result_.uploads += n_uploads;
  result_.cpu += n_cpu;
  result_.evictions += std::ssize(plan.evictions);
  result_.fills += std::ssize(plan.fills);
  result_.upload_bytes += expert_bytes * (n_uploads + std::ssize(plan.fills));
  result_.fill_bytes += expert_bytes * std::ssize(plan.fills);
  result_.cpu_bytes += expert_bytes * n_cpu;
}

Status Replayer::report(TraceReader& reader, uint64_t& reported_bytes) const {
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
    HOTSET_TRY(const TraceLookup* lookup, reader_.next());
    if (lookup == nullptr) break;
    if (n % kLookupsPerReport == 0) HOTSET_RETURN_IF_ERROR(report(reader_, reported_bytes));
    HOTSET_RETURN_IF_ERROR(step(*lookup));
  }
  HOTSET_RETURN_IF_ERROR(report(reader_, reported_bytes));
  result_.tokens = *std::ranges::max_element(n_counted_);
  if (result_.lookups == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: has {} tokens, of which the first {} are skipped: nothing is left to "
                      "count",
                      reader_.name(), *std::ranges::max_element(clock_), options_->skip_tokens);
  }
  return std::move(result_);
}

}  // namespace

double ReplayResult::hit_rate() const {
  return selected() > 0 ? static_cast<double>(hits) / static_cast<double>(selected()) : 0;
}
double ReplayResult::upload_gib_per_token() const { return per_token(upload_bytes.gib(), tokens); }
double ReplayResult::fill_gib_per_token() const { return per_token(fill_bytes.gib(), tokens); }
double ReplayResult::cpu_gib_per_token() const { return per_token(cpu_bytes.gib(), tokens); }
double ReplayResult::modelled_ms_per_token() const { return per_token(modelled_us / 1000, tokens); }

Result<ReplayResult> replay(const TraceOpener& open, const ReplayOptions& options) {
  HOTSET_TRY(Replayer replayer, Replayer::create(open, options));
  return replayer.run();
}

}  // namespace hotset::sim
