#include "hotset/sim/matrix.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <new>
#include <system_error>
#include <tuple>
#include <utility>

#include "hotset/base/setting.h"
#include "hotset/base/thread_pool.h"
#include "hotset/policy/registry.h"
#include "hotset/sim/reference_rules.h"
#include "hotset/sim/trace_cache.h"

namespace hotset::sim {
namespace {

constexpr double kMaxCachePercent = 200;

// What tells two replays apart. Rows that agree in all of it share one replay.
struct Job {
  size_t trace = 0;  // index in the options
  std::string policy;
  lanes::CpuShare share = 0;
  std::vector<int64_t> slots;

  auto key() const { return std::tie(trace, policy, share, slots); }
  bool operator<(const Job& other) const { return key() < other.key(); }
};

struct RowJobs {
  MatrixRow row;
  size_t replay = 0;  // indices in Matrix::jobs_
  size_t belady = 0;
  size_t belady_demand = 0;
};

struct TraceFile {
  trace::TraceHeader header;
  uint64_t n_bytes = 0;
  std::vector<std::vector<uint64_t>> profile;
};

class Matrix {
 public:
  explicit Matrix(const MatrixOptions& options) : options_(options) {}

  Result<std::vector<MatrixRow>> run();

 private:
  Status open_traces();
  Status load_profiles();
  Status add_rows(size_t trace, const CacheSize& size);
  size_t add_job(Job job);
  Result<ReplayResult> run_job(const Job& job);
  Status run_jobs();
  void add_progress(uint64_t n_bytes);

  const MatrixOptions& options_;
  std::map<std::string, policy::PolicyTraits> traits_;
  std::vector<TraceFile> traces_;
  std::vector<RowJobs> rows_;
  std::vector<Job> jobs_;
  std::map<Job, size_t> job_index_;
  std::vector<Result<ReplayResult>> results_;  // by job
  std::atomic<bool> stop_ = false;             // a job failed, or the caller cancelled

  std::mutex progress_mutex_;
  uint64_t total_bytes_ = 0;
  uint64_t done_bytes_ = 0;  // guarded by progress_mutex_
};

Status validate_options(const MatrixOptions& options) {
  const auto empty = [](const char* what) {
    return make_error(ErrorCode::kInvalidArgument, "no {} given, expected at least one", what);
  };
  if (options.traces.empty()) return empty("trace is");
  if (options.policies.empty()) return empty("policy is");
  if (options.sizes.empty()) return empty("cache size is");
  if (options.shares.empty()) return empty("CPU share is");
  for (const CacheSize& size : options.sizes) {
    const bool is_mib = size.unit == CacheSize::Unit::kMib;
    const double max = is_mib ? kMostMib : kMaxCachePercent;
    if (!(size.value > 0 && size.value <= max)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "cache size is {} {}, expected above 0 and at most {}", size.value,
                        is_mib ? "MiB" : "%", max);
    }
  }
  lanes::CacheRules rules = options.rules;
  for (const lanes::CpuShare share : options.shares) {
    rules.cpu_share = share;
    HOTSET_RETURN_IF_ERROR(lanes::check(rules));
  }
  return {};
}

Bytes budget_of(const CacheSize& size, Bytes all_experts) {
  const double n_bytes = size.unit == CacheSize::Unit::kMib
                             ? size.value * (1 << 20)
                             : size.value / 100 * static_cast<double>(all_experts.count);
  return {static_cast<int64_t>(n_bytes)};
}

Status Matrix::open_traces() {
  for (const std::string& path : options_.traces) {
    HOTSET_TRY(const trace::TraceReader reader, trace::TraceReader::open(path));
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: is not a regular file; a replay reads it several times", path);
    }
    const uint64_t n_bytes = std::filesystem::file_size(path, error);
    if (error) {
      return make_error(ErrorCode::kIo, "{}: its size cannot be read: {}", path, error.message());
    }
    traces_.push_back({.header = reader.header(), .n_bytes = n_bytes, .profile = {}});
  }
  return {};
}

Status Matrix::load_profiles() {
  const bool needed = std::ranges::any_of(
      options_.policies, [&](const auto& policy) { return traits_[policy].needs_profile; });
  if (!needed) return {};
  const auto count = [](const std::string& path) -> Result<std::vector<std::vector<uint64_t>>> {
    HOTSET_TRY(trace::TraceReader reader, trace::TraceReader::open(path));
    return count_uses(reader);
  };
  if (options_.profile_trace.empty()) {
    for (size_t t = 0; t < traces_.size(); ++t) {
      HOTSET_TRY(traces_[t].profile, count(options_.traces[t]));
    }
    return {};
  }
  HOTSET_TRY(const trace::TraceReader reader, trace::TraceReader::open(options_.profile_trace));
  HOTSET_TRY(const auto profile, count(options_.profile_trace));
  const auto same_experts = [](const trace::TraceGroup& a, const trace::TraceGroup& b) {
    return a.n_expert == b.n_expert && a.layers == b.layers;
  };
  for (size_t t = 0; t < traces_.size(); ++t) {
    if (!std::ranges::equal(traces_[t].header.groups, reader.header().groups, same_experts)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: its layers or experts are not those of the profile {}",
                        options_.traces[t], options_.profile_trace);
    }
    traces_[t].profile = profile;
  }
  return {};
}

