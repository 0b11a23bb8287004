#include "hotset/plan/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hotset::plan {
namespace {

struct NamedBytes {
  const char* name;
  Bytes bytes;
};

Status check_bytes(const std::string& where, const NamedBytes& field) {
  if (field.bytes.count >= 0 && field.bytes <= kMaxPlanBytes) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}{}: found {} bytes, expected 0 to {}", where,
                    field.name, field.bytes.count, kMaxPlanBytes.count);
}

Status check_request(const MemoryRequest& request) {
  if (request.devices.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "devices: found none, expected 1 or more");
  }
  for (const DeviceDemand& device : request.devices) {
    const std::string where = device.name + ": ";
    for (const NamedBytes& field : {NamedBytes{"total memory", device.total_memory},
                                    NamedBytes{"free memory", device.free_memory},
                                    NamedBytes{"dense weights", device.dense_weights},
                                    NamedBytes{"KV cache", device.kv_cache},
                                    NamedBytes{"recurrent state", device.recurrent_state},
                                    NamedBytes{"compute buffers", device.compute_buffers},
                                    NamedBytes{"pairs and staging", device.pairs_and_staging},
                                    NamedBytes{"upload ring", device.upload_ring},
                                    NamedBytes{"all experts", device.all_experts}}) {
      HOTSET_RETURN_IF_ERROR(check_bytes(where, field));
    }
    if (device.n_layers < 0) {
      return make_error(ErrorCode::kInvalidArgument, "{}: n_layers: found {}, expected 0 or more",
                        device.name, device.n_layers);
    }
  }
  if (request.asked_cache) {
    HOTSET_RETURN_IF_ERROR(check_bytes("", {"--moe-cache-mib", *request.asked_cache}));
  }
  if (request.headroom) {
    HOTSET_RETURN_IF_ERROR(check_bytes("", {"--memory-headroom-mib", *request.headroom}));
  }
  if (request.n_ctx < 0 || request.n_ubatch < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "n_ctx, n_ubatch: found {} and {}, expected 0 or more", request.n_ctx,
                      request.n_ubatch);
  }
  if (request.tensor_split.empty()) return {};
  if (request.tensor_split.size() != request.devices.size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--tensor-split: found {} numbers, expected {}, one per device",
                      request.tensor_split.size(), request.devices.size());
  }
  // The upper bound keeps the sum finite.
  constexpr double kMaxSplit = 1e18;
  double sum = 0;
  for (const double part : request.tensor_split) {
    if (!(part >= 0 && part <= kMaxSplit)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--tensor-split: found {}, expected numbers of 0 to {:g}", part, kMaxSplit);
    }
    sum += part;
  }
  if (sum <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--tensor-split: found only zeros, expected one number above 0");
  }
  return {};
}

// Each device's share of the cache, 0 to 1, in sum 1 (or all 0, if no device has free memory).
std::vector<long double> cache_shares(const MemoryRequest& request) {
  std::vector<long double> shares;
  for (size_t i = 0; i < request.devices.size(); ++i) {
    shares.push_back(request.tensor_split.empty()
                         ? static_cast<long double>(request.devices[i].free_memory.count)
                         : static_cast<long double>(request.tensor_split[i]));
  }
  const long double sum = std::accumulate(shares.begin(), shares.end(), 0.0L);
  for (long double& share : shares) share = sum > 0 ? share / sum : 0;
  return shares;
}

