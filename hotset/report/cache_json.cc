#include "hotset/report/cache_json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <variant>

namespace hotset::report {

using Json = nlohmann::ordered_json;

Json counts_json(const cache::CacheCounts& counts) {
  Json json = Json::object();
  for (const cache::CountField& field : cache::count_fields()) {
    const size_t cut = field.name.find('/');
    Json& object =
        cut == std::string_view::npos ? json : json[std::string(field.name.substr(0, cut))];
    const std::string key(cut == std::string_view::npos ? field.name : field.name.substr(cut + 1));
    std::visit(
        [&](auto member) {
          if constexpr (requires { (counts.*member).count; }) {
            object[key] = (counts.*member).count;
          } else {
            object[key] = counts.*member;
          }
        },
        field.member);
  }
  json["hit_rate"] = counts.hit_rate();
  json["upload_us"] = counts.upload_us();
  return json;
}

namespace {

Json with_counts(Json object, const cache::CacheCounts& counts) {
  object.update(counts_json(counts));
  return object;
}

void add_details(const CacheReport& report, Json& json) {
  Json classes = Json::array();
  for (size_t i = 0; i < report.classes.size(); ++i) {
    if (report.classes[i].lookups == 0) continue;
    const std::string batch(cache::batch_class_name(static_cast<cache::BatchClass>(i)));
    classes.push_back(with_counts({{"batch", batch}}, report.classes[i]));
  }
  json["by_batch"] = std::move(classes);
  Json layers = Json::array();
  for (const CacheRow& row : report.rows) {
    const std::string batch(cache::batch_class_name(row.batch));
    layers.push_back(with_counts({{"layer", row.layer}, {"batch", batch}}, row.counts));
  }
  json["by_layer"] = std::move(layers);
  Json groups = Json::array();
  for (const GroupSplit& split : report.splits) {
    groups.push_back({{"layers", {split.first_layer, split.last_layer}},
                      {"upload_us", split.upload_us},
                      {"cpu_us", split.cpu_us},
                      {"reason", split.reason}});
  }
  json["splits"] = std::move(groups);
  if (!report.replayed) return;
  json["replayed"] = {{"lookups", report.replayed->n_lookups},
                      {"was_cut", report.replayed->was_cut},
                      {"hit_rate", report.replayed->hit_rate},
                      {"belady_hit_rate", report.replayed->belady_hit_rate}};
}

Json layer_json(const CacheLayerView& layer) {
  Json json = {{"layer", layer.layer}, {"group", layer.group}};
  json.update(counts_json(layer.totals));
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

// What a group is, for every form.
Json group_json(std::span<const int32_t> layers, int64_t n_experts, Bytes expert_bytes,
                int64_t n_slots) {
  return {{"layers", layers},
          {"experts", n_experts},
          {"expert_bytes", expert_bytes.count},
          {"slots", n_slots}};
}

Json group_json(const CacheGroupView& group) {
  Json json = group_json(group.layers, group.n_experts, group.expert_bytes, group.n_slots);
  json["split"] = group.split;
  json["upload_us_per_expert"] = group.upload_us;
  json["cpu_us_per_expert"] = group.cpu_us;
  return json;
}

}  // namespace

Json cache_json(const CacheState& state, const CacheReport* report, bool with_details) {
  Json json = {{"on", state.has_slots()}, {"verdict", cache_verdict(state)}};
  if (state.device == nullptr) return json;
  json["device"] = state.device->name;
  if (!state.has_slots()) return json;
  const lanes::CacheRules& rules = state.options.rules;
  json["policy"] = rules.policy;
  if (rules.cpu_share) {
    json["cpu_share"] = *rules.cpu_share;
  } else {
    json["cpu_share"] = "auto";
  }
  json["fills"] = rules.fills;
  if (rules.cache_batch) {
    json["max_decode_tokens"] = *rules.cache_batch;
  } else {
    json["max_decode_tokens"] = "auto";
  }
  json["device_bytes"] = state.device_bytes.count;
  json["pinned"] = state.source_is_pinned;
  Json groups = Json::array();
  for (const cache::CacheGroup& group : state.groups) {
    Json& object = groups.emplace_back(group_json(group.spec.layers, group.spec.n_experts(),
                                                  group.spec.bytes_per_expert(), group.n_slots));
    object["resident"] = group.n_slots == group.spec.n_experts();
  }
  json["groups"] = std::move(groups);
  if (report == nullptr) return json;
  json["total"] = counts_json(report->total);
  if (with_details) add_details(*report, json);
  return json;
}

Json cache_json(const CacheView& view) {
  Json json = {{"on", view.is_on}, {"verdict", view.verdict}};
  json["device"] = view.device.empty() ? Json() : Json(view.device);
  json["policy"] = view.policy.empty() ? Json() : Json(view.policy);
  json["totals"] = counts_json(view.totals);
  json["groups"] = Json::array();
  for (const CacheGroupView& group : view.groups) json["groups"].push_back(group_json(group));
  json["layers"] = Json::array();
  for (const CacheLayerView& layer : view.layers) json["layers"].push_back(layer_json(layer));
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
  return json;
}

}  // namespace hotset::report
