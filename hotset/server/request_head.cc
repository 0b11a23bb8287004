#include "hotset/server/request_head.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>

#include "hotset/base/printable.h"
#include "hotset/server/allowed_hosts.h"

namespace hotset::server {
namespace {

constexpr std::string_view kLineEnd = "\r\n";
constexpr std::string_view kHeadEnd = "\r\n\r\n";
// Those that the library knows as well, and that have a meaning for a server of this kind.
constexpr std::array kMethods =
    std::to_array<std::string_view>({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"});

std::unexpected<ApiError> refuse(int status, std::string message) {
  return std::unexpected(ApiError{.status = status, .message = std::move(message)});
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

bool is_token(std::string_view text) {
  constexpr std::string_view kSigns = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](unsigned char c) {
    return c < 0x80 && (std::isalnum(c) != 0 || kSigns.contains(static_cast<char>(c)));
  });
}

// Without the blanks around it.
std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Whether a list of words, as "close, TE", has `word`, whatever the case.
bool has_word(std::string_view list, std::string_view word) {
  while (true) {
    const size_t comma = list.find(',');
    if (lower(trimmed(list.substr(0, comma))) == word) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
}

// --- Parts of a head

ApiResult<void> parse_request_line(std::string_view line, RequestHead& head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || first == last) {
    return refuse(400, fmt::format("the request line: found '{}', expected as 'GET /health "
                                   "HTTP/1.1'",
                                   printable(line)));
  }
  head.method = line.substr(0, first);
  head.target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!is_token(head.method)) {
    return refuse(400,
                  fmt::format("the method: found '{}', expected a word", printable(head.method)));
  }
  if (version.size() != 8 || !version.starts_with("HTTP/") || version[6] != '.') {
    return refuse(400,
                  fmt::format("the version: found '{}', expected HTTP/1.1", printable(version)));
  }
  head.is_http_1_0 = version == "HTTP/1.0";
  if (!head.is_http_1_0 && version != "HTTP/1.1") {
    return refuse(505, fmt::format("found {}, expected HTTP/1.1", printable(version)));
  }
  if (head.target.size() > kMaxTargetBytes) {
    return refuse(414, fmt::format("the target has {} bytes, expected at most {}",
                                   head.target.size(), kMaxTargetBytes));
  }
  if (head.target.empty() || head.target.find_first_of(" \t") != std::string::npos) {
    return refuse(400,
                  fmt::format("the target: found '{}', expected a path", printable(head.target)));
  }
  if (!std::ranges::contains(kMethods, head.method)) {
    return refuse(
        501, fmt::format("found {}, which is no method of this server", printable(head.method)));
  }
  return {};
}

ApiResult<void> parse_field(std::string_view line, RequestHead& head) {
  if (line.starts_with(' ') || line.starts_with('\t')) {
    return refuse(400, "a header field goes on in a second line, expected one line");
  }
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || !is_token(name)) {
    return refuse(
        400, fmt::format("a header field: found '{}', expected 'Name: value'", printable(line)));
  }
  if (line.size() > kMaxFieldBytes) {
    return refuse(431, fmt::format("{}: found a header field of {} bytes, expected at most {}",
                                   printable(name), line.size(), kMaxFieldBytes));
  }
  if (head.fields.size() == kMaxFields) {
    return refuse(431, fmt::format("found more than {} header fields", kMaxFields));
  }
  head.fields.emplace_back(lower(name), trimmed(line.substr(colon + 1)));
  return {};
}

size_t n_fields(const RequestHead& head, std::string_view name) {
  return static_cast<size_t>(
      std::ranges::count_if(head.fields, [&](const auto& field) { return field.first == name; }));
}

// Who the request is for. A target in absolute form says it itself, and what Host says then does
// not count.
ApiResult<void> find_authority(RequestHead& head) {
  const size_t n_hosts = n_fields(head, "host");
  if (n_hosts > 1 || (n_hosts == 0 && !head.is_http_1_0)) {
    return refuse(400, fmt::format("Host: found {} header fields, expected one", n_hosts));
  }
  std::string authority = lower(head.field("host"));
  bool must_be_one = !authority.empty();
  const bool is_for_all = head.target == "*" && head.method == "OPTIONS";
  if (!head.target.starts_with('/') && !is_for_all) {
    const std::string start = lower(std::string_view(head.target).substr(0, 8));
    const size_t n_scheme = start.starts_with("http://")    ? 7
                            : start.starts_with("https://") ? 8
                                                            : 0;
    if (n_scheme == 0) {
      return refuse(400,
                    fmt::format("the target: found '{}', expected a path", printable(head.target)));
    }
    const size_t end = std::min(head.target.find_first_of("/?#", n_scheme), head.target.size());
    authority = lower(std::string_view(head.target).substr(n_scheme, end - n_scheme));
    const std::string path = head.target.substr(end);
    head.target = path.starts_with('/') ? path : "/" + path;
    must_be_one = true;
  }
  if (must_be_one && !host_of_authority(authority)) {
    return refuse(400, fmt::format("Host: found '{}', expected host:port", printable(authority)));
  }
  head.authority = std::move(authority);
  return {};
}

ApiResult<void> find_body(RequestHead& head) {
  const size_t n_lengths = n_fields(head, "content-length");
  const size_t n_codings = n_fields(head, "transfer-encoding");
  if (n_lengths + n_codings > 1) {
    return refuse(400, "the header says more than once how long the body is");
  }
  if (n_codings == 1) {
    const std::string_view coding = head.field("transfer-encoding");
    if (lower(coding) != "chunked" || head.is_http_1_0) {
      return refuse(400, fmt::format("Transfer-Encoding: found '{}' with HTTP/1.{}, expected "
                                     "chunked with HTTP/1.1",
                                     printable(coding), head.is_http_1_0 ? 0 : 1));
    }
    head.is_chunked = true;
  }
  if (n_lengths == 1) {
    const std::string_view length = head.field("content-length");
    uint64_t n_bytes = 0;
    const auto [end, error] =
        std::from_chars(length.data(), length.data() + length.size(), n_bytes);
    if (error != std::errc() || end != length.data() + length.size()) {
      return refuse(
          400, fmt::format("Content-Length: found '{}', expected a number", printable(length)));
    }
    head.content_length = n_bytes;
  }
  const std::string expected = lower(head.field("expect"));
  if (!expected.empty() && expected != "100-continue") {
    return refuse(417,
                  fmt::format("Expect: found '{}', expected 100-continue", printable(expected)));
  }
  head.expects_continue = !expected.empty() && !head.is_http_1_0 && head.has_body();
  return {};
}

}  // namespace