// What a user can change so that `missing` less is needed, each with its numbers.
std::vector<std::string> advice(const DeviceDemand& device, const MemoryRequest& request,
                                Bytes headroom, Bytes missing) {
  std::vector<std::string> changes;
  const Bytes by_context = device.kv_cache - device.kv_windows;
  if (request.n_ctx > 0 && by_context > missing) {
    // n_kv comes in steps of 256.
    const long double kept = static_cast<long double>((by_context - missing).count) /
                             static_cast<long double>(by_context.count);
    const auto n_ctx =
        static_cast<int64_t>(kept * static_cast<long double>(request.n_ctx)) / 256 * 256;
    if (n_ctx > 0) changes.push_back(fmt::format("-c {} (now {})", n_ctx, request.n_ctx));
  }
  const Bytes by_ubatch = device.compute_buffers + device.pairs_and_staging;
  if (request.n_ubatch > 1 && by_ubatch > missing) {
    changes.push_back(fmt::format("a smaller -ub (now {}, its buffers take {})", request.n_ubatch,
                                  to_string(by_ubatch)));
  }
  if (device.n_layers > 0 && device.dense_weights >= missing) {
    const Bytes per_layer{std::max<int64_t>(1, device.dense_weights.count / device.n_layers)};
    const int64_t n = (missing.count + per_layer.count - 1) / per_layer.count;
    if (n <= device.n_layers) {
      changes.push_back(fmt::format("-ngl with {} of its {} layers fewer", n, device.n_layers));
    }
  }
  if (headroom >= missing) {
    changes.push_back(fmt::format("--memory-headroom-mib {} (now {:.0f})",
                                  (headroom - missing).count >> 20, headroom.mib()));
  }
  if (const Bytes used = device.total_memory - device.free_memory; used >= missing) {
    changes.push_back(fmt::format("free some of the {} that other programs hold", to_string(used)));
  }
  if (request.devices.size() > 1) {
    changes.push_back(fmt::format("a --tensor-split that gives {} less", device.name));
  }
  return changes;
}

std::string join_advice(const std::vector<std::string>& changes) {
  if (changes.empty()) return "no single change is enough: a larger device, or a smaller model";
  std::string text = "change one of: ";
  for (size_t i = 0; i < changes.size(); ++i) {
    if (i > 0) text += "; ";
    text += changes[i];
  }
  return text;
}

DevicePlan plan_items(const DeviceDemand& device, const MemoryRequest& request) {
  DevicePlan plan;
  plan.name = device.name;
  plan.total_memory = device.total_memory;
  plan.free_memory = device.free_memory;
  plan.all_experts = device.all_experts;
  const Bytes headroom = request.headroom.value_or(
      default_headroom(std::max(device.total_memory, device.free_memory)));
  Bytes left = device.free_memory;
  std::string first_too_large;
  for (const NamedBytes& item :
       {NamedBytes{"dense weights", device.dense_weights},
        NamedBytes{"KV and recurrent state", device.kv_cache + device.recurrent_state},
        NamedBytes{"compute buffers", device.compute_buffers},
        NamedBytes{"pair buffers and staging", device.pairs_and_staging},
        NamedBytes{"upload ring", device.upload_ring}, NamedBytes{"headroom", headroom}}) {
    left -= item.bytes;
    if (left < Bytes{0} && first_too_large.empty()) first_too_large = item.name;
    plan.items.push_back({.name = item.name, .bytes = item.bytes, .left = left});
  }
  if (left < Bytes{0}) {
    plan.missing = Bytes{0} - left;
    plan.refusal =
        fmt::format("{}: needs {}, {} is free, {} is missing (from {} on); {}", device.name,
                    to_string(device.free_memory + plan.missing), to_string(device.free_memory),
                    to_string(plan.missing), first_too_large,
                    join_advice(advice(device, request, headroom, plan.missing)));
  } else {
    plan.left_for_banks = left;
  }
  return plan;
}

}  // namespace

Result<Bytes> pair_buffer_bytes(int64_t n_ubatch, int64_t k, int64_t n_embd) {
  if (n_ubatch < 1 || k < 1 || n_embd < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "pair buffers: found n_ubatch {}, k {}, n_embd {}, expected 1 or more",
                      n_ubatch, k, n_embd);
  }
  int64_t n_bytes = 8;  // x and Y, float32
  for (const int64_t factor : {n_ubatch, k, n_embd}) {
    if (__builtin_mul_overflow(n_bytes, factor, &n_bytes) || n_bytes > kMaxPlanBytes.count) {
      return make_error(ErrorCode::kInvalidArgument,
                        "pair buffers: n_ubatch {} x k {} x n_embd {} is more than {} bytes",
                        n_ubatch, k, n_embd, kMaxPlanBytes.count);
    }
  }
  return Bytes{n_bytes};
}

