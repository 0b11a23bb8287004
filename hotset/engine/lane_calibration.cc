#include "hotset/engine/lane_calibration.h"

#include <algorithm>
#include <array>

#include "hotset/base/clock.h"

namespace hotset::engine {
namespace {

using device::QueueId;

// Of each measurement on a real clock; the fastest counts, because the first ones find cold caches
// and others are disturbed.
constexpr int kRepetitions = 3;

class Calibration {
 public:
  Calibration(const CalibrationSetup& setup, const CalibrationSetup::Layer& at)
      : s_(setup),
        layer_(at.layer),
        parity_(at.parity),
        group_(setup.cache.core().group_of(static_cast<int32_t>(at.layer))),
        expert_bytes_(setup.cache.expert_bytes(at.layer)),
        n_most_(std::min<int64_t>(setup.experts_per_token,
                                  setup.cache.core().slots(group_).n_slots())) {}

  Result<double> run();

 private:
  // The fastest of some runs of `timed`, which returns microseconds.
  template <typename Timed>
  Result<double> fastest(Timed timed) const;
  Result<double> wait_us();
  Result<double> upload_us(int64_t n);
  Result<double> cpu_us(int64_t n, int64_t n_tokens);
  Result<double> pairs_us(int64_t n);
  Status together();
  Status start_uploads(int64_t n);
  void list_cpu(int64_t n, int64_t n_tokens);

