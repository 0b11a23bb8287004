#include "hotset/measure/engine_cache_reporter.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "hotset/base/clock.h"
#include "hotset/base/log.h"
#include "hotset/report/cache_report.h"
#include "hotset/report/cache_verdict.h"
#include "hotset/trace/byte_source.h"

namespace hotset::measure {
namespace {

constexpr int64_t kHalfLifeTokens = 256;
// Of the routing that is replayed beside the cache: at 48 layers of 8 experts some 4,000 tokens.
constexpr Bytes kWindow = mib(8);
constexpr double kCompareEveryUs = 10e6;

report::CacheGroupView group_view(const engine::Engine& engine, int32_t group) {
  const engine::CachedExperts& cache = *engine.cache();
  const cache::GroupSpec& spec = cache.core().spec(group);
  const report::GroupSplit split = report::group_split(cache, group);
  report::CacheGroupView view{.layers = spec.layers,
                              .n_experts = static_cast<int32_t>(spec.n_experts()),
                              .n_slots = cache.core().slots(group).n_slots(),
                              .expert_bytes = spec.bytes_per_expert(),
                              .upload_us = split.upload_us,
                              .cpu_us = split.cpu_us};
  view.split = view.n_slots == view.n_experts ? "every expert is resident"
               : view.n_slots == 0            ? "no slots: the CPU computes everything"
                                              : split.reason;
  return view;
}

}  // namespace

// --- ExpertUses

void ExpertUses::observe(int64_t layer, std::span<const int32_t> ids, int64_t n_tokens) {
  const auto at = static_cast<size_t>(layer);
  if (at >= layers_.size()) layers_.resize(at + 1);
  Layer& l = layers_[at];
  for (const int32_t id : ids) {
    if (id < 0) continue;
    if (std::cmp_greater_equal(id, l.uses.size())) l.uses.resize(static_cast<size_t>(id) + 1);
    l.uses[id] += 1;
  }
  l.n_tokens += n_tokens;
  if (l.n_tokens < kHalfLifeTokens) return;
  l.n_tokens = 0;
  for (float& uses : l.uses) uses /= 2;
}

std::vector<float> ExpertUses::of(int64_t layer) const {
  const auto at = static_cast<size_t>(layer);
  return at < layers_.size() ? layers_[at].uses : std::vector<float>();
}

// --- EngineCacheReporter

EngineCacheReporter::EngineCacheReporter(const EngineSession& session, const ExpertUses* uses)
    : session_(session), uses_(uses) {}

EngineCacheReporter::~EngineCacheReporter() {
  stops_ = true;
  if (comparing_.joinable()) comparing_.join();
}

cache::CacheCounts EngineCacheReporter::totals() {
  const engine::CachedExperts* cache = session_.engine().cache();
  return cache == nullptr ? cache::CacheCounts{} : cache->core().total_counts();
}

report::CacheView EngineCacheReporter::view() {
  const engine::Engine& engine = session_.engine();
  report::CacheView view{.verdict = session_.verdict(), .totals = totals()};
  if (engine.device() != nullptr) {
    view.device = engine.device()->info().name;
    for (const plan::DevicePlan& device : engine.plan().memory.devices) {
      for (const plan::PlanItem& item : device.items) {
        view.memory.emplace_back(item.name, item.bytes);
      }
      view.device_memory = device.total_memory;
    }
  }
  const engine::CachedExperts* cache = engine.cache();
  if (cache == nullptr) return view;
  view.is_on = cache->why_unused().empty();
  view.policy = cache->options().rules.policy;
  view.memory.emplace_back("experts", cache->banks().device_bytes());
  for (int32_t group = 0; group < cache->core().n_groups(); ++group) {
    view.groups.push_back(group_view(engine, group));
  }
  for (int32_t layer = 0; layer < engine.spec().n_layer; ++layer) {
    const int32_t group = cache->core().group_of(layer);
    if (group < 0) continue;
    report::CacheLayerView shown{
        .layer = layer, .group = group, .totals = cache->core().counts(layer).total()};
    for (const int32_t slot : cache->core().slot_map(layer)) {
      shown.is_resident.push_back(slot != policy::kNoSlot);
    }
    if (uses_ != nullptr) shown.uses = uses_->of(layer);
    if (!shown.uses.empty()) shown.uses.resize(shown.is_resident.size());
    view.layers.push_back(std::move(shown));
  }
  compare_now_and_then();
  const std::lock_guard lock(mutex_);
  view.comparison = comparison_;
  if (view.comparison) {
    view.comparison->age_s = (steady_clock().now_us() - compared_at_us_) / 1e6;
  }
  return view;
}

void EngineCacheReporter::compare_now_and_then() {
  const engine::RoutingRecorder* recorder = session_.recorder();
  if (recorder == nullptr || recorder->n_kept() == 0 || is_comparing_) return;
  if (recorder->n_kept() == n_compared_) return;
  {
    const std::lock_guard lock(mutex_);
    const double age_us = steady_clock().now_us() - compared_at_us_;
    if (comparison_ && age_us < kCompareEveryUs) return;
  }
  if (comparing_.joinable()) comparing_.join();
  n_compared_ = recorder->n_kept();
  sim::ReplayOptions options = report::replay_options(*session_.engine().cache());
  options.cancelled = &stops_;
  is_comparing_ = true;
  comparing_ = std::thread(
      [this, trace = recorder->copy_kept(kWindow), options = std::move(options)]() mutable {
        compare(std::move(trace), std::move(options));
        is_comparing_ = false;
      });
}

void EngineCacheReporter::compare(std::vector<std::byte> trace, sim::ReplayOptions options) {
  const sim::TraceOpener open = [&] {
    return trace::TraceReader::from(std::make_unique<trace::MemorySource>(trace),
                                    "recorded routing");
  };
  const auto compared = report::beside_belady(open, options);
  if (!compared) {
    if (compared.error().code != ErrorCode::kCancelled) {
      log_warning("the routing could not be replayed: {}", compared.error().message);
    }
    return;
  }
  const std::lock_guard lock(mutex_);
  compared_at_us_ = steady_clock().now_us();
  comparison_ = report::CacheComparison{.n_lookups = compared->n_lookups,
                                        .hit_rate = compared->hit_rate,
                                        .best_hit_rate = compared->belady_hit_rate};
}

}  // namespace hotset::measure