Bytes default_headroom(Bytes total) { return std::max(mib(512), Bytes{total.count / 20}); }

Result<MemoryPlan> plan_memory(const MemoryRequest& request) {
  HOTSET_RETURN_IF_ERROR(check_request(request));
  const std::vector<long double> shares = cache_shares(request);

  MemoryPlan plan;
  plan.is_auto = !request.asked_cache.has_value();
  // The most that could be asked for so that every device has room for its part.
  long double most_to_ask = static_cast<long double>(kMaxPlanBytes.count);
  for (size_t i = 0; i < request.devices.size(); ++i) {
    const DeviceDemand& demand = request.devices[i];
    DevicePlan device = plan_items(demand, request);
    if (plan.is_auto) {
      device.asked = shares[i] > 0 ? device.left_for_banks : Bytes{0};
    } else {
      device.asked = Bytes{
          static_cast<int64_t>(shares[i] * static_cast<long double>(request.asked_cache->count))};
    }
    device.banks = std::min(device.asked, demand.all_experts);
    if (shares[i] > 0 && demand.all_experts > device.left_for_banks) {
      most_to_ask =
          std::min(most_to_ask, static_cast<long double>(device.left_for_banks.count) / shares[i]);
    }
    plan.devices.push_back(std::move(device));
  }

  for (size_t i = 0; i < request.devices.size(); ++i) {
    DevicePlan& device = plan.devices[i];
    if (device.missing > Bytes{0}) {
      device.banks = Bytes{0};
    } else if (device.banks > device.left_for_banks) {
      device.missing = device.banks - device.left_for_banks;
      std::vector<std::string> changes = {fmt::format("--moe-cache-mib auto, or at most {}",
                                                      static_cast<int64_t>(most_to_ask) >> 20)};
      const Bytes headroom = device.items.back().bytes;
      for (std::string& change : advice(request.devices[i], request, headroom, device.missing)) {
        changes.push_back(std::move(change));
      }
      device.refusal =
          fmt::format("{}: {} of experts asked for, {} is left, {} is missing; {}", device.name,
                      to_string(device.banks), to_string(device.left_for_banks),
                      to_string(device.missing), join_advice(changes));
      device.banks = Bytes{0};
    }
  }
  return plan;
}

Status MemoryPlan::fits() const {
  std::string refusals;
  for (const DevicePlan& device : devices) {
    if (device.refusal.empty()) continue;
    if (!refusals.empty()) refusals += "; ";
    refusals += device.refusal;
  }
  if (refusals.empty()) return {};
  return make_error(ErrorCode::kOutOfMemory, "{}", refusals);
}

std::vector<std::string> MemoryPlan::table() const {
  const auto bytes_text = [](Bytes bytes) {
    return bytes < Bytes{0} ? "-" + to_string(Bytes{-bytes.count}) : to_string(bytes);
  };
  std::vector<std::string> lines;
  for (const DevicePlan& device : devices) {
    lines.push_back(fmt::format("{}: {}, {} free", device.name, to_string(device.total_memory),
                                to_string(device.free_memory)));
    for (const PlanItem& item : device.items) {
      lines.push_back(fmt::format("  {:<26}{:>12}{:>14} left", item.name, bytes_text(item.bytes),
                                  bytes_text(item.left)));
    }
    const double percent = device.all_experts > Bytes{0}
                               ? 100.0 * static_cast<double>(device.banks.count) /
                                     static_cast<double>(device.all_experts.count)
                               : 0;
    lines.push_back(fmt::format("  {:<26}{:>12}{:>14} left  {}, {:.1f}% of {}",
                                fmt::format("expert banks ({})", is_auto ? "auto" : "asked"),
                                bytes_text(device.banks),
                                bytes_text(device.items.back().left - device.banks),
                                device.banks >= device.all_experts ? "all experts" : "cached",
                                percent, to_string(device.all_experts)));
    if (!device.refusal.empty()) lines.push_back("  refused: " + device.refusal);
  }
  return lines;
}

}  // namespace hotset::plan
