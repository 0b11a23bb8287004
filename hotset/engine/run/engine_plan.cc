#include "hotset/engine/run/engine_plan.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "hotset/base/allocation.h"
#include "hotset/device/plan_device.h"
#include "hotset/engine/experts/cached_experts.h"
#include "hotset/engine/experts/expert_groups.h"
#include "hotset/engine/run/default_context.h"
#include "hotset/engine/run/device_graphs.h"

namespace hotset::engine {
namespace {

// What the device must hold beside the banks, as the code that allocates it counts.
class Demand {
 public:
  // `options` may change between calls.
  Demand(EngineOptions& options, device::Device& device, device::Backend& cpu)
      : options_(options), device_(device), cpu_(cpu) {}

  Result<plan::DeviceDemand> measure(ModelDescription& description, const Placement& placement,
                                     bool flash_attention);
  // The same for another context.
  Result<plan::DeviceDemand> with_context(int32_t n_ctx, ModelDescription& description,
                                          const Placement& placement, bool flash_attention) {
    const int32_t before = std::exchange(options_.context.n_ctx, n_ctx);
    auto measured = measure(description, placement, flash_attention);
    options_.context.n_ctx = before;
    return measured;
  }

 private:
  Status build(const LoadedModel& model, device::PlanDevice& counted, const Placement& placement,
               bool flash_attention, std::vector<cache::CacheGroup> groups);

