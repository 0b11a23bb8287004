#include "hotset/engine/experts/lane_calibration.h"

#include <algorithm>

#include "hotset/base/allocation.h"

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
  Result<double> rows_us(int64_t n_copies);
  Status together();
  Status start_uploads(int64_t n);
  // What the CPU lane's last job took, which read `n` experts.
  double lane_us(int64_t n) const {
    return s_.device.modelled_cpu_us(expert_bytes_ * n).value_or(s_.lane.job_us());
  }
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
    HOTSET_RETURN_IF_ERROR(s_.cache.banks().copy(layer_, at, at, 1, "calibrate"));
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
  auto job = [&] {
    return s_.cpu.compute(s_.graphs.lookups().cpu_pairs(layer_, n_tokens == 1, n * n_tokens));
  };
  HOTSET_RETURN_IF_ERROR(s_.lane.run(job));
  return lane_us(n);
}

Result<double> Calibration::pairs_us(int64_t n) {
  const PairList list{.base = static_cast<int32_t*>(s_.graphs.host().pair_list->data),
                      .n = pair_bucket(n)};
  const auto dump_row = static_cast<int32_t>(s_.graphs.cross().results->ne[1] - 1);
  for (int32_t i = 0; i < list.n; ++i) {
    list.part(kPairTokens)[i] = 0;
    list.part(kPairExperts)[i] = 0;
    list.part(kPairSlots)[i] = std::min(i, static_cast<int32_t>(n_most_) - 1);
    list.part(kPairRows)[i] = i < n ? i : dump_row;
  }
  const double start_us = s_.device.now_us();
  HOTSET_RETURN_IF_ERROR(s_.graphs.lookups().compute_listed(list, "calibrate", layer_, parity_,
                                                            true, expert_bytes_ * n));
  HOTSET_RETURN_IF_ERROR(s_.device.record(event_, QueueId::kCompute));
  HOTSET_RETURN_IF_ERROR(s_.device.wait(event_));
  return s_.device.now_us() - start_us;
}

Result<double> Calibration::rows_us(int64_t n_copies) {
  ggml_tensor* results = s_.graphs.cross().results;
  const size_t n_bytes = static_cast<size_t>(s_.experts_per_token) * results->nb[1];
  const double start_us = s_.device.now_us();
  for (int64_t i = 0; i < n_copies; ++i) {
    HOTSET_RETURN_IF_ERROR(
        s_.device.upload(QueueId::kCompute, results, 0, s_.graphs.host().results->data,
                         n_bytes / static_cast<size_t>(n_copies), {"calibrate", -1}));
  }
  HOTSET_RETURN_IF_ERROR(s_.device.record(event_, QueueId::kCompute));
  HOTSET_RETURN_IF_ERROR(s_.device.wait(event_));
  return s_.device.now_us() - start_us;
}

Status Calibration::together() {
  lanes::LaneModel& model = s_.cache.learner().model(group_);
  list_cpu(n_most_, 1);
  auto job = [&] { return s_.cpu.compute(s_.graphs.lookups().cpu_pairs(layer_, true, n_most_)); };
  const double start_us = s_.device.now_us();
  s_.lane.start(job);
  const Status uploaded = catching_refusal("the expert cache", [&]() -> Status {
    HOTSET_RETURN_IF_ERROR(start_uploads(n_most_));
    return s_.device.wait(event_);
  });
  const double upload_us = s_.device.now_us() - start_us;
  HOTSET_RETURN_IF_ERROR(s_.lane.finish());
  HOTSET_RETURN_IF_ERROR(uploaded);
  HOTSET_RETURN_IF_ERROR(
      model.observe_upload(lanes::LaneUse::kConcurrent, expert_bytes_ * n_most_, upload_us));
  return model.observe_cpu(lanes::LaneUse::kConcurrent, static_cast<double>(n_most_),
                           lane_us(n_most_));
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
  HOTSET_RETURN_IF_ERROR(s_.cache.learner().start(group_, further_token));
  lanes::LaneModel& model = s_.cache.learner().model(group_);
  for (const int64_t n : {int64_t{1}, n_most_}) {
    const auto work = static_cast<double>(n);
    HOTSET_TRY(const double upload, fastest([&] { return upload_us(n); }));
    HOTSET_TRY(const double cpu, fastest([&] { return cpu_us(n, 1); }));
    HOTSET_TRY(const double pairs, fastest([&] { return pairs_us(n); }));
    HOTSET_RETURN_IF_ERROR(
        model.observe_upload(lanes::LaneUse::kSolo, expert_bytes_ * n, std::max(0.0, upload)));
    HOTSET_RETURN_IF_ERROR(model.observe_cpu(lanes::LaneUse::kSolo, work, cpu));
    HOTSET_RETURN_IF_ERROR(model.observe_pairs(work, std::max(0.0, pairs - idle_us)));
    HOTSET_RETURN_IF_ERROR(model.observe_hits(work, std::max(0.0, pairs - idle_us)));
  }
  // Rows of some pairs are seldom neighbours: two copies stand for them.
  HOTSET_TRY(const double two_copies_us, fastest([&] { return rows_us(2); }));
  HOTSET_TRY(const double one_copy_us, fastest([&] { return rows_us(1); }));
  HOTSET_RETURN_IF_ERROR(model.observe_rows(std::max(0.0, two_copies_us - idle_us)));
  HOTSET_RETURN_IF_ERROR(model.observe_all_rows(std::max(0.0, one_copy_us - idle_us)));
  HOTSET_RETURN_IF_ERROR(together());
  return idle_us;
}

}  // namespace

Result<double> calibrate_lanes(const CalibrationSetup& setup) {
  double idle_us = 0;
  for (const CalibrationSetup::Layer& layer : setup.layers) {
    HOTSET_TRY(idle_us, Calibration(setup, layer).run());
    setup.cache.learner().tell(setup.cache.core().group_of(static_cast<int32_t>(layer.layer)));
  }
  return idle_us;
}

}  // namespace hotset::engine
