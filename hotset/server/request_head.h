// The head of a request, its request line and header fields, read strictly and before the library
// reads it, which is more lenient: what two programs could read in two ways is refused, and so is
// what is no HTTP, as soon as it shows. Thread-safe: pure functions.
#ifndef HOTSET_SERVER_REQUEST_HEAD_H_
#define HOTSET_SERVER_REQUEST_HEAD_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hotset/server/api_error.h"

namespace hotset::server {

// Of a head; more is answered 431, or 414 where it is the target.
inline constexpr size_t kMaxHeadBytes = 32 << 10;
inline constexpr size_t kMaxTargetBytes = 4 << 10;
inline constexpr size_t kMaxFieldBytes = 8000;  // of one header field; the library takes 8192
inline constexpr size_t kMaxFields = 90;        // the library takes 100

struct RequestHead {
  std::string method = {};
  std::string target = {};     // origin form, as "/health?a=b"
  std::string authority = {};  // "host:port" that the request is for, lower case; empty: HTTP/1.0
  std::vector<std::pair<std::string, std::string>> fields = {};  // names in lower case
  bool is_http_1_0 = false;
  bool is_chunked = false;  // the body
  std::optional<uint64_t> content_length = {};
  bool expects_continue = false;  // the body comes when it is asked for
  bool closes = false;            // no request follows on the connection

  // The value of a field, the first of its name; empty: absent.
  std::string_view field(std::string_view name) const;
  bool has_body() const { return is_chunked || content_length.value_or(0) > 0; }
};

// How many bytes the head at the beginning of `bytes` has, with the empty line at its end; nothing:
// it goes on. The first `n_checked` bytes have been looked at before.
// Errors: 400: what cannot be part of one; 414, 431: it is too long.
ApiResult<std::optional<size_t>> find_head_end(std::string_view bytes, size_t n_checked = 0);

// Requires: find_head_end() has found the end of `head`. It may be any bytes, though.
// Errors: 400, 414, 417, 431, 501, 505; the message names the field, what was found and expected.
ApiResult<RequestHead> parse_request_head(std::string_view head);

// The part of a head that the library needs to read a body and to write an answer, in the one form
// in which it reads that.
std::string head_for_library(const RequestHead& head);

}  // namespace hotset::server

#endif  // HOTSET_SERVER_REQUEST_HEAD_H_