  EngineOptions& options_;
  device::Device& device_;
  device::Backend& cpu_;
  Bytes kv_window_bytes_;
};

Result<plan::DeviceDemand> Demand::measure(ModelDescription& description,
                                           const Placement& placement, bool flash_attention) {
  device::PlanDevice counted(device_);
  std::vector<cache::CacheGroup> groups;
  plan::DeviceDemand demand;
  if (options_.cache_bytes != Bytes{}) {
    HOTSET_TRY(groups, device_groups(description, device_, placement, kUnlimitedBudget));
    for (cache::CacheGroup& group : groups) {
      demand.all_experts += cache::bank_bytes(group.spec, group.spec.n_experts());
      // As little as makes a cache: banks are planned last. None where the device cannot use them.
      const int64_t k = description.spec.router.n_expert_used;
      group.n_slots = group.spec.max_slots < k ? 0 : std::min(k, group.spec.n_experts() - 1);
    }
  }
  LoadOptions load = options_.load;
  load.device = &counted;
  load.placement = placement;
  load.upload_experts = !groups.empty();
  Bytes banks;
  for (const cache::CacheGroup& group : groups)
    banks += cache::bank_bytes(group.spec, group.n_slots);
  HOTSET_TRY(std::unique_ptr<LoadedModel> model,
             LoadedModel::load(std::move(description), cpu_, load));
  const Status built = build(*model, counted, placement, flash_attention, std::move(groups));
  const int64_t n_layer = model->spec().n_layer;
  description = std::move(*model).take_description();
  HOTSET_RETURN_IF_ERROR(built);

  const device::DeviceInfo& info = device_.info();
  demand.name = info.name;
  demand.total_memory = info.memory_total;
  demand.free_memory = device_.free_memory();
  demand.dense_weights = counted.total("dense weights");
  demand.compute_buffers = counted.total("compute buffer");
  demand.n_layers = n_layer - placement.first_device_layer;
  // Slot maps lie beside the banks.
  demand.pairs_and_staging = counted.total("pair buffers and inputs") +
                             std::max(Bytes{}, counted.total("expert cache") - banks);
  for (const auto& item : counted.items()) {
    if (item.what.starts_with("KV cache")) demand.kv_cache += item.n_bytes;
  }
  demand.kv_windows = kv_window_bytes_;
  return demand;
}

Status Demand::build(const LoadedModel& model, device::PlanDevice& counted,
                     const Placement& placement, bool flash_attention,
                     std::vector<cache::CacheGroup> groups) {
  HOTSET_TRY(const ContextOptions asked,
             kv_context(model.spec(), options_.context, flash_attention));
  HOTSET_TRY(KvCache kv,
             KvCache::create(model.spec(), asked, cpu_.buffer_type(), &counted, placement));
  kv_window_bytes_ = kv.window_bytes(/*on_device=*/true);
  std::unique_ptr<CachedExperts> cache;
  if (!groups.empty()) {
    HOTSET_TRY(cache, CachedExperts::create(model, counted, std::move(groups), options_.cache));
  }
  ExecutorOptions executor{.context = options_.context,
                           .observe_routing = options_.observe_routing,
                           .rules = options_.cache.rules};
  executor.context.n_ubatch = std::min(executor.context.n_ubatch, kv.cells().n_cells());
  executor.context.n_outputs = std::min(executor.context.n_outputs, executor.context.n_ubatch);
  HOTSET_TRY([[maybe_unused]] const auto graphs,
             DeviceGraphs::create(model, kv, counted, cpu_, placement, executor,
                                  cache ? &cache->banks() : nullptr));
  return {};
}

// With flash attention, or without where it is `auto` and the device does not have it.
Result<plan::DeviceDemand> measure_attention(ModelDescription& description, Demand& demand,
                                             const EngineOptions& options,
                                             const Placement& placement, bool& flash_attention) {
  flash_attention = options.context.flash_attention != FlashAttention::kOff;
  auto measured = demand.measure(description, placement, flash_attention);
  if (measured || measured.error().code != ErrorCode::kUnsupported ||
      options.context.flash_attention != FlashAttention::kAuto) {
    return measured;
  }
  flash_attention = false;
  return demand.measure(description, placement, flash_attention);
}

plan::MemoryRequest request_for(const plan::DeviceDemand& demand, const EngineOptions& options,
                                const device::DeviceInfo& info) {
  plan::MemoryRequest request{.devices = {demand},
                              .tensor_split = {1},
                              .asked_cache = options.cache_bytes,
                              .headroom = options.headroom,
                              .n_ctx = options.context.n_ctx,
                              .n_ubatch = options.context.n_ubatch};
  if (!request.headroom && info.exact_memory) request.headroom = Bytes{};
  return request;
}

// The context that nobody asked for, with layers and attention as in `planned`, which has the
// least. Errors: those of Demand::measure.
Result<int32_t> choose_context(ModelDescription& description, const EngineOptions& options,
                               const device::Device& device, Demand& measure,
                               const EnginePlan& planned) {
  HOTSET_TRY(const int32_t on_host, host_context(description, options.context, planned.placement,
                                                 planned.flash_attention));
  if (planned.n_gpu_layers == 0) return on_host;
  const plan::DeviceDemand& least = planned.demand;
  const plan::MemoryRequest request = request_for(least, options, device.info());
  const Bytes headroom = request.headroom.value_or(
      plan::default_headroom(std::max(least.total_memory, least.free_memory)));
  const Bytes left = least.free_memory - headroom - least.dense_weights;
  const Bytes cache = std::min(options.cache_bytes.value_or(Bytes{}), least.all_experts);
  const Bytes room = left - least.compute_buffers - least.pairs_and_staging - cache;
  ContextRange range = context_range(description.spec, options.context);
  range.most = std::max(range.least, on_host);
  return longest_context(range, std::min(left / 4, room), [&](int32_t n_ctx) -> Result<Bytes> {
    HOTSET_TRY(
        const plan::DeviceDemand demand,
        measure.with_context(n_ctx, description, planned.placement, planned.flash_attention));
    return demand.kv_cache + demand.compute_buffers - least.compute_buffers;
  });
}

// How many layers, the head counted as one more, fit without a cache; all where none do, because
// their refusal says most. Errors: those of `fits`.
Result<int64_t> most_layers(int64_t n_layer, const std::function<Result<bool>(int64_t)>& fits) {
  HOTSET_TRY(const bool all_fit, fits(n_layer + 1));
  if (all_fit) return n_layer + 1;
  int64_t most = 0;
  int64_t too_many = n_layer + 1;
  while (too_many - most > 1) {
    const int64_t middle = (most + too_many) / 2;
    HOTSET_TRY(const bool middle_fits, fits(middle));
    (middle_fits ? most : too_many) = middle;
  }
  return most > 0 ? most : n_layer + 1;
}

std::string why_no_cache(const ModelDescription& description, const EngineOptions& options,
                         const EnginePlan& plan, Bytes budget) {
  if (std::ranges::any_of(plan.groups, [](const cache::CacheGroup& g) { return g.n_slots > 0; })) {
    return "";
  }
  if (options.cache_bytes == Bytes{}) return "--moe-cache-mib 0";
  if (plan.groups.empty()) return "no layer with experts is on the device";
  const auto k = static_cast<int64_t>(description.spec.router.n_expert_used);
  Bytes least;
  for (const cache::CacheGroup& group : plan.groups) least += cache::bank_bytes(group.spec, k);
  return fmt::format("{} are less than the {} experts that a token needs, {} with the pad slot",
                     to_string(budget), k, to_string(least));
}

}  // namespace

Status size_cache(const ModelDescription& description, const device::Device& device, Bytes budget,
                  EnginePlan& plan) {
  HOTSET_TRY(plan.groups, device_groups(description, device, plan.placement, budget));
  return {};
}

Result<EnginePlan> plan_engine(ModelDescription& description, const EngineOptions& asked,
                               device::Device& device, device::Backend& cpu) {
  EngineOptions options = asked;
  if (asked.context.n_ctx == 0)
    options.context.n_ctx = context_range(description.spec, asked.context).least;
  // Copying what the device could read in place gains nothing.
  const bool needs_none = device.info().shares_host_memory && !asked.cache_bytes;
  if (needs_none) options.cache_bytes = Bytes{};
  Demand measure(options, device, cpu);
  const int64_t n_layer = description.spec.n_layer;
  EnginePlan result;
  const auto plan_with = [&](int64_t n_gpu_layers, std::optional<Bytes> cache) -> Status {
    result.n_gpu_layers = n_gpu_layers;
    result.placement = place_layers(n_layer, n_gpu_layers);
    if (n_gpu_layers == 0) return {};
    HOTSET_TRY(result.demand, measure_attention(description, measure, options, result.placement,
                                                result.flash_attention));
    plan::MemoryRequest request = request_for(result.demand, options, device.info());
    request.asked_cache = cache;
    HOTSET_TRY(result.memory, plan::plan_memory(request));
    return {};
  };
  int64_t n_gpu_layers = options.n_gpu_layers.value_or(0);
  if (!options.n_gpu_layers) {
    HOTSET_TRY(n_gpu_layers, most_layers(n_layer, [&](int64_t n) -> Result<bool> {
                 HOTSET_RETURN_IF_ERROR(plan_with(n, Bytes{}));
                 return result.memory.fits().has_value();
               }));
  }
  HOTSET_RETURN_IF_ERROR(plan_with(n_gpu_layers, options.cache_bytes));
  if (asked.context.n_ctx == 0 && result.memory.fits()) {
    HOTSET_TRY(const int32_t n_ctx, choose_context(description, options, device, measure, result));
    const EngineOptions least = options;
    set_default_context(description.spec, n_ctx, options.context);
    HOTSET_RETURN_IF_ERROR(plan_with(n_gpu_layers, options.cache_bytes));
    if (!result.memory.fits()) {  // what was taken for a line is none
      options = least;
      HOTSET_RETURN_IF_ERROR(plan_with(n_gpu_layers, options.cache_bytes));
    }
  }
  result.n_ctx = options.context.n_ctx;
  result.n_ctx_sequence = options.context.n_ctx_sequence;
  if (!result.memory.fits()) return result;
  if (result.memory.devices.empty()) {
    result.why_no_cache = why_no_cache(description, options, result, {});
    return result;
  }
  const plan::DevicePlan& planned = result.memory.devices.front();
  if (options.cache_bytes != Bytes{}) {
    HOTSET_RETURN_IF_ERROR(size_cache(description, device, planned.banks, result));
  }
  result.why_no_cache = needs_none ? "the device reads host memory in place, so it needs none"
                                   : why_no_cache(description, options, result, planned.banks);
  return result;
}

Status shrink_to_free_memory(const ModelDescription& description, const device::Device& device,
                             const EngineOptions& options, EnginePlan& plan) {
  plan::DeviceDemand left = plan.demand;
  left.free_memory = device.free_memory();
  left.dense_weights = left.kv_cache = Bytes{};
  HOTSET_TRY(const plan::MemoryPlan memory,
             plan::plan_memory(request_for(left, options, device.info())));
  HOTSET_RETURN_IF_ERROR(memory.fits());
  plan::DevicePlan& planned = plan.memory.devices.front();
  if (memory.devices.front().banks >= planned.banks) return {};
  planned.banks = memory.devices.front().banks;
  return size_cache(description, device, planned.banks, plan);
}

namespace {

Result<EnginePlan> plan_for_device(ModelDescription& description, EngineOptions options) {
  if (options.device.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "--plan: found no device, expected --device with one of --list-devices");
  }
  HOTSET_RETURN_IF_ERROR(resolve(options));
  HOTSET_TRY(device::Backend cpu, device::Backend::cpu(options.n_threads));
  HOTSET_TRY(const std::unique_ptr<device::Device> device,
             device::open_device(options.device, {.n_threads = options.n_threads}));
  return plan_engine(description, options, *device, cpu);
}

}  // namespace

Result<EnginePlan> plan_without_loading(ModelDescription& description, EngineOptions options) {
  return catching_refusal("the plan",
                          [&] { return plan_for_device(description, std::move(options)); });
}

}  // namespace hotset::engine