  const CalibrationSetup& s_;
  int64_t layer_;
  size_t parity_;
  int32_t group_;
  Bytes expert_bytes_;
  int64_t n_most_;  // experts of one measurement
  device::Event event_;
};

template <typename Timed>
Result<double> Calibration::fastest(Timed timed) const {
  const int n = s_.device.info().virtual_clock ? 1 : kRepetitions;
  double best_us = 0;
  for (int i = 0; i < n; ++i) {
    HOTSET_TRY(const double us, timed());
    best_us = i == 0 ? us : std::min(best_us, us);
  }
  return best_us;
}

Result<double> Calibration::wait_us() {
  const double start_us = s_.device.now_us();
  HOTSET_RETURN_IF_ERROR(s_.device.record(event_, QueueId::kCompute));
  HOTSET_RETURN_IF_ERROR(s_.device.wait(event_));
  return s_.device.now_us() - start_us;
}

Status Calibration::start_uploads(int64_t n) {
  // One by one, as most lookups need them: from the end, so that nothing merges.
  for (int64_t i = 0; i < n; ++i) {
    const auto at = static_cast<int32_t>(n - 1 - i);
    HOTSET_RETURN_IF_ERROR(s_.cache.banks_for_calibration().copy(layer_, at, at, 1, "calibrate"));
  }
  return s_.device.record(event_, QueueId::kTransfer);
}

Result<double> Calibration::upload_us(int64_t n) {
  const double start_us = s_.device.now_us();
  HOTSET_RETURN_IF_ERROR(start_uploads(n));
  HOTSET_RETURN_IF_ERROR(s_.device.wait(event_));
  return s_.device.now_us() - start_us;
}

void Calibration::list_cpu(int64_t n, int64_t n_tokens) {
  auto* tokens = static_cast<int32_t*>(s_.graphs.host().cpu_tokens->data);
  auto* experts = static_cast<int32_t*>(s_.graphs.host().cpu_ids->data);
  for (int64_t i = 0; i < n * n_tokens; ++i) {
    tokens[i] = 0;
    experts[i] = static_cast<int32_t>(i / n_tokens);
  }
}

Result<double> Calibration::cpu_us(int64_t n, int64_t n_tokens) {
  list_cpu(n, n_tokens);
  double us = 0;
  auto job = [&]() -> Status {
    const double start_us = steady_clock().now_us();
    const Status computed =
        s_.cpu.compute(s_.graphs.lookups().cpu_pairs(layer_, n_tokens == 1, n * n_tokens));
    us = steady_clock().now_us() - start_us;
    return computed;
  };
  HOTSET_RETURN_IF_ERROR(s_.lane.run(job));
  return s_.device.modelled_cpu_us(expert_bytes_ * n).value_or(us);
}

Result<double> Calibration::pairs_us(int64_t n) {
  const auto n_listed = static_cast<size_t>(pair_bucket(n));
  auto* list = static_cast<int32_t*>(s_.graphs.host().pair_list->data);
  for (size_t i = 0; i < n_listed; ++i) {
    const auto at = static_cast<int32_t>(i);
    list[kPairTokens * n_listed + i] = 0;
    list[kPairExperts * n_listed + i] = 0;
    list[kPairSlots * n_listed + i] = std::min(at, static_cast<int32_t>(n_most_) - 1);
    list[kPairRows * n_listed + i] = at;
  }
  HOTSET_TRY(KeptGraph* const graph, s_.graphs.lookups().listed_pairs(layer_, parity_, true, n));
  const double start_us = s_.device.now_us();
  HOTSET_RETURN_IF_ERROR(s_.device.upload(QueueId::kCompute, s_.graphs.cross().pair_list, 0, list,
                                          kPairListParts * n_listed * sizeof(int32_t),
                                          {"list", static_cast<int32_t>(layer_)}));
  HOTSET_RETURN_IF_ERROR(s_.device.compute(graph->graph, expert_bytes_ * n,
                                           {"calibrate", static_cast<int32_t>(layer_)}));
  HOTSET_RETURN_IF_ERROR(s_.device.record(event_, QueueId::kCompute));
  HOTSET_RETURN_IF_ERROR(s_.device.wait(event_));
  return s_.device.now_us() - start_us;
}

Status Calibration::together() {
  plan::LaneModel& model = s_.cache.lane_model(group_);
  list_cpu(n_most_, 1);
  double cpu_us = 0;
  auto job = [&]() -> Status {
    const double start_us = steady_clock().now_us();
    const Status computed = s_.cpu.compute(s_.graphs.lookups().cpu_pairs(layer_, true, n_most_));
    cpu_us = steady_clock().now_us() - start_us;
    return computed;
  };
  const double start_us = s_.device.now_us();
  s_.lane.start(job);
  Status uploaded = start_uploads(n_most_);
  if (uploaded) uploaded = s_.device.wait(event_);
  const double upload_us = s_.device.now_us() - start_us;
  HOTSET_RETURN_IF_ERROR(s_.lane.finish());
  HOTSET_RETURN_IF_ERROR(uploaded);
  cpu_us = s_.device.modelled_cpu_us(expert_bytes_ * n_most_).value_or(cpu_us);
  HOTSET_RETURN_IF_ERROR(
      model.observe_upload(plan::LaneUse::kConcurrent, expert_bytes_ * n_most_, upload_us));
  return model.observe_cpu(plan::LaneUse::kConcurrent, static_cast<double>(n_most_), cpu_us);
}

Result<double> Calibration::run() {
  HOTSET_TRY(event_, s_.device.new_event());
  HOTSET_TRY(const double idle_us, fastest([&] { return wait_us(); }));
  // Where reading the weights is what takes the time, a further token costs next to nothing.
  constexpr int64_t kTokens = 8;
  HOTSET_TRY(const double one_us, fastest([&] { return cpu_us(1, 1); }));
  double further_token = 0;
  if (s_.graphs.host().cpu_tokens->ne[0] >= kTokens && one_us > 0) {
    HOTSET_TRY(const double all_us, fastest([&] { return cpu_us(1, kTokens); }));
    further_token = std::clamp((all_us / one_us - 1) / (kTokens - 1), 0.0, 1.0);
  }
  HOTSET_RETURN_IF_ERROR(s_.cache.start_lane_model(group_, further_token));
  plan::LaneModel& model = s_.cache.lane_model(group_);
  for (const int64_t n : {int64_t{1}, n_most_}) {
    const auto work = static_cast<double>(n);
    HOTSET_TRY(const double upload, fastest([&] { return upload_us(n); }));
    HOTSET_TRY(const double cpu, fastest([&] { return cpu_us(n, 1); }));
    HOTSET_TRY(const double pairs, fastest([&] { return pairs_us(n); }));
    HOTSET_RETURN_IF_ERROR(
        model.observe_upload(plan::LaneUse::kSolo, expert_bytes_ * n, std::max(0.0, upload)));
    HOTSET_RETURN_IF_ERROR(model.observe_cpu(plan::LaneUse::kSolo, work, cpu));
    HOTSET_RETURN_IF_ERROR(model.observe_pairs(work, std::max(0.0, pairs - idle_us)));
    HOTSET_RETURN_IF_ERROR(model.observe_hits(work, std::max(0.0, pairs - idle_us)));
  }
  HOTSET_RETURN_IF_ERROR(together());
  return idle_us;
}

}  // namespace

Result<double> calibrate_lanes(const CalibrationSetup& setup) {
  double idle_us = 0;
  for (const CalibrationSetup::Layer& layer : setup.layers) {
    HOTSET_TRY(idle_us, Calibration(setup, layer).run());
    setup.cache.lanes_learned(setup.cache.core().group_of(static_cast<int32_t>(layer.layer)));
  }
  return idle_us;
}

}  // namespace hotset::engine
