// Heads of requests over arbitrary bytes: the end is found wherever the bytes are cut, and what is
// accepted becomes a head that says the same when it is read again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "hotset/server/allowed_hosts.h"
#include "hotset/server/api_error.h"
#include "hotset/server/request_head.h"

namespace {

using hotset::server::ApiError;
using hotset::server::RequestHead;

void check(bool condition) {
  if (!condition) std::abort();
}

void check_error(const ApiError& error) {
  check(error.status >= 400 && error.status <= 505 && !error.message.empty());
  check(nlohmann::json::accept(hotset::server::error_body(error)));
}

void check_head(std::string_view bytes) {
  const auto head = hotset::server::parse_request_head(bytes);
  if (!head) return check_error(head.error());
  check(head->target.starts_with('/') || head->target == "*");
  check(!head->is_chunked || !head->content_length);
  check(head->authority.empty() || hotset::server::host_of_authority(head->authority));
  const std::string text = hotset::server::head_for_library(*head);
  const auto end = hotset::server::find_head_end(text);
  check(end && *end == text.size());
  const auto again = hotset::server::parse_request_head(text);
  // Without an authority there is no Host.
  if (head->authority.empty() && !head->is_http_1_0) return check(!again);
  check(again && again->method == head->method && again->target == head->target &&
        again->authority == head->authority && again->content_length == head->content_length &&
        again->is_chunked == head->is_chunked && again->closes == head->closes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t n_bytes) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), n_bytes);
  const auto end = hotset::server::find_head_end(bytes);
  // In two pieces, cut where the first byte says.
  const size_t n_first = n_bytes == 0 ? 0 : data[0] % n_bytes;
  const auto first = hotset::server::find_head_end(bytes.substr(0, n_first));
  if (!first) {
    check(!end);
  } else if (*first) {
    check(end && *end == *first);
  } else {
    const auto second = hotset::server::find_head_end(bytes, n_first);
    check(second.has_value() == end.has_value() && (!end || *second == *end));
  }
  if (!end) {
    check_error(end.error());
  } else if (*end) {
    check(**end <= bytes.size() && bytes.substr(0, **end).ends_with("\r\n\r\n"));
    check_head(bytes.substr(0, **end));
  }
  // What the bytes of a head are has been looked at before; these are any.
  if (const auto head = hotset::server::parse_request_head(bytes); !head) check_error(head.error());
  const auto host = hotset::server::host_of_authority(bytes);
  if (host) check(!host->empty());
  (void)hotset::server::AllowedHosts({"a"}).allow(bytes);
  return 0;
}
