#include "hotset/server/api_error.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "hotset/base/printable.h"

namespace hotset::server {
namespace {

// Whoever quotes a request says how much of it; this is for what nobody thought of.
constexpr size_t kMaxMessageBytes = 4096;

std::string_view type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 503:
      return "unavailable_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

ApiError api_error(const Error& error) {
  ApiError result{.status = 500, .message = error.message};
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kUnsupported:
      result.status = 400;
      break;
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kCancelled:
      result.status = 503;
      break;
    default:
      break;
  }
  return result;
}

std::string error_body(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
  };
  const nlohmann::ordered_json body = {{"error",
                                        {{"message", printable(error.message, kMaxMessageBytes)},
                                         {"type", type_of(error.status)},
                                         {"param", or_null(error.param)},
                                         {"code", or_null(error.code)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace hotset::server