std::string_view RequestHead::field(std::string_view name) const {
  const auto found = std::ranges::find(fields, name, [](const auto& f) { return f.first; });
  return found == fields.end() ? std::string_view() : std::string_view(found->second);
}

ApiResult<std::optional<size_t>> find_head_end(std::string_view bytes, size_t n_checked) {
  // Programs of other protocols wait for an answer instead of sending an end of a line.
  constexpr char kTlsHandshake = 0x16;
  if (bytes.starts_with(kTlsHandshake)) {
    return refuse(400, "found a TLS handshake, expected plain HTTP (http:// instead of https://)");
  }
  if (!bytes.empty() && !is_token(bytes.substr(0, 1))) {
    return refuse(400, fmt::format("found the byte 0x{:02x}, expected a request",
                                   static_cast<unsigned char>(bytes.front())));
  }
  // The last byte may have been half of the end of a line.
  for (size_t i = n_checked > 0 ? n_checked - 1 : 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    const bool is_control = (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F;
    if (c == '\n' && i > 0 && bytes[i - 1] == '\r') {
      if (bytes.substr(0, i + 1).ends_with(kHeadEnd)) {
        if (i + 1 > kMaxHeadBytes) break;
        return i + 1;
      }
    } else if (c == '\n') {
      return refuse(400, "a line of the header ends with a line feed alone, expected CR LF");
    } else if (c == '\r') {
      if (i + 1 < bytes.size() && bytes[i + 1] != '\n') {
        return refuse(400, "the header has a carriage return within a line");
      }
    } else if (is_control) {
      return refuse(400, fmt::format("the header has the control character 0x{:02x}",
                                     static_cast<unsigned char>(c)));
    }
  }
  const size_t line_end = bytes.find(kLineEnd);
  if (bytes.size() <= kMaxHeadBytes &&
      (line_end != std::string_view::npos || bytes.size() <= kMaxTargetBytes + kMaxFieldBytes)) {
    return std::nullopt;
  }
  if (line_end == std::string_view::npos) {
    return refuse(414, fmt::format("the target has more than {} bytes", kMaxTargetBytes));
  }
  return refuse(431, fmt::format("the header has more than {} bytes", kMaxHeadBytes));
}

ApiResult<RequestHead> parse_request_head(std::string_view bytes) {
  RequestHead head;
  bool is_first = true;
  while (!bytes.empty()) {
    const size_t end = std::min(bytes.find(kLineEnd), bytes.size());
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + kLineEnd.size(), bytes.size()));
    if (line.empty() && !is_first) break;
    const ApiResult<void> status =
        is_first ? parse_request_line(line, head) : parse_field(line, head);
    if (!status) return std::unexpected(status.error());
    is_first = false;
  }
  if (head.method.empty()) return refuse(400, "found nothing, expected a request");
  if (const auto status = find_authority(head); !status) return std::unexpected(status.error());
  if (const auto status = find_body(head); !status) return std::unexpected(status.error());
  head.closes = head.is_http_1_0 || has_word(head.field("connection"), "close");
  return head;
}

std::string head_for_library(const RequestHead& head) {
  std::string text =
      fmt::format("{} {} HTTP/1.{}\r\n", head.method, head.target, head.is_http_1_0 ? 0 : 1);
  const auto add = [&](std::string_view name, std::string_view value) {
    if (!value.empty()) text += fmt::format("{}: {}\r\n", name, value);
  };
  // What it does with others is not wanted: ranges of answers, a `100 Continue` for any request.
  add("Host", head.authority);
  if (head.content_length) add("Content-Length", fmt::format("{}", *head.content_length));
  if (head.is_chunked) add("Transfer-Encoding", "chunked");
  add("Content-Type", head.field("content-type"));
  add("Content-Encoding", head.field("content-encoding"));
  add("Accept-Encoding", head.field("accept-encoding"));
  if (head.closes) add("Connection", "close");
  return text + "\r\n";
}

}  // namespace hotset::server