size_t Matrix::add_job(Job job) {
  const auto [found, is_new] = job_index_.try_emplace(job, jobs_.size());
  if (is_new) {
    const uint64_t n_passes = traits_[job.policy].needs_future ? 2 : 1;
    total_bytes_ += n_passes * traces_[job.trace].n_bytes;
    jobs_.push_back(std::move(job));
  }
  return found->second;
}

Status Matrix::add_rows(size_t trace, const CacheSize& size) {
  const trace::TraceHeader& header = traces_[trace].header;
  const Bytes all_experts = header.host_bytes();
  const Bytes budget = budget_of(size, all_experts);
  const bool is_mib = size.unit == CacheSize::Unit::kMib;
  for (const lanes::CpuShare share : options_.shares) {
    const int32_t n_zero =
        options_.counted.compat_zero_slots && share
            ? reference_zero_slots(*share, static_cast<int32_t>(header.experts_per_token))
            : 0;
    auto slots = slots_for_trace(header, budget, n_zero);
    if (!slots) return add_context(slots.error(), options_.traces[trace]);
    for (const std::string& policy : options_.policies) {
      RowJobs& jobs = rows_.emplace_back();
      jobs.row = {.trace = options_.traces[trace],
                  .policy = policy,
                  .cache_mib = is_mib ? size.value : budget.mib(),
                  .cache_percent = is_mib ? 100 * budget.mib() / all_experts.mib() : size.value,
                  .share = share,
                  .result = {}};
      jobs.belady = add_job({.trace = trace, .policy = "belady", .share = 0, .slots = *slots});
      jobs.belady_demand =
          add_job({.trace = trace, .policy = "belady-demand", .share = 0, .slots = *slots});
      std::vector<int64_t> policy_slots = *slots;
      if (traits_[policy].needs_all_slots) {
        for (size_t g = 0; g < policy_slots.size(); ++g) {
          policy_slots[g] = header.groups[g].total_experts();
        }
      }
      jobs.replay = add_job(
          {.trace = trace, .policy = policy, .share = share, .slots = std::move(policy_slots)});
    }
  }
  return {};
}

void Matrix::add_progress(uint64_t n_bytes) {
  const std::lock_guard lock(progress_mutex_);
  done_bytes_ += n_bytes;
  options_.progress(static_cast<double>(done_bytes_) / static_cast<double>(total_bytes_));
}

Result<ReplayResult> Matrix::run_job(const Job& job) {
  if (options_.cancelled != nullptr && options_.cancelled->load()) stop_ = true;
  const std::string& path = options_.traces[job.trace];
  ReplayOptions options{.rules = options_.rules,
                        .slots = job.slots,
                        .counted = options_.counted,
                        .cancelled = &stop_};
  options.rules.policy = job.policy;
  options.rules.cpu_share = job.share;
  if (traits_[job.policy].needs_profile) options.profile = traces_[job.trace].profile;
  // The caller's flag is passed on here, so that a replay watches one flag only.
  options.progress = [&](uint64_t n_bytes) {
    if (options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed)) {
      stop_ = true;
    }
    if (options_.progress) add_progress(n_bytes);
  };
  try {
    auto result = replay([&] { return trace::TraceReader::open(path); }, options);
    // Messages of the reader start with the path already.
    if (!result && !result.error().message.starts_with(path)) {
      return add_context(result.error(), fmt::format("{}: {}", path, job.policy));
    }
    return result;
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory,
                      "{}: {}: the replay needs more memory than there is; try fewer threads", path,
                      job.policy);
  }
}

Status Matrix::run_jobs() {
  results_.assign(jobs_.size(), make_error(ErrorCode::kCancelled, "interrupted"));
  parallel_for(jobs_.size(), options_.n_workers, [&](size_t i) {
    if (stop_) return;
    results_[i] = run_job(jobs_[i]);
    if (!results_[i]) stop_ = true;
  });
  // The cause, not the jobs that stopped because of it.
  for (const auto& result : results_) {
    if (!result && result.error().code != ErrorCode::kCancelled) {
      return std::unexpected(result.error());
    }
  }
  if (stop_) return make_error(ErrorCode::kCancelled, "interrupted");
  return {};
}

Result<std::vector<MatrixRow>> Matrix::run() {
  HOTSET_RETURN_IF_ERROR(validate_options(options_));
  for (const char* bound : {"belady", "belady-demand"}) {
    HOTSET_TRY(traits_[bound], policy::policy_traits(bound));
  }
  for (const std::string& policy : options_.policies) {
    HOTSET_TRY(traits_[policy], policy::policy_traits(policy));
  }
  HOTSET_RETURN_IF_ERROR(open_traces());
  HOTSET_RETURN_IF_ERROR(load_profiles());
  for (size_t trace = 0; trace < traces_.size(); ++trace) {
    for (const CacheSize& size : options_.sizes) {
      HOTSET_RETURN_IF_ERROR(add_rows(trace, size));
    }
  }
  HOTSET_RETURN_IF_ERROR(run_jobs());
  std::vector<MatrixRow> rows;
  for (RowJobs& jobs : rows_) {
    jobs.row.result = *results_[jobs.replay];
    jobs.row.belady_hit_rate = results_[jobs.belady]->hit_rate();
    jobs.row.belady_demand_hit_rate = results_[jobs.belady_demand]->hit_rate();
    rows.push_back(std::move(jobs.row));
  }
  return rows;
}

}  // namespace

Result<std::vector<MatrixRow>> replay_matrix(const MatrixOptions& options) {
  return Matrix(options).run();
}

}  // namespace hotset::sim
