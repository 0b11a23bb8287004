// What the server answers where it cannot do what was asked, as OpenAI's API has it.
// Thread-compatible: plain values.
#ifndef HOTSET_SERVER_API_ERROR_H_
#define HOTSET_SERVER_API_ERROR_H_

#include <expected>
#include <string>

#include "hotset/base/error.h"

namespace hotset::server {

struct ApiError {
  int status = 400;          // of HTTP
  std::string message = {};  // names the field, what was found and what was expected
  std::string param = {};    // the field; empty: none
  std::string code = {};     // for programs, as "context_length_exceeded"; empty: none
};

template <typename T>
using ApiResult = std::expected<T, ApiError>;

// The status that fits an error of the folders below: 400 for what the caller can change, 503 for
// what another time may work, 500 for the rest.
ApiError api_error(const Error& error);

// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_API_ERROR_H_
