#include "hotset/cli/info_command.h"

#include <fmt/core.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "hotset/base/printable.h"
#include "hotset/base/ranges_text.h"
#include "hotset/base/units.h"
#include "hotset/engine/run/engine_plan.h"
#include "hotset/engine/weights/loaded_model.h"
#include "hotset/report/cache_verdict.h"

namespace hotset::cli {
namespace {

using Json = nlohmann::ordered_json;

// Sizes of one MoE layer's experts.
struct ExpertLayer {
  int64_t layer = 0;
  Bytes layer_bytes;
  Bytes expert_bytes;
  std::string types;
};

struct Summary {
  Bytes total;
  Bytes experts;
  int64_t n_parameters = 0;
  std::map<std::string, int64_t> n_by_type;
  std::vector<ExpertLayer> layers;
  std::vector<std::string> unused;
};

Summary summarise(const engine::ModelDescription& model) {
  Summary summary;
  for (const model::TensorInfo& tensor : model.file.tensors()) {
    summary.total += tensor.n_bytes;
    summary.n_parameters += tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3];
    ++summary.n_by_type[ggml_type_name(tensor.type)];
  }
  engine::ModelWeights weights;
  engine::WeightList list;
  model.architecture->declare_weights(model.spec, weights, list);
  summary.unused = engine::unused_tensors(model.file, list);
  std::map<int64_t, ExpertLayer> layers;
  for (const engine::WeightDeclaration& w : list.declarations()) {
    const model::TensorInfo* tensor = model.file.find_tensor(w.name);
    if (w.use != engine::WeightUse::kExperts || tensor == nullptr) continue;
    ExpertLayer& layer = layers[w.layer];
    layer.layer = w.layer;
    layer.layer_bytes += tensor->n_bytes;
    layer.types += (layer.types.empty() ? "" : "/") + std::string(ggml_type_name(tensor->type));
    summary.experts += tensor->n_bytes;
  }
  for (auto& [number, layer] : layers) {
    layer.expert_bytes = {layer.layer_bytes.count / model.spec.router.n_expert};
    summary.layers.push_back(layer);
  }
  return summary;
}

void print_json(const engine::ModelDescription& model, const Summary& summary) {
  const model::ModelSpec& s = model.spec;
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const ExpertLayer& layer : summary.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"bytes", layer.layer_bytes.count},
                      {"expert_bytes", layer.expert_bytes.count},
                      {"types", layer.types}});
  }
  const nlohmann::ordered_json report = {
      {"file", model.file.name()},
      {"parts", model.file.n_parts()},
      {"file_bytes", model.file.total_bytes().count},
      {"architecture", s.architecture},
      {"name", s.name},
      {"n_parameters", summary.n_parameters},
      {"n_layer", s.n_layer},
      {"n_embd", s.n_embd},
      {"n_vocab", s.n_vocab},
      {"n_ctx_train", s.n_ctx_train},
      {"n_head", s.attention.n_head},
      {"n_head_kv", s.attention.n_head_kv},
      {"head_dim", s.attention.head_dim_k},
      {"n_expert", s.router.n_expert},
      {"n_expert_used", s.router.n_expert_used},
      {"n_ff_expert", s.n_ff_expert},
      {"expert_bytes_total", summary.experts.count},
      {"other_bytes_total", (summary.total - summary.experts).count},
      {"expert_layers", layers},
      {"tensor_types", summary.n_by_type},
      {"unused_tensors", summary.unused},
  };
  std::puts(report.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

void print_text(const engine::ModelDescription& model, const Summary& summary) {
  const model::ModelSpec& s = model.spec;
  fmt::print("{}\n", printable(model.file.name()));
  fmt::print("  architecture  {}{}\n", s.architecture,
             s.name.empty() ? "" : fmt::format(" ({})", printable(s.name)));
  fmt::print("  file          {}{}\n", to_string(model.file.total_bytes()),
             model.file.n_parts() > 1 ? fmt::format(" in {} parts", model.file.n_parts()) : "");
  fmt::print("  parameters    {:.1f} million\n", static_cast<double>(summary.n_parameters) / 1e6);
  fmt::print("  shape         {} layers, embedding {}, vocabulary {}, context {}\n", s.n_layer,
             s.n_embd, s.n_vocab, s.n_ctx_train);
  fmt::print("  attention     {} heads of {}, {} for keys and values\n", s.attention.n_head,
             s.attention.head_dim_k, s.attention.n_head_kv);
  fmt::print("  experts       {} per layer, {} per token, width {}\n", s.router.n_expert,
             s.router.n_expert_used, s.n_ff_expert);
  fmt::print("  weights       {} of experts, {} of everything else\n", to_string(summary.experts),
             to_string(summary.total - summary.experts));
  for (size_t i = 0; i < summary.layers.size();) {
    // Runs of equal layers in one line.
    const ExpertLayer& first = summary.layers[i];
    size_t end = i + 1;
    while (end < summary.layers.size() && summary.layers[end].layer_bytes == first.layer_bytes &&
           summary.layers[end].types == first.types) {
      ++end;
    }
    const int64_t last = summary.layers[end - 1].layer;
    const std::string range = last == first.layer ? fmt::format("layer {}", first.layer)
                                                  : fmt::format("layers {}-{}", first.layer, last);
    fmt::print("  {:<13} {} x {} = {} each, types {} (gate/up/down)\n", range, s.router.n_expert,
               to_string(first.expert_bytes), to_string(first.layer_bytes), first.types);
    i = end;
  }
  for (const std::string& name : summary.unused) {
    fmt::print("  unused        {} is not used by architecture {}\n", printable(name),
               s.architecture);
  }
}

Json plan_json(const engine::EnginePlan& plan) {
  Json devices = Json::array();
  for (const plan::DevicePlan& device : plan.memory.devices) {
    Json items = Json::array();
    for (const plan::PlanItem& item : device.items) {
      items.push_back({{"what", item.name}, {"bytes", item.bytes.count}});
    }
    devices.push_back({{"device", device.name},
                       {"total_bytes", device.total_memory.count},
                       {"free_bytes", device.free_memory.count},
                       {"items", items},
                       {"banks_bytes", device.banks.count},
                       {"all_experts_bytes", device.all_experts.count},
                       {"refusal", device.refusal}});
  }
  Json groups = Json::array();
  for (const cache::CacheGroup& group : plan.groups) {
    groups.push_back({{"layers", group.spec.layers},
                      {"experts", group.spec.n_experts()},
                      {"slots", group.n_slots}});
  }
  return {{"n_gpu_layers", plan.n_gpu_layers},
          {"flash_attention", plan.flash_attention},
          {"devices", devices},
          {"groups", groups},
          {"why_no_cache", plan.why_no_cache}};
}

void print_plan(const engine::EnginePlan& plan) {
  for (const std::string& line : plan.memory.table()) fmt::print("{}\n", line);
  fmt::print("layers on the device: {} (-ngl {})\n",
             plan.n_gpu_layers == 0 ? "none" : fmt::format("the last {}", plan.demand.n_layers),
             plan.n_gpu_layers);
  fmt::print("context: {} positions (-c)\n", plan.n_ctx);
  if (!plan.memory.fits()) return;
  for (const cache::CacheGroup& group : plan.groups) {
    const double percent =
        100.0 * static_cast<double>(group.n_slots) / static_cast<double>(group.spec.n_experts());
    fmt::print("experts of layers {}: {} slots for {} experts of {} ({:.1f}%{})\n",
               ranges_text<int32_t>(group.spec.layers), group.n_slots, group.spec.n_experts(),
               to_string(group.spec.bytes_per_expert()), percent,
               group.n_slots == group.spec.n_experts() ? ", resident" : "");
  }
  if (!plan.why_no_cache.empty()) fmt::print("no expert cache: {}\n", plan.why_no_cache);
}

// The plan is shown even where it does not fit.
Status show_plan(engine::ModelDescription& model, const InfoOptions& options) {
  HOTSET_TRY(engine::EngineOptions engine_flags, engine_options(options.planned));
  engine_flags.context.n_sequences = 1;  // as `hotset run` has it
  HOTSET_TRY(engine_flags.device, measure::choose_device(options.planned.device));
  HOTSET_TRY(const engine::EnginePlan plan,
             engine::plan_without_loading(model, std::move(engine_flags)));
  if (options.json) {
    std::puts(plan_json(plan).dump(2).c_str());
  } else {
    print_plan(plan);
  }
  return plan.memory.fits();
}

}  // namespace

Status info(const InfoOptions& options) {
  HOTSET_TRY(engine::ModelDescription model, engine::describe_model(options.model));
  if (options.plan) return show_plan(model, options);
  const Summary summary = summarise(model);
  if (options.json) {
    print_json(model, summary);
  } else {
    print_text(model, summary);
  }
  if (options.tensors) {
    for (const model::TensorInfo& tensor : model.file.tensors()) {
      fmt::print("  {:<40} {}\n", printable(tensor.name), model::describe(tensor));
    }
  }
  return {};
}

}  // namespace hotset::cli
