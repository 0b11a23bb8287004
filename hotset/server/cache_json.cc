#include "hotset/server/cache_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/report/counts_json.h"

namespace hotset::server {
namespace {

Json layer_json(const report::CacheLayerView& layer) {
  Json json = {{"layer", layer.layer}, {"group", layer.group}};
  json.update(report::counts_json(layer.totals));
  // One character per expert: long lists of true and false are hard to read and to send.
  std::string resident;
  int64_t n_resident = 0;
  for (const bool is_resident : layer.is_resident) {
    resident += is_resident ? '1' : '0';
    n_resident += is_resident ? 1 : 0;
  }
  json["n_resident"] = n_resident;
  json["resident"] = std::move(resident);
  Json uses = Json::array();
  for (const float use : layer.uses) uses.push_back(std::round(use * 100) / 100);
  json["uses"] = std::move(uses);
  return json;
}

Json group_json(const report::CacheGroupView& group) {
  return {{"layers", group.layers},
          {"experts", group.n_experts},
          {"slots", group.n_slots},
          {"expert_bytes", group.expert_bytes.count},
          {"split", group.split},
          {"upload_us_per_expert", group.upload_us},
          {"cpu_us_per_expert", group.cpu_us}};
}

}  // namespace

Json cache_json(const report::CacheView& view, const SchedulerStatus& status) {
  Json json = {{"on", view.is_on}, {"verdict", view.verdict}};
  json["device"] = view.device.empty() ? Json() : Json(view.device);
  json["policy"] = view.policy.empty() ? Json() : Json(view.policy);
  json["totals"] = report::counts_json(view.totals);
  json["groups"] = Json::array();
  for (const report::CacheGroupView& group : view.groups)
    json["groups"].push_back(group_json(group));
  json["layers"] = Json::array();
  for (const report::CacheLayerView& layer : view.layers)
    json["layers"].push_back(layer_json(layer));
  json["memory"] = {{"device_bytes", view.device_memory.count}, {"items", Json::array()}};
  for (const auto& [name, bytes] : view.memory) {
    json["memory"]["items"].push_back({{"name", name}, {"bytes", bytes.count}});
  }
  json["compared_with_best"] = nullptr;
  if (view.comparison) {
    json["compared_with_best"] = {{"lookups", view.comparison->n_lookups},
                                  {"hit_rate", view.comparison->hit_rate},
                                  {"best_hit_rate", view.comparison->best_hit_rate},
                                  {"age_s", view.comparison->age_s}};
  }
  json["generation"] = {{"generated_tokens", status.n_generated},
                        {"prompt_tokens_computed", status.n_prompt_computed},
                        {"prompt_tokens_reused", status.n_prompt_reused},
                        {"decode_us", status.decode_us},
                        {"prefill_us", status.prefill_us},
                        {"queued", status.n_queued},
                        {"kv_positions", status.n_ctx},
                        {"kv_positions_used", status.n_used}};
  return json;
}

}  // namespace hotset::server
