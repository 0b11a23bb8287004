// Which fields a request may have, by endpoint: one table for the parsers and the documents. What
// is not in it would perhaps change the answer, and is refused.
// Thread-safe: constant data.
#ifndef HOTSET_SERVER_REQUEST_FIELDS_H_
#define HOTSET_SERVER_REQUEST_FIELDS_H_

#include <span>
#include <string_view>

#include "hotset/server/json_fields.h"

namespace hotset::server {

enum class Endpoint {
  kChat,         // /v1/chat/completions, /apply-template
  kCompletions,  // /v1/completions
  kNative,       // /completion
  kTokenize,
  kDetokenize,
};

enum class FieldUse {
  kUsed,     // read by the parser
  kIgnored,  // changes nothing, whatever it says
  kNeutral,  // does what hotset does not, so it must say that it does nothing
};

struct RequestField {
  std::string_view name;
  FieldUse use = FieldUse::kUsed;
  std::string_view neutral = {};  // kNeutral: a JSON array of the values that do nothing
};

// The fields that an endpoint knows, each once. Every one may be null as well.
std::span<const RequestField> request_fields(Endpoint endpoint);

// Errors: 400, naming the first field that the endpoint does not know, or that asks for something
// that hotset does not do ("unsupported_parameter"). Requires: `object` is an object.
ApiResult<void> check_fields(const Json& object, Endpoint endpoint);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_REQUEST_FIELDS_H_
