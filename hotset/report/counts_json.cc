#include "hotset/report/counts_json.h"

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

namespace hotset::report {

nlohmann::ordered_json counts_json(const cache::CacheCounts& counts) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const cache::CountField& field : cache::count_fields()) {
    const size_t cut = field.name.find('/');
    nlohmann::ordered_json& object =
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

}  // namespace hotset::report
