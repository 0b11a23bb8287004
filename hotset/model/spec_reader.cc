#include "hotset/model/spec_reader.h"

#include <optional>

namespace hotset::model {

SpecReader::SpecReader(const GgufFile& file, std::string_view architecture)
    : file_(file), prefix_(fmt::format("{}.", architecture)) {}

template <typename T>
T SpecReader::keep(Result<T> result, T otherwise) {
  if (result) return *std::move(result);
  if (status_) status_ = std::unexpected(std::move(result).error());
  return otherwise;
}

int64_t SpecReader::require(std::string_view key, int64_t min, int64_t max) {
  return keep(file_.require_int(key_name(key), min, max), min);
}

float SpecReader::require_float(std::string_view key) {
  return static_cast<float>(keep(file_.require_float(key_name(key)), 0.0));
}

int64_t SpecReader::find(std::string_view key, int64_t max, int64_t otherwise) {
  const int64_t value =
      keep(file_.find_int(key_name(key), 0, max), std::optional<int64_t>()).value_or(0);
  return value == 0 ? otherwise : value;
}

float SpecReader::find(std::string_view key, float otherwise) {
  const double value = keep(file_.find_float(key_name(key)), std::optional<double>()).value_or(0.0);
  return value == 0.0 ? otherwise : static_cast<float>(value);
}

bool SpecReader::find(std::string_view key, bool otherwise) {
  return keep(file_.find_bool(key_name(key)), std::optional<bool>()).value_or(otherwise);
}

std::string SpecReader::find(std::string_view key) {
  return keep(file_.find_string(key_name(key)), std::optional<std::string>()).value_or("");
}

void SpecReader::fail(std::unexpected<Error> error) {
  if (status_) status_ = std::move(error);
}

}  // namespace hotset::model
