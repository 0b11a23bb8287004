#include "hotset/engine/weights/tensor_types.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace hotset::engine {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

}  // namespace

Result<ggml_type> parse_type(std::string_view flag, std::string_view name) {
  std::string known;
  for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
    const auto type = static_cast<ggml_type>(i);
    if (ggml_type_size(type) == 0) continue;  // removed from ggml
    const std::string type_name = lower(ggml_type_name(type));
    if (type_name == lower(name)) return type;
    known += (known.empty() ? "" : ", ") + type_name;
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: found '{}', expected one of: {}", flag, name,
                    known);
}

}  // namespace hotset::engine
