#include "hotset/server/json_fields.h"

#include <fmt/core.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "hotset/base/json.h"
#include "hotset/base/utf8.h"

namespace hotset::server {

std::string shortened(std::string text) {
  constexpr size_t kMost = 60;
  if (text.size() <= kMost) return text;
  text.resize(kMost);
  text.resize(valid_utf8_prefix(text));
  return text + "...";
}

ApiResult<Json> parse_json(std::string_view text) {
  auto json = hotset::parse_json(text);
  if (json) return *std::move(json);
  return std::unexpected(ApiError{.message = "the body is " + json.error().message});
}

std::string found_text(const Json& value) {
  if (value.is_array()) return value.empty() ? "an empty array" : "an array";
  if (value.is_object()) return "an object";
  return shortened(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::unexpected<ApiError> field_error(std::string_view field, const Json& found,
                                      std::string_view expected) {
  return std::unexpected(ApiError{
      .message = fmt::format("{}: found {}, expected {}", field, found_text(found), expected),
      .param = std::string(field)});
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  HOTSET_CHECK(object.is_object());
}

const Json* Fields::find(std::string_view name) const {
  if (!status_) return nullptr;
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::fail(ApiError error) {
  if (status_) status_ = std::unexpected(std::move(error));
}

void Fields::fail(std::string_view name, const Json& found, std::string_view expected) {
  fail(field_error(full(name), found, expected).error());
}

void Fields::flag(std::string_view name, bool& out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) return fail(name, *value, "true or false");
  out = value->get<bool>();
}

void Fields::setting(const SettingRef& setting) {
  for (const std::string& name : setting.info.fields) this->setting(name, setting);
}

void Fields::setting(std::string_view name, const SettingRef& setting) {
  const Json* value = find(name);
  if (value != nullptr) item(name, *value, setting);
}

void Fields::item(std::string_view name, const Json& value, const SettingRef& setting) {
  const bool is_number =
      setting.kind() != SettingKind::kText && setting.kind() != SettingKind::kWord;
  HOTSET_CHECK(setting.kind() != SettingKind::kSwitch);  // flag() reads these
  SettingInput input = true;                             // neither a number nor a text
  if (value.is_string() && !is_number) {
    input = std::string_view(value.get_ref<const std::string&>());
  } else if (value.is_number()) {
    input = value.get<double>();
  }
  if (const auto set = setting.set(input); !set) fail(name, value, set.error().expected);
}

void Fields::integer(std::string_view name, int32_t& out, int64_t min, int64_t max) {
  setting(name,
          setting_ref({.name = {},
                       .range = SettingRange{static_cast<double>(min), static_cast<double>(max)}},
                      out));
}

void Fields::whole(std::string_view name, std::optional<int64_t>& out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  // In all their digits, which a double does not have.
  const bool is_large = value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX;
  if (value->is_number_integer() && !is_large) {
    out = value->get<int64_t>();
    return;
  }
  setting(name, setting_ref({}, out));
}

void Fields::text(std::string_view name, std::string& out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return fail(name, *value, "a string");
  out = value->get<std::string>();
}

void Fields::texts(std::string_view name, std::vector<std::string>& out, size_t max_texts,
                   size_t max_bytes) {
  const Json* value = find(name);
  if (value == nullptr) return;
  std::vector<std::string> found;
  const auto add = [&](const std::string& field, const Json& item, std::string_view expected) {
    if (!item.is_string()) return fail(field, item, expected);
    found.push_back(item.get<std::string>());
    if (!found.back().empty() && found.back().size() <= max_bytes) return;
    fail(field, item, fmt::format("a string of 1 to {} bytes", max_bytes));
  };
  if (value->is_array()) {
    for (size_t i = 0; i < value->size(); ++i) {
      add(fmt::format("{}[{}]", name, i), (*value)[i], "a string");
    }
  } else {
    add(std::string(name), *value, "a string or an array of strings");
  }
  if (found.size() > max_texts) {
    fail({.message = fmt::format("{}: found {} strings, expected at most {}", full(name),
                                 found.size(), max_texts),
          .param = full(name)});
  }
  if (status_) out = std::move(found);
}

void Fields::object_text(std::string_view name, std::string& out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_object()) return fail(name, *value, "an object");
  out = value->dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace hotset::server
