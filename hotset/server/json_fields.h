// Reads a JSON object's fields into variables, checked. The first field that is wrong ends up as an
// error that names it, what was found and what was expected; the others are then left alone. A
// field that is absent or null leaves its variable as it is. Thread-compatible.
#ifndef HOTSET_SERVER_JSON_FIELDS_H_
#define HOTSET_SERVER_JSON_FIELDS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hotset/base/setting.h"
#include "hotset/server/api_error.h"

namespace hotset::server {

using Json = nlohmann::ordered_json;

// The value of a body. Errors: no JSON (with the place), or nested too deeply (base/json.h).
ApiResult<Json> parse_json(std::string_view text);

// A text for messages, cut where it is long.
std::string shortened(std::string text);
// A value for messages: "hot", 3, true, "an array", ...; cut where it is long.
std::string found_text(const Json& value);

// An error about a field.
std::unexpected<ApiError> field_error(std::string_view field, const Json& found,
                                      std::string_view expected);

class Fields {
 public:
  // `path` is put in front of names in messages, as "stream_options.". Requires: `object` is an
  // object and outlives this.
  explicit Fields(const Json& object, std::string path = {});

  // The field's value; null if it is absent, null, or an error has happened.
  const Json* find(std::string_view name) const;

  void flag(std::string_view name, bool& out);
  // What the setting takes, by each of its fields: the last one that is there counts.
  void setting(const SettingRef& setting);
  // The same by this name.
  void setting(std::string_view name, const SettingRef& setting);
  // A value that is no field of the object but within one: "logit_bias[1]".
  void item(std::string_view name, const Json& value, const SettingRef& setting);
  // A whole number in [min, max].
  void integer(std::string_view name, int32_t& out, int64_t min, int64_t max);
  // Any whole number of 64 bits.
  void whole(std::string_view name, std::optional<int64_t>& out);
  void text(std::string_view name, std::string& out);
  // A string, or an array of strings, each of 1 to `max_bytes` bytes.
  void texts(std::string_view name, std::vector<std::string>& out, size_t max_texts,
             size_t max_bytes);
  // An object or array, as JSON text.
  void object_text(std::string_view name, std::string& out);

  void fail(std::string_view name, const Json& found, std::string_view expected);
  void fail(ApiError error);

  // The first error.
  const ApiResult<void>& status() const { return status_; }

 private:
  std::string full(std::string_view name) const { return path_ + std::string(name); }

  const Json& object_;
  std::string path_;
  ApiResult<void> status_;
};

}  // namespace hotset::server

#endif  // HOTSET_SERVER_JSON_FIELDS_H_
